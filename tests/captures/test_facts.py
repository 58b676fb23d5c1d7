"""Host-side facts are read from a packed call's tensors, and only from such a call."""

from __future__ import annotations

import pytest
import torch

from kda_lab.captures.facts import packed_facts

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
