"""The work model against bytes counted by hand."""

from __future__ import annotations

from kda_lab.ops.kda_packed_decode import cases
from kda_lab.ops.kda_packed_decode.work import work


def test_each_term_of_a_call() -> None:
    """Two requests of one head at full width: states twice, operands and weights once, indices, outputs."""
    done = work(cases.synthesise(cases.row("full", {"HV": 1, "B": 2}), 0))
    state = 2 * 128 * 128 * 4
    assert done.bytes_read == state + 2 * (3 * 128 * 2 + 128 * 2 + 2) + 4 + 128 * 4 + 2 * 4
    assert done.bytes_written == state + 2 * 128 * 2
    assert done.flops == 7 * 2 * 128 * 128


def test_padding_and_spare_slots_cost_no_state() -> None:
    """Of five requests two are padding: three states move."""
    call = cases.synthesise(cases.capture_rows()[0], 0)
    done, f = work(call), call.facts
    state = 3 * f["HV"] * f["V"] * f["K"] * 4
    assert done.bytes_written == state + 5 * f["HV"] * f["V"] * 2
    assert state < done.bytes_read < 1.2 * state
