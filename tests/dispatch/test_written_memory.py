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


def test_a_buffer_given_twice_is_named_once_for_each_further_name() -> None:
    """The first that is written keeps it, in the order of the op's outputs, whether updated or given."""
    one, other = torch.zeros(4), torch.zeros(4)
    assert said(x=torch.zeros(4), left=one, right=other) == []
    assert said(x=torch.zeros(4), left=one, right=one) == [
        "right is the memory of left; allowed: memory of its own, since both are written."
    ]
    assert [line.split(";")[0] for line in said(x=one, left=one, right=one.view(2, 2))] == [
        "right is the memory of left",
        "x is the memory of left",
    ]


def test_an_input_that_is_only_read_is_no_concern() -> None:
    """Two outputs are compared though it is an input that begins there first; one alone is not refused for it."""
    read = torch.zeros(4)
    facts = call_facts(SPEC, {"x": read}, {}, {"left": read, "right": read})
    assert [reason.field for reason in shared(facts, ("left", "right"))] == ["right"]
    assert list(shared(facts, ("left",))) == []


def test_tensors_without_elements_share_nothing() -> None:
    """Empty ones, and ones without memory, all begin at address 0."""
    empty, meta = torch.zeros(0), torch.zeros(4, device="meta")
    assert said(x=torch.zeros(4), left=empty, right=empty) == []
    assert said(x=torch.zeros(4), left=meta, right=meta) == []
