"""Operands of the product: shapes, strides and refusals."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.nvfp4 import containers, layouts


def quantised(rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random packed codes and linear scales of a [rows, width] tensor."""
    generator = torch.Generator().manual_seed(7)
    packed = torch.randint(0, 256, (rows, width // 2), generator=generator, dtype=torch.uint8)
    return packed, torch.randint(1, 127, (rows, width // 16), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize(("rows", "width"), [(1, 64), (130, 80), (128, 64), (33, 16)])
def test_a_weight_is_two_transposed_views(rows: int, width: int) -> None:
    """The weight shares the given memory with strides (1, K/2); its scales are the swizzled ones, transposed."""
    packed, scales = quantised(rows, width)
    weight, weight_sf = containers.prepare_weight(packed, scales)
    assert weight.shape == (width // 2, rows) and weight.stride() == (1, width // 2)
    assert weight.data_ptr() == packed.data_ptr() and torch.equal(weight.t(), packed)
    columns = layouts.round_up(width // 16, 4)
    assert weight_sf.shape == (columns, layouts.round_up(rows, 128)) and weight_sf.stride() == (1, columns)
    assert torch.equal(layouts.unswizzle_128x4(weight_sf.t(), rows, width // 16), scales)


@pytest.mark.parametrize("rows", [1, 9, 129])
def test_an_activation_is_contiguous(rows: int) -> None:
    """Packed codes stay, scales are swizzled into a zero-padded container; a strided input is copied."""
    packed, scales = quantised(rows, 96)
    x_fp4, x_sf = containers.prepare_activation(packed.t().contiguous().t(), scales.view(torch.float8_e4m3fn))
    assert x_fp4.is_contiguous() and torch.equal(x_fp4, packed)
    assert x_sf.shape == (layouts.round_up(rows, 128), 8) and x_sf.is_contiguous()
    assert layouts.padding_is_clean(x_sf, rows, 6)
    assert torch.equal(layouts.unswizzle_128x4(x_sf, rows, 6), scales)


def test_parts_that_do_not_fit_are_refused() -> None:
    """A width that is no multiple of 16, swizzled or missing scales, and other dtypes are refused."""
    packed, scales = quantised(4, 64)
    with pytest.raises(ParameterError, match=r"packed\.shape is \(4, 31\); allowed: \[R, K/2\] .* Pad K with zeros"):
        containers.prepare_weight(packed[:, :31], scales)
    with pytest.raises(ParameterError, match=r"scales\.shape is \(128, 4\); allowed: \(4, 4\)\. Give linear scales"):
        containers.prepare_weight(packed, layouts.swizzle_128x4(scales))
    with pytest.raises(ParameterError, match=r"packed\.dtype is torch\.int8; allowed: torch\.uint8"):
        containers.prepare_activation(packed.view(torch.int8), scales)
    with pytest.raises(ParameterError, match=r"scales\.dtype is torch\.float32"):
        containers.prepare_activation(packed, scales.float())
