"""Guarded buffers: poison per dtype, guard bands, strides, and comparison of bits."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import VerificationError
from kda_lab.verify.guarded import GUARD_BYTES, POISON, GuardedBuffer, bits, copy_strided, same_bits

DTYPES = sorted(POISON, key=str)
FLOATS = [d for d in DTYPES if d.is_floating_point]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_poison_is_a_nan_that_casts_do_not_make(dtype: torch.dtype) -> None:
    """Both patterns are NaN, and neither is the NaN that torch writes for float('nan')."""
    canonical = torch.full((1,), float("nan"), dtype=dtype)
    for turn in (0, 1):
        buffer = GuardedBuffer(torch.zeros(3, dtype=dtype))
        buffer.poison(turn)
        assert torch.isnan(buffer.view()).all()
        assert not same_bits(buffer.view()[:1], canonical)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_written_and_unwritten_are_told_apart(dtype: torch.dtype) -> None:
    """An element that was written, even with zero or NaN, is not unwritten; the others are."""
    buffer = GuardedBuffer(torch.zeros(2, 5, dtype=dtype))
    buffer.poison(0)
    assert buffer.unwritten().all()
    buffer.view()[1, 2] = float("nan") if dtype.is_floating_point else 0
    assert buffer.unwritten().sum() == 9
    assert not buffer.unwritten()[1, 2]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_two_patterns_differ(dtype: torch.dtype) -> None:
    """What one pattern leaves is not mistaken for the other."""
    buffer = GuardedBuffer(torch.zeros(4, dtype=dtype))
    buffer.poison(0)
    left = buffer.view().clone()
    buffer.poison(1)
    buffer.view().copy_(left)
    assert not buffer.unwritten().any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("side", ["before", "behind"])
def test_guards_on_both_sides(dtype: torch.dtype, side: str) -> None:
    """One element just outside the output, on either side, is one broken guard."""
    buffer = GuardedBuffer(torch.zeros(6, dtype=dtype))
    buffer.poison(0)
    view = buffer.view()
    view.fill_(1)
    assert buffer.broken_guards() == 0
    at = view.storage_offset() + (-1 if side == "before" else 6)
    view.as_strided((1,), (1,), at).fill_(1)
    assert buffer.broken_guards() == 1


def test_gaps_between_strides_are_guarded() -> None:
    """An output with gaps keeps its strides, and a write into a gap is a broken guard."""
    like = torch.zeros(4, 8, dtype=torch.float32)[:, :5]
    buffer = GuardedBuffer(like)
    buffer.poison(0)
    view = buffer.view()
    assert (view.shape, view.stride()) == (like.shape, like.stride())
    view.fill_(2.0)
    assert buffer.broken_guards() == 0
    view.as_strided((1,), (1,), view.storage_offset() + 6).fill_(2.0)
    assert buffer.broken_guards() == 1


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)], ids=str)
def test_scalar_and_empty_outputs(shape: tuple[int, ...]) -> None:
    """Outputs without axes or without elements have guards too."""
    buffer = GuardedBuffer(torch.zeros(shape))
    buffer.poison(0)
    assert buffer.view().shape == shape
    assert buffer.broken_guards() == 0


def test_bands_are_as_wide_as_stated() -> None:
    """The outermost element of a band is watched."""
    buffer = GuardedBuffer(torch.zeros(2, dtype=torch.bfloat16))
    buffer.poison(0)
    view = buffer.view()
    assert view.storage_offset() * 2 == GUARD_BYTES
    view.as_strided((1,), (1,), 0).fill_(0)
    assert buffer.broken_guards() == 1


def test_a_dtype_without_poison_is_refused() -> None:
    """An output that could not be poisoned is refused with the dtypes that can."""
    with pytest.raises(VerificationError, match=r"output.dtype is torch.complex64; allowed: torch.bfloat16, .*Add its"):
        GuardedBuffer(torch.zeros(2, dtype=torch.complex64))


def test_same_bits() -> None:
    """Equal NaN patterns agree; 0.0 and -0.0, another dtype and another shape do not."""
    nan = torch.tensor([float("nan")])
    assert same_bits(nan, nan.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    assert not same_bits(torch.zeros(2), torch.zeros(1, 2))


def test_copy_strided_keeps_strides_and_bits() -> None:
    """The copy has the strides of the original and memory of its own."""
    tensor = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).t()[:, ::2]
    copied = copy_strided(tensor)
    assert copied.stride() == tensor.stride()
    assert same_bits(copied, tensor)
    assert copied.data_ptr() != tensor.data_ptr()
    assert bits(copied).dtype == torch.int32
