"""The interpreter's memory check: accesses within the launch's tensors pass, those outside are named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from kda_lab import interpreter
from kda_lab.interpreter_memory import Arguments


@triton.jit
def _copy_kernel(p_in, p_out, first, count, N: tl.constexpr):
    o = first + tl.arange(0, N)
    tl.store(p_out + o, tl.load(p_in + o, mask=o < count, other=0.0), mask=o < count)


@triton.jit
def _add_kernel(p_out, at):
    tl.atomic_add(p_out + at, 1.0)


@pytest.fixture(autouse=True)
def faithful() -> None:
    interpreter.ensure_faithful()


def copy(source: torch.Tensor, target: torch.Tensor, first: int = 0, count: int = 8) -> None:
    _copy_kernel[(1,)](source, target, first, count, N=8)


def test_accesses_within_the_tensors_pass() -> None:
    """Masked lanes may point anywhere; a view may reach into the storage behind it."""
    source, target = torch.arange(8.0), torch.zeros(8)
    copy(source, target)
    assert torch.equal(source, target)
    copy(torch.arange(5.0), target, count=5)
    copy(torch.arange(16.0)[:4], target)


@pytest.mark.parametrize(
    ("source", "target", "first", "words"),
    [
        (4, 8, 0, "_copy_kernel loads memory that is not its own: 4 elements lie outside its tensors"),
        (8, 4, 0, "_copy_kernel stores memory that is not its own: 4 elements lie outside its tensors"),
        (
            8,
            8,
            -1,
            "_copy_kernel loads memory that is not its own: 1 elements lie outside its tensors, the first of them",
        ),
    ],
    ids=["load", "store", "before"],
)
def test_an_access_outside_is_named(source: int, target: int, first: int, words: str) -> None:
    """Verb, kernel and number of elements."""
    with pytest.raises(triton.runtime.errors.InterpreterError, match=words):
        copy(torch.zeros(source), torch.zeros(target), first)


@triton.jit
def _described_kernel(p_in, p_out, count, N: tl.constexpr):
    block = tl.make_tensor_descriptor(p_in, [count], [1], [N]).load([0])
    tl.store(p_out + tl.arange(0, N), block)


@triton.jit
def _pair_kernel(pair, N: tl.constexpr):
    tl.store(pair[1] + tl.arange(0, N), tl.load(pair[0] + tl.arange(0, N)))


def test_descriptors_and_tuples_pass() -> None:
    """Tensors behind what wraps them, and loads that the interpreter makes of a descriptor's."""
    source, target = torch.arange(16.0), torch.zeros(16)
    _described_kernel[(1,)](source, target, 16, N=16)
    assert torch.equal(source, target)
    _pair_kernel[(1,)]((source + 1, target), N=16)
    assert torch.equal(source + 1, target)


def test_storages_within_each_other_are_one() -> None:
    """Tensors of one buffer that torch takes for storages of their own."""
    buffer = np.zeros(64, np.float32)
    whole, part = torch.from_numpy(buffer), torch.from_numpy(buffer[4:8])
    own = Arguments.of("k", [("whole", whole), ("part", part)])
    assert own.names == ["whole, part"] and own.fault(np.array([whole.data_ptr() + 80], np.uint64), 4) == ""
    assert "4 bytes across the end of whole" in own.fault(np.array([whole.data_ptr() + 252], np.uint64), 8)
    assert own.fault(np.array([2**64 - 4], np.uint64), 8).startswith("1 elements lie outside")


def test_an_atomic_outside_is_named() -> None:
    """Also without a mask."""
    target = torch.zeros(4)
    _add_kernel[(1,)](target, 3)
    assert target.tolist() == [0, 0, 0, 1]
    with pytest.raises(triton.runtime.errors.InterpreterError, match="updates memory that is not its own: 1 elements"):
        _add_kernel[(1,)](target, 4)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    offsets=st.lists(st.integers(-8, 200), min_size=1, max_size=8),
    width=st.sampled_from([1, 2, 4, 8]),
)
def test_a_fault_is_found_exactly_where_one_is(sizes: list[int], offsets: list[int], width: int) -> None:
    """Against the definition: each access of `width` bytes lies whole in one storage."""
    starts = [1000 + 64 * n for n in range(len(sizes))]
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    own = Arguments("k", np.array(starts, np.uint64), np.array(ends, np.uint64), [f"t{n}" for n in range(len(sizes))])
    addresses = np.array([1000 + o for o in offsets], np.uint64)
    outside = sum(
        not any(s <= a and a + width <= e for s, e in zip(starts, ends, strict=True)) for a in addresses.tolist()
    )
    assert own.fault(addresses, width).startswith(f"{outside} elements" if outside else "")
    assert bool(own.fault(addresses, width)) == bool(outside)
    assert own.fault(addresses[:0], width) == ""
