"""Baselines: what must be beaten is right first, and says why it cannot run where it cannot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab import runtime
from kda_lab.ops.kda.drawing import passed_on
from kda_lab.ops.kda_chunk_prefill import baselines, cases, gates, oracle
from kda_lab.ops.protocol import Call, preparation_of
from kda_lab.verify.metrics import rel_l2

ROWS = cases.capture_rows()


def assert_right(call: Call) -> None:
    exact = oracle.oracle_fp64(call)
    assert rel_l2(call.outputs["out"], exact["out"]) < gates.ERROR
    assert rel_l2(call.outputs["state"], exact["state"]) < gates.STATE_ERROR
    allowed = oracle.allowance(call, exact)
    kept = allowed["state"] == 0
    assert torch.equal(call.outputs["state"][kept], call.inputs["state"][kept])


def poisoned(call: Call) -> Call:
    call.outputs["out"].fill_(float("nan"))
    call.restore()
    return call


def test_the_first_arm_is_the_speed_baseline() -> None:
    """Order and names of the arms, which reports rely on."""
    assert [arm.name for arm in baselines.ARMS] == ["plain_four_launches", "torch_chunked", "fla_chunk_kda"]


@pytest.mark.parametrize("row", ROWS[:3], ids=lambda row: row.label)
@pytest.mark.parametrize("arm", baselines.ARMS[:2], ids=lambda arm: arm.name)
def test_baselines_that_run_on_a_cpu_are_right(arm: Any, row: Any) -> None:
    """Outputs and states within the op's own limits; unnamed slots keep their bits."""
    call = poisoned(cases.synthesise(row, 1))
    arm.bind([call])[0]()
    assert_right(call)


def test_the_plain_arm_prepares_for_other_lengths() -> None:
    """Its table of chunks is made beforehand, and again when asked."""
    call = cases.synthesise(ROWS[1], 1)
    launch = baselines.ARMS[0].bind([call])[0]
    for name, new in cases.changed(call, "sequences", 2).items():
        call.inputs[name].copy_(new)
    prepare = preparation_of(launch)
    assert prepare is not None
    prepare()
    poisoned(call)
    launch()
    assert_right(call)


def test_fla_is_unavailable_on_a_cpu_with_a_reason() -> None:
    """Unavailable, because …: never a crash."""
    words = baselines.ARMS[2].unavailable(torch.device("cpu"))
    assert words == "unavailable, because fla-core needs a CUDA device and this one is cpu"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_fla_gets_states_by_sequence_and_they_go_back(row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a function that computes what chunk_kda does, the arm is right: starts, padding, empty ones, slots."""
    call = poisoned(cases.synthesise(row, 1))
    fla_launcher(call, monkeypatch)()
    assert_right(call)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_fla_prepares_for_other_slots_where_a_graph_reads_them(row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """States that move between launches are found again, in the memory that a captured graph knows."""
    call = poisoned(cases.synthesise(row, 1))
    launch = fla_launcher(call, monkeypatch)
    before, rows = launch._slots.data_ptr(), launch._rows.tolist()
    indices, slots = call.inputs["state_indices"], call.inputs["state"].shape[0]
    indices.copy_(torch.tensor(passed_on(indices.tolist(), slots)))
    prepare = preparation_of(launch)
    assert prepare is not None
    prepare()
    assert (launch._slots.data_ptr() == before) == (launch._rows.tolist() == rows)
    launch()
    assert_right(call)


def test_fla_prepares_for_other_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other lengths stand in another tensor, whose chunks fla-core has not yet remembered."""
    call = poisoned(cases.synthesise(ROWS[1], 1))
    launch = fla_launcher(call, monkeypatch)
    before = launch._ends
    for name, new in cases.changed(call, "sequences", 2).items():
        call.inputs[name].copy_(new)
    launch.prepare()
    poisoned(call)
    launch()
    assert_right(call)
    assert launch._ends is not before


def fla_launcher(call: Call, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The launcher of fla-core's arm on one call, with a function that computes what chunk_kda does."""
    monkeypatch.setattr(runtime, "import_optional", lambda name: SimpleNamespace(module=Fake(call), reason=""))
    return baselines.ARMS[2].bind([call])[0]


class Fake:
    """What the arm uses of fla-core, computed by the oracle; states stand by sequence, V first."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def chunk_kda(self, q: torch.Tensor, *_: torch.Tensor, **given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        start, ends = given["initial_state"], given["cu_seqlens"]
        count = start.shape[0]
        assert given["state_v_first"]
        assert given["use_gate_in_kernel"]
        assert given["safe_gate"] == (given["lower_bound"] is not None)
        ends = torch.tensor([0, q.shape[1]]) if ends is None else ends
        slots = torch.arange(count, dtype=torch.int32)
        call = self._call.with_inputs(
            cu_seqlens=ends.int(), state=start, state_indices=slots, has_state=torch.ones(count, dtype=torch.bool)
        )
        found = oracle.oracle_fp32(call)
        return found["out"].bfloat16()[None], found["state"]
