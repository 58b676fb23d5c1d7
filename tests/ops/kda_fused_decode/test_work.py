"""The work model against bytes counted by hand."""

from __future__ import annotations

from kda_lab.ops.kda_fused_decode import cases
from kda_lab.ops.kda_fused_decode.work import work


def test_each_term_of_a_call() -> None:
    """Two requests of one head at full width: pools twice, operands and weights once, indices, outputs."""
    done = work(cases.synthesise(cases.row("full", {"HV": 1, "B": 2}), 0))
    pools = 2 * (128 * 128 * 4 + 3 * 384 * 2)
    operands = 2 * (384 + 128 + 1 + 128) * 2
    weights = 4 * (4 * 384 + 1 + 128 + 128)
    assert done.bytes_read == pools + operands + weights + 2 * 4
    assert done.bytes_written == pools + 2 * 128 * 2
    assert done.flops == 7 * 2 * 128 * 128


def test_padding_and_spare_slots_cost_no_state() -> None:
    """Of five requests two are padding: three states and windows move."""
    call = cases.synthesise(cases.capture_rows()[0], 0)
    f = call.facts
    pools = 3 * (f["HV"] * f["V"] ** 2 * 4 + 3 * f["C"] * 2)
    assert work(call).bytes_written == pools + 5 * f["P"] * 2
