"""A study: every cell within its time, partial results on disk, traces of marked calls."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from kda_lab.projection import marker, study
from kda_lab.projection.plan import ARMS, Plan
from kda_lab.projection.sizes import K3, SMALL
from kda_lab.projection.traces import Profile
from kda_lab.run_folder import read_json_lines

PLAN = Plan(tokens=(1, 3), attn_tp=(8, 16), modes=("graph",), rounds=2, model=SMALL)


def test_every_cell_is_measured_and_written(fakes: ModuleType, tmp_path: Path) -> None:
    """Two sizes, two numbers of tokens, four arms; the provenance stands in the first record only."""
    found = study.run_study(PLAN, fakes.bench(), tmp_path)
    assert [(r["attn_tp"], r["tokens"], r["arm"]) for r in found.records] == [
        (size, tokens, arm) for size in (8, 16) for tokens in (1, 3) for arm in ARMS
    ]
    assert found.skipped == ()
    assert list(read_json_lines(tmp_path / study.FILE)) == json.loads(json.dumps(found.records))
    assert [bool(r.get("provenance")) for r in found.records] == [True] + [False] * 15


def test_no_cell_begins_that_would_not_fit(fakes: ModuleType, tmp_path: Path) -> None:
    """A cell takes 1 s; after the first one 0.5 s are left of 3.5, so the other three are named as not reached."""
    plan = Plan(tokens=(1, 3), attn_tp=(8, 16), modes=("graph",), rounds=2, model=SMALL, seconds=3.5)
    found = study.run_study(plan, fakes.bench(step=1.0), tmp_path)
    reason = "not reached within 3.5 s"
    assert [(r["attn_tp"], r["tokens"], r["reason"]) for r in found.skipped] == [
        (8, 3, reason), (16, 1, reason), (16, 3, reason)
    ]  # fmt: skip
    assert len(found.measured) == 4
    assert len(list(read_json_lines(tmp_path / study.FILE))) == 7


def test_what_was_measured_before_a_failure_is_kept(
    fakes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second cell breaks; the first one's records stand on disk."""
    real, seen = study.measure_cell, []

    def breaking(cell: object, *rest: object) -> object:
        seen.append(cell)
        if len(seen) == 2:
            raise RuntimeError("the device is lost")
        return real(cell, *rest)

    monkeypatch.setattr(study, "measure_cell", breaking)
    with pytest.raises(RuntimeError, match="the device is lost"):
        study.run_study(PLAN, fakes.bench(), tmp_path)
    assert [r["arm"] for r in read_json_lines(tmp_path / study.FILE)] == list(ARMS)


def test_weights_of_one_size_are_in_memory_at_a_time(fakes: ModuleType) -> None:
    """Sets of distinct weights that together exceed what the machine wants rotated."""
    sets = study.draw_sets(8, PLAN, fakes.bench())
    assert len(sets) * sets[0].qkvg.numel() * 2 < 200_000
    assert len({s.qkvg.data_ptr() for s in sets}) == len(sets)
    assert not (sets[0].qkvg == sets[1].qkvg).all()
    assert study.least_gigabytes((1, 8), 315_000_000, K3) == pytest.approx(1.42, abs=0.01)


def test_a_traced_call_begins_with_its_marker(
    fakes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every arm's calls are marked, and its trace is named after it; an empty profile leaves no file."""
    marks: list[int] = []
    monkeypatch.setattr(marker, "mark", lambda flag: marks.append(1))

    def profiled(replay: object, device: object, path: Path, replays: int) -> Profile:
        replay()
        return fakes.profile(replay) if "side" not in path.name else Profile((), "nothing")

    monkeypatch.setattr(study.traces, "profile", profiled)
    files = study.write_traces((8, 3), PLAN, fakes.bench(), tmp_path)
    assert {arm: path.name for arm, path in files.items()} == {
        "five": "five.pt.trace.json.gz", "three": "three.pt.trace.json.gz"
    }  # fmt: skip
    assert len(marks) == 3 * 12
