"""Host-side facts are read from a packed call's tensors, and only from such a call."""

from __future__ import annotations

import pytest
import torch

from kda_lab.captures.facts import gemm_facts, packed_facts, recorded_facts

PACKED = {
    "q": torch.zeros(3, 12, 8),
    "k": torch.zeros(9, 1, 8),
    "cu_seqlens_k": torch.tensor([0, 4, 4, 9], dtype=torch.int32),
}


def test_axes_and_lengths_are_read() -> None:
    """Lengths are differences of the offsets; an empty row has length 0."""
    assert packed_facts(PACKED) == {"B": 3, "HQ": 12, "HKV": 1, "lengths": [4, 0, 5]}


@pytest.mark.parametrize("name", ["q", "k", "cu_seqlens_k"])
def test_a_call_without_one_of_the_tensors_has_no_facts(name: str) -> None:
    """Nothing is guessed."""
    assert packed_facts({n: t for n, t in PACKED.items() if n != name}) == {}


@pytest.mark.parametrize(
    "changed",
    [{"q": torch.zeros(3, 8)}, {"k": torch.zeros(9, 8)}, {"cu_seqlens_k": torch.tensor([0, 9], dtype=torch.int32)}],
    ids=["q", "k", "offsets"],
)
def test_tensors_of_another_form_give_no_facts(changed: dict[str, torch.Tensor]) -> None:
    """The names alone are not enough."""
    assert packed_facts({**PACKED, **changed}) == {}


GEMM = {"x_fp4": torch.zeros(3, 8, dtype=torch.uint8), "weight": torch.zeros(5, 8, dtype=torch.uint8).t()}


def test_axes_of_an_nvfp4_product_are_read_from_shapes() -> None:
    """Two codes share a byte, so K is twice the extent."""
    assert gemm_facts(GEMM) == {"M": 3, "N": 5, "K": 16}


@pytest.mark.parametrize(
    "inputs",
    [{}, {"x_fp4": GEMM["x_fp4"]}, {**GEMM, "weight": torch.zeros(5, 8)}, {**GEMM, "x_fp4": torch.zeros(8)}],
    ids=["none", "no weight", "not transposed", "one axis"],
)
def test_other_calls_have_no_axes_of_a_product(inputs: dict[str, torch.Tensor]) -> None:
    """Shapes that do not fit each other are no product."""
    assert gemm_facts(inputs) == {}


def test_a_recorded_call_has_the_facts_of_its_op() -> None:
    """A product says that it is real, an attention call has its lengths, anything else has nothing."""
    assert recorded_facts(GEMM) == {"M": 3, "N": 5, "K": 16, "kind": "real"}
    assert recorded_facts(PACKED) == packed_facts(PACKED)
    assert recorded_facts({"x": torch.zeros(2)}) == {}
