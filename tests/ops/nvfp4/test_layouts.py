"""Scale layouts: the byte each scale lies at, padding, and the way back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.nvfp4 import layouts

SIZES = st.tuples(st.integers(1, 300), st.integers(1, 21))
LAYOUTS = {
    "128x4": (layouts.swizzle_128x4, layouts.unswizzle_128x4, layouts.offset_128x4, 128),
    "8x4": (layouts.swizzle_8x4, layouts.unswizzle_8x4, layouts.offset_8x4, 8),
}


def random_scales(rows: int, columns: int) -> torch.Tensor:
    """Bytes without a zero, so that padding shows."""
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    return torch.randint(1, 127, (rows, columns), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("row", "column", "columns", "offset"),
    [(1, 0, 4, 16), (32, 0, 4, 4), (0, 4, 8, 512), (33, 5, 8, 533), (128, 0, 4, 512), (128, 0, 20, 2560), (0, 3, 4, 3)],
)
def test_examples_of_the_128x4_swizzle(row: int, column: int, columns: int, offset: int) -> None:
    """Known scales lie at known bytes, by the formula and in the swizzled tensor."""
    assert layouts.offset_128x4(row, column, columns) == offset
    scales = torch.zeros(row + 1, columns, dtype=torch.uint8)
    scales[row, column] = 77
    assert layouts.swizzle_128x4(scales).flatten().nonzero().flatten().tolist() == [offset]


@pytest.mark.parametrize(
    ("row", "column", "columns", "offset"), [(1, 0, 4, 4), (0, 4, 8, 32), (8, 1, 8, 65), (7, 3, 3, 31)]
)
def test_examples_of_the_8x4_swizzle(row: int, column: int, columns: int, offset: int) -> None:
    """Known scales lie at known bytes, by the formula and in the swizzled tensor."""
    scales = torch.zeros(row + 1, max(columns, column + 1), dtype=torch.uint8)
    scales[row, column] = 77
    assert layouts.offset_8x4(row, column, columns) == offset
    assert layouts.swizzle_8x4(scales).flatten().nonzero().flatten().tolist() == [offset]


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=25)
@given(size=SIZES)
def test_the_swizzle_is_its_formula_and_invertible(name: str, size: tuple[int, int]) -> None:
    """Each scale lies where the formula says, every other byte is zero, and the way back gives all of them."""
    swizzle, unswizzle, offset, multiple = LAYOUTS[name]
    rows, columns = size
    scales = random_scales(rows, columns)
    swizzled = swizzle(scales)
    expected = torch.zeros(-(-rows // multiple) * multiple * (-(-columns // 4) * 4), dtype=torch.uint8)
    index = torch.tensor([[offset(m, j, columns) for j in range(columns)] for m in range(rows)])
    expected[index.flatten()] = scales.flatten()
    assert index.unique().numel() == rows * columns
    assert swizzled.is_contiguous() and torch.equal(swizzled.flatten(), expected)
    assert torch.equal(unswizzle(swizzled, rows, columns), scales)


@pytest.mark.parametrize("name", LAYOUTS)
def test_strided_and_float8_scales_are_taken(name: str) -> None:
    """A transposed view and a float8 tensor give the bytes of a contiguous uint8 one."""
    swizzle, unswizzle, _, _ = LAYOUTS[name]
    scales = random_scales(130, 9)
    expected = swizzle(scales)
    assert torch.equal(swizzle(scales.t().contiguous().t()), expected)
    assert torch.equal(swizzle(scales.view(torch.float8_e4m3fn)), expected)
    assert torch.equal(unswizzle(expected.view(torch.float8_e4m3fn).flatten(), 130, 9), scales)


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_no_scale_tensor_is_refused(name: str) -> None:
    """Wrong rank, wrong size and a transposed container are refused, each with what to do."""
    swizzle, unswizzle, _, multiple = LAYOUTS[name]
    with pytest.raises(ParameterError, match=r"scales\.shape is \(8,\); allowed: \[R, C\]\. Give linear scales"):
        swizzle(torch.zeros(8, dtype=torch.uint8))
    with pytest.raises(ParameterError, match=rf"swizzled\.shape is \(1, 5\); allowed: {multiple * 8} bytes .*unpadded"):
        unswizzle(random_scales(1, 5), 1, 5)
    with pytest.raises(ParameterError, match=r"swizzled\.stride\(\) is \(1, 8\); allowed: contiguous\. Transpose"):
        unswizzle(swizzle(random_scales(1, 5)).t(), 1, 5)
    with pytest.raises(ParameterError, match=r"scales\.dtype is torch\.float32; allowed: torch\.uint8"):
        swizzle(torch.zeros(2, 4))


@pytest.mark.parametrize(("rows", "columns"), [(1, 4), (129, 9), (128, 5)])
def test_a_byte_in_the_padding_is_found(rows: int, columns: int) -> None:
    """A NaN byte in a padding row or column is reported; a NaN byte in the scales themselves is no padding."""
    swizzled = layouts.swizzle_128x4(random_scales(rows, columns))
    assert layouts.padding_is_clean(swizzled, rows, columns)
    live = {layouts.offset_128x4(m, j, columns) for m in range(rows) for j in range(columns)}
    padding = [at for at in range(swizzled.numel()) if at not in live]
    for at in (padding[0], padding[-1]):
        dirty = swizzled.clone()
        dirty.view(-1)[at] = 0x7F
        assert not layouts.padding_is_clean(dirty, rows, columns)
    swizzled.view(-1)[0] = 0x7F
    assert layouts.padding_is_clean(swizzled, rows, columns)


def test_a_full_atom_has_no_padding() -> None:
    """128 rows by 4 columns are one atom, and clean whatever they hold."""
    assert layouts.padding_is_clean(torch.full((128, 4), 0x7F, dtype=torch.uint8), 128, 4)
