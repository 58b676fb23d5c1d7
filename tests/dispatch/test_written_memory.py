"""Memory that is written: a tensor that overlaps itself, and a buffer that is given twice."""

from __future__ import annotations

import itertools

import pytest
import torch

from kda_lab.contracts.facts import CallFacts, TensorFacts, call_facts
from kda_lab.dispatch.written_memory import overlapping, shared
from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec("toy.pair", ("x",), (), ("left", "right", "x"))


def facts_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> CallFacts:
    """A call that writes one tensor of this layout."""
    return CallFacts({"x": TensorFacts("float32", shape, strides, "cpu", None)}, {}, None)


def test_no_two_places_are_one() -> None:
    """Every layout of two axes up to three: said to overlap whenever two elements have one place."""
    for shape in itertools.product(range(4), repeat=2):
        for strides in itertools.product(range(5), repeat=2):
            places = [i * strides[0] + j * strides[1] for i in range(shape[0]) for j in range(shape[1])]
            said = [str(reason) for reason in overlapping(facts_of(shape, strides), ("x", "absent"))]
            if len(set(places)) < len(places):
                assert said[0].startswith(f"x.strides is {strides}; allowed: strides for {shape} with a place for each")
            elif said:
                # Not nested, as (2, 3) steps of 3 and 2 are: no allocator makes such a tensor.
                assert min(shape) > 1


@pytest.mark.parametrize("strides", [(6, 1), (1, 6), (8, 1), (6, 2), (1, 4)])
def test_dense_transposed_and_spread_memory_is_fine(strides: tuple[int, int]) -> None:
    """Rows that lie apart, columns first, gaps between elements."""
    assert list(overlapping(facts_of((4, 3), strides), ("x",))) == []


def said(**given: torch.Tensor) -> list[str]:
    """What `shared` has against a call whose outputs are `left`, `right` and the updated `x`."""
    tensors = {"x": given.pop("x")}
    return [str(reason) for reason in shared(call_facts(SPEC, tensors, {}, given), SPEC.outputs)]


def test_a_written_buffer_given_twice_is_named() -> None:
    """Each further name for it, or the written one where the other is only read; views count by where they begin."""
    one, other = torch.zeros(4), torch.zeros(4)
    assert said(x=torch.zeros(4), left=one, right=other) == []
    assert said(x=torch.zeros(4), left=one, right=one) == [
        "right is the memory of left; allowed: memory of its own, since right is written."
    ]
    assert [line.split(";")[0] for line in said(x=one, left=one, right=one.view(2, 2))] == [
        "left is the memory of x",
        "right is the memory of x",
    ]


def test_what_is_read_is_not_overwritten() -> None:
    """An output on the memory of an input is refused, whichever comes first; two inputs may be one tensor."""
    read = torch.zeros(4)
    facts = call_facts(SPEC, {"x": read}, {}, {"left": read, "right": read})
    assert [str(reason).split(";")[0] for reason in shared(facts, ("left",))] == ["left is the memory of x"]
    assert [str(reason).split(";")[0] for reason in shared(facts, ("x",))] == [
        "x is the memory of left",
        "x is the memory of right",
    ]
    assert list(shared(facts, ())) == []


def test_tensors_without_elements_share_nothing() -> None:
    """Empty ones, and ones without memory, all begin at address 0."""
    empty, meta = torch.zeros(0), torch.zeros(4, device="meta")
    assert said(x=torch.zeros(4), left=empty, right=empty) == []
    assert said(x=torch.zeros(4), left=meta, right=meta) == []
