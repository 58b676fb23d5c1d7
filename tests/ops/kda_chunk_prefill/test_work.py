"""Bytes and FLOPs of a prefill."""

from __future__ import annotations

import pytest

from kda_lab.ops.kda_chunk_prefill import cases
from kda_lab.ops.kda_chunk_prefill.work import work


def test_a_head_and_token_takes_180_thousand_flops() -> None:
    """Dense tiles of 64 at K = V = 128: 180224 a token and head."""
    call = cases.synthesise(cases.row("flops", {"HV": 2, "lengths": (100,)}), 0)
    assert work(call).flops == 180224 * 2 * 100


def test_every_operand_counts_once_and_live_states_twice() -> None:
    """Four operands of 256 bytes and one output a token and head; a state of 64 KB is read and written."""
    call = cases.synthesise(cases.row("bytes", {"HV": 1, "lengths": (100,)}), 0)
    done = work(call)
    small = 100 * 4 + 4 + 512 + 8 + 4 + 1
    assert done.bytes_read == 100 * 4 * 256 + small + 65536
    assert done.bytes_written == 100 * 256 + 65536


@pytest.mark.parametrize(("live", "starting"), [(2, 1)])
def test_padding_and_empty_sequences_move_no_state(live: int, starting: int) -> None:
    """Five sequences: the second empty, the last padding, the odd ones from zero."""
    call = cases.synthesise(
        cases.row("few", {"HV": 1, "K": 32, "V": 32, "lengths": (3, 0, 0, 5, 4), "padding": True}), 0
    )
    assert (call.facts["live"], call.facts["starting"]) == (live, starting)
    assert work(call).bytes_written == 12 * 64 + live * 4096
