"""The plain pipeline's table of chunks, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from kda_lab import interpreter
from kda_lab.errors import ParameterError
from kda_lab.ops.kda.reference_arms import memory_of
from kda_lab.ops.kda_chunk_prefill import cases

interpreter.ensure_faithful()
from kda_lab.ops.kda_chunk_prefill import plain  # noqa: E402


def test_chunks_never_cross_a_sequence() -> None:
    """Sequence, first token and end of each chunk; first chunk and number of chunks of each sequence."""
    table, spans = plain.tables(torch.tensor([0, 70, 70, 134], dtype=torch.int32))
    assert table.tolist() == [[0, 0, 70], [0, 64, 70], [2, 70, 134]]
    assert spans.tolist() == [[0, 2], [2, 0], [2, 1]]


def test_no_tokens_no_launch() -> None:
    """A call of empty sequences changes nothing."""
    call = cases.synthesise(cases.row("none", {"HV": 1, "K": 16, "V": 16, "lengths": (0, 0)}), 0)
    call.restore()
    plain.prefill(memory_of(call), -5.0, call.outputs["out"], plain.tables(call.inputs["cu_seqlens"]))
    assert torch.equal(call.outputs["state"], call.inputs["state"])


def test_other_widths_are_refused() -> None:
    """K = 60 is no power of two."""
    call = cases.synthesise(cases.row("odd", {"HV": 1, "K": 60, "V": 16, "lengths": (3,)}), 0)
    with pytest.raises(ParameterError, match=r"K, V is \(60, 16\); allowed: powers of two of at least 16"):
        plain.prefill(memory_of(call), -5.0, call.outputs["out"], plain.tables(call.inputs["cu_seqlens"]))
