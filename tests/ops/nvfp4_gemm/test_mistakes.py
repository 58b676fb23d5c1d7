"""Each wrong step is wrong in the way that it says."""

from __future__ import annotations

import pytest
import torch

from kda_lab.ops.nvfp4 import layouts
from kda_lab.ops.nvfp4_gemm import cases, mistakes
from kda_lab.ops.nvfp4_gemm.emulated import Gemm, code_values, scale_values
from kda_lab.ops.protocol import Call


def one(label: str) -> Call:
    shape, batch, kind = label.split("-")
    return cases.synthesise(cases.rows([shape], [int(batch[1:])], [kind])[0], 0)


def test_tables_of_codes_differ_where_they_should() -> None:
    """Without signs eight codes change but -0; with 0.5 flushed two."""
    right = code_values()
    assert (mistakes.codes_with(torch.abs)() != right).sum() == 7
    assert (mistakes.codes_with(mistakes.half_as_zero)() != right).nonzero().flatten().tolist() == [1, 9]


def test_tables_of_scales_differ_where_they_should() -> None:
    """As E5M2, 1.0 becomes 0.5 and 2.0 stays; with bias 8 normal scales are halved and subnormal ones stay."""
    right, e5m2, bias = scale_values(), mistakes.scales_as_e5m2(), mistakes.scales_bias_8()
    assert (right[0x38], e5m2[0x38], e5m2[0x40]) == (1.0, 0.5, 2.0)
    assert bias[0x38] == 0.5
    assert bias[0x05] == right[0x05]
    flushed = mistakes.scales_flushed()
    assert (flushed != right).nonzero().flatten().tolist()[:8] == [1, 2, 3, 4, 5, 6, 7, 0x7F]  # NaN is not itself
    assert flushed[0x08] == right[0x08]


def test_nibble_orders() -> None:
    """Bytes (a b) (c d), low nibble first, hold a b c d; swapped b a d c; planar a c b d."""
    values = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    assert mistakes.nibbles_swapped(values).tolist() == [[2.0, 1.0, 4.0, 3.0]]
    assert mistakes.planar(values).tolist() == [[1.0, 3.0, 2.0, 4.0]]


def test_the_8x4_reading_is_the_inverse_of_the_8x4_swizzle() -> None:
    """It is the layout that it claims to be, not just any wrong one."""
    scales = torch.arange(24 * 8, dtype=torch.uint8).view(24, 8)
    read = mistakes.by_offset(mistakes.small_atoms)(layouts.swizzle_8x4(scales), 24, 8)
    assert torch.equal(read, scales)
    assert torch.equal(mistakes.by_offset(mistakes.linear)(scales, 24, 8), scales)


def test_wrong_rows_and_columns_of_an_atom() -> None:
    """Reversed columns and rows by four find the scale of another place; the first atom serves all rows."""
    scales = torch.arange(256, dtype=torch.int32).repeat_interleave(4).to(torch.uint8).view(256, 4)
    scales += torch.arange(4, dtype=torch.uint8) * 64
    container = layouts.swizzle_128x4(scales)
    assert torch.equal(mistakes.by_offset(mistakes.columns_reversed)(container, 256, 4), scales.flip(1))
    by_four = mistakes.by_offset(mistakes.rows_by_four)(container, 128, 4)
    assert torch.equal(by_four[5], scales[1 + 32])  # row 5 is taken for (1, 1): 1 + 32 · 1
    assert torch.equal(mistakes.by_offset(mistakes.first_atom_only)(container, 256, 4)[128:], scales[:128])


def test_lost_parts_of_k() -> None:
    """The last tile, or what is left of one; the last of four splits."""
    x, weight = torch.ones(1, 160), torch.ones(1, 160)
    assert mistakes.last_tile_dropped(x, weight).item() == 128
    assert mistakes.last_tile_dropped(x[:, :64], weight[:, :64]).item() == 0
    assert mistakes.split_lost(x, weight).item() == 112


def test_one_tile_misses_half_of_k() -> None:
    """Sixteen columns in the middle differ, and are what the first half of K gives."""
    call = one("tiny_c-M3-exact")
    right, wrong = Gemm().output(call), Gemm(adjust=mistakes.fixup_lost).output(call)
    assert (right != wrong).any(0).nonzero().flatten().tolist() == list(range(16, 32))
    half = Gemm(product=lambda x, w: x[:, :288] @ w[:, :288].t()).output(call)
    assert torch.equal(wrong[:, 16:32], half[:, 16:32])


def test_half_accumulator_loses_bits_and_never_overflows() -> None:
    """Errors of FP16 size, also where the sums are far above its range."""
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, 512, generator=draw) * 2688, torch.randn(5, 512, generator=draw) * 2688
    error = (mistakes.half_accumulator(x, weight) - x @ weight.t()).norm() / (x @ weight.t()).norm()
    assert 1e-5 < error < 1e-1


@pytest.mark.parametrize("M", [3, 128])
def test_padding_scales_are_read_where_there_are_any(M: int) -> None:
    """NaN where row M is padding that holds NaN, zero where the container has no such row."""
    call = cases.with_guard_rows(one(f"tiny_d-M{M}-random"))
    assert mistakes.padding_scales(call.inputs["x_sf"], M, 64).isnan() == (M == 3)


@pytest.mark.parametrize(("shape", "leaks"), [("tiny_e", True), ("tiny_d", False)])
def test_padding_columns_are_read_where_there_are_any(shape: str, leaks: bool) -> None:
    """With K / 16 = 6 two columns of padding hold NaN, with 4 none."""
    call = cases.with_guard_rows(one(f"{shape}-M3-random"))
    assert Gemm(adjust=mistakes.reads_padding_columns).output(call).isnan().all().item() == leaks


def test_a_typical_element_is_no_outlier() -> None:
    """The largest mantissa above the median: 1.9 of 0.1, 1.9, 1.5, 64, 1.0."""
    value = torch.tensor([[0.1, -1.9], [1.5, 64.0], [1.0, 1.0]])
    assert mistakes.typical_element(value) == (0, 1)
    call = one("tiny_d-M3-random")
    assert torch.equal(mistakes.column_off(call, value), value * torch.tensor([1.0, 1.01]))
    assert mistakes.element_times(0.0)(call, value).tolist() == [
        [pytest.approx(0.1), 0.0],
        [1.5, 64.0],
        [1.0, 1.0],
    ]


def test_truncation_rounds_towards_zero() -> None:
    """Just below 1 and just above -1 become the next BF16 nearer to zero."""
    value, out = torch.tensor([[0.9999, -0.9999, 1.0]]), torch.empty(1, 3, dtype=torch.bfloat16)
    mistakes.truncate(value, out)
    assert out.tolist() == [[0.99609375, -0.99609375, 1.0]]
