"""From records to claims: arms, rounds, control, failures and samples as the referee reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kda_lab.referee.readers import read
from kda_lab.referee.serving import claims as claims_module
from kda_lab.referee.serving.cell_records import REQUESTS, CellRecord, PlanFolder
from kda_lab.referee.serving.claims import claims_of, write_claim_file
from kda_lab.referee.serving.plan import Plan
from kda_lab.referee.serving.schedule import Cell, schedule
from kda_lab.referee.serving.stream import Outcome


def record(cell: Cell, **fields: Any) -> CellRecord:
    """A finished cell whose rate is its place in the schedule."""
    given: dict[str, Any] = {
        "key": cell.key,
        "order": cell.order,
        "arm": cell.arm,
        "role": cell.role,
        "concurrency": cell.concurrency,
        "round": cell.round,
        "attempt": 1,
        "sitting": 1,
        "status": "ok",
        "started_s": 1.0,
        "metrics": {"throughput_tok_s": 100.0 + cell.order, "tpot_mean_ms": 5.0, "completed": 4.0, "failed": 0.0},
        "resolved": {"tp_size": 1},
        "cache_state": "flushed",
        "output_tokens": 11,
        "requests_file": f"{REQUESTS}/{cell.key}.{fields.get('attempt', 1)}.jsonl",
        "requests_sha256": "0" * 64,
    }
    return CellRecord.model_validate(given | fields)


def filled(path: Path, plan: Plan, *records: CellRecord) -> Path:
    """A plan's folder with records; each has two requests."""
    folder = PlanFolder(path, plan)
    for item in records:
        folder.add(item, [Outcome(n, 0.0, "", "", 10.0 + n, 60.0, 5.0, (5.0,), 8, 11) for n in (0, 1)])
    folder.close()
    return path


FAILED = {
    "status": "failed",
    "failure": "1 of 4 requests failed: 1 timeout",
    "metrics": {"completed": 3.0, "failed": 1.0},
}


def test_a_claim_an_arm_a_concurrency_and_a_metric(tmp_path: Path, make_plan: Callable[..., Plan]) -> None:
    """Two concurrencies and two metrics of one candidate are four claims, each with the repeat as its control."""
    plan = make_plan(concurrency=[1, 2], margin_percent=0.5)
    claims = claims_of(filled(tmp_path / "o", plan, *map(record, schedule(plan))), plan)
    assert [c.name for c in claims] == [f"cand-c{n}-{m}" for n in (1, 2) for m in ("throughput_tok_s", "tpot_mean_ms")]
    first = claims[0]
    assert [(r.arm, r.round) for r in first.runs] == [
        ("base", 0), ("cand", 0), ("base-control", 0), ("base-control", 1), ("cand", 1), ("base", 1),
    ]  # fmt: skip
    (control,) = first.controls
    assert (control.arm, control.repeats, control.adjacent, first.margin_percent) == ("base-control", "base", True, 0.5)
    run = first.runs[0]
    assert (run.metrics["throughput_tok_s"], run.resolved, run.cache_state) == (100.0, {"tp_size": 1}, "flushed")
    assert (run.samples["ttft_mean_ms"], run.output_tokens, run.source.line) == ((10.0, 11.0), 11, 1)


def test_two_candidates_are_claims_of_their_own(tmp_path: Path, make_plan: Callable[..., Plan]) -> None:
    """Each candidate is compared with the same baseline runs and never with the other candidate."""
    two = make_plan()
    more = two.arms[1].model_copy(update={"name": "more"})
    plan = two.model_copy(update={"arms": (*two.arms, more)})
    claims = claims_of(filled(tmp_path / "o", plan, *map(record, schedule(plan))), plan)
    arms = [sorted({r.arm for r in c.runs}) for c in claims]
    assert arms == [["base", "base-control", "cand"]] * 2 + [["base", "base-control", "more"]] * 2
    assert not claims[0].controls[0].adjacent


def test_a_failed_cell_stays_in_without_rates(tmp_path: Path, make_plan: Callable[..., Plan]) -> None:
    """The failed run has its counts and its reason; nothing reads it as a measurement."""
    plan = make_plan(rounds=1)
    base, cand, control = schedule(plan)
    records = (record(base), record(cand, **FAILED), record(control))
    claim = claims_of(filled(tmp_path / "o", plan, *records), plan)[0]
    lost = next(r for r in claim.runs if r.arm == "cand")
    assert (lost.metrics, lost.samples) == ({"completed": 3.0, "failed": 1.0}, {})
    assert "failed: 1 of 4 requests failed: 1 timeout" in str(lost.source)
    assert claim.of("cand", "throughput_tok_s") == ()


def test_a_repeat_of_a_failed_cell_says_so(tmp_path: Path, make_plan: Callable[..., Plan]) -> None:
    """The later attempt counts once, names the failure before it, and that its round was split."""
    plan = make_plan(rounds=1)
    base, cand, control = schedule(plan)
    records = (record(base), record(cand, **FAILED), record(control), record(cand, attempt=2, sitting=2))
    runs = claims_of(filled(tmp_path / "o", plan, *records), plan)[0].runs
    assert [r.arm for r in runs] == ["base", "cand", "base-control"]
    assert "attempt 2, before it: 1 of 4 requests failed" in runs[1].source.note
    assert "its round was measured in 2 sittings" in runs[0].source.note


def test_the_claim_file_is_read_by_the_referee(tmp_path: Path, make_plan: Callable[..., Plan]) -> None:
    """`read` of the folder gives the same claims."""
    plan = make_plan()
    folder = filled(tmp_path / "o", plan, *map(record, schedule(plan)))
    assert write_claim_file(folder, plan) == folder / "claims.yaml"
    assert read(folder) == claims_of(folder, plan)


def test_many_samples_stay_in_the_request_files(
    tmp_path: Path, make_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit the claims carry the runs' numbers and no single requests."""
    plan = make_plan()
    folder = filled(tmp_path / "o", plan, *map(record, schedule(plan)))
    count = sum(len(v) for c in claims_of(folder, plan) for r in c.runs for v in r.samples.values())
    monkeypatch.setattr(claims_module, "SAMPLES", count - 1)
    assert all(not r.samples for c in claims_of(folder, plan) for r in c.runs)
