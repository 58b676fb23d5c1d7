"""A session runs the steps of a notebook, says why nothing was timed, and ends in an honest verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kda_lab.errors import CaptureError, ParameterError, VerificationError
from kda_lab.notebook import Session

SET = "data/captures/qsa.packed_decode"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session on the CPU in a folder of its own."""
    return Session.open("test", str(tmp_path / "run"), "cpu")


def test_without_records_the_verdict_is_ambiguous(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    """No evidence never passes, and verdict.json says so."""
    verdict = session.verdict()
    assert (verdict.passed, verdict.word) == (False, "ambiguous")
    assert "no evidence" in capsys.readouterr().out
    assert json.loads(session.run.verdict.read_text())["passed"] is False
    with pytest.raises(VerificationError, match="ambiguous"):
        verdict.raise_if_failed()


def test_a_sweep_row_runs_through(session: Session) -> None:
    """One small row: judged, its mutants killed, not timed, with tables and a figure."""
    rows = session.rows("qsa.packed_decode", ["tp2"], [2], ["short"])
    captures = session.synthetic("qsa.packed_decode", rows, 1)
    arms = session.arms("qsa.packed_decode", ["grouped"], ["torch_sdpa"])
    session.replay(captures, arms, stress_launches=5)
    assert session.time_rows("qsa.packed_decode", rows, arms, 5).reason == "not timed (interpreter)"
    assert session.speedup_figure() == session.row_table() == session.peer_figure() == "not timed (interpreter)"
    assert "tp2-B2-short" in session.replay_table().to_html()
    assert "head_rows" in session.power_table().to_html() or "untouched" in session.power_table().to_html()
    assert session.error_figure().axes
    verdict = session.verdict()
    assert verdict.passed, verdict.failures
    assert "candidate passed 1 of 1 replays" in verdict.sentence
    assert verdict.sentence.endswith("not timed (interpreter)")


def test_captures_are_chosen_by_name(session: Session) -> None:
    """An unknown capture is refused with the known names."""
    assert session.captures(SET, ["tp1-q1"]).names() == ["tp1-q1"]
    assert len(session.captures(SET).names()) == 15
    with pytest.raises(CaptureError, match="name is 'tp3-q1'; allowed: tp1-q1"):
        session.captures(SET, ["tp3-q1"])


@pytest.mark.parametrize(
    ("kernels", "baselines"), [([], ["per_head"]), (["grouped"], [])], ids=["kernels", "baselines"]
)
def test_a_run_needs_both_sides(session: Session, kernels: list[str], baselines: list[str]) -> None:
    """Without a kernel or without a baseline there is nothing to compare."""
    with pytest.raises(ParameterError, match="at least one of each"):
        session.arms("qsa.packed_decode", kernels, baselines)


def test_a_committed_run_is_judged_again_from_its_records(tmp_path: Path) -> None:
    """The committed H200 replay passes the present rules; the reason becomes part of the sentence."""
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("parameters.json", "verify.jsonl", "timing.jsonl"):
        (copy / name).write_bytes((ROOT / "reports" / "h200-replay-qsa" / name).read_bytes())
    verdict = Session.reopen(copy).verdict("a test")
    assert verdict.passed, verdict.failures
    assert "candidate passed 15 of 15 replays" in verdict.sentence
    assert verdict.sentence.endswith("15 rows timed: 15 faster; judged again: a test")


def test_a_second_kernel_a_call_fails_the_verdict(tmp_path: Path) -> None:
    """A candidate that launched more kernels than it declares is a failure that names the row."""
    copy = tmp_path / "run"
    copy.mkdir()
    source = ROOT / "reports" / "h200-replay-qsa"
    for name in ("parameters.json", "verify.jsonl"):
        (copy / name).write_bytes((source / name).read_bytes())
    records = [json.loads(line) for line in (source / "timing.jsonl").read_text().splitlines()]
    for record in records:
        if record["arm"] == "grouped" and record["row"] == "tp1-q1":
            record["kernels"] = {**record["kernels"], "memset": 1}
    (copy / "timing.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    verdict = Session.reopen(copy).verdict("a test")
    assert verdict.failures == ("grouped on tp1-q1: 2 kernels a call, declared 1",)


def test_a_folder_without_parameters_is_no_run(tmp_path: Path) -> None:
    """It cannot be judged again, and the refusal says what to name."""
    with pytest.raises(ParameterError, match="Name a folder that a replay or sweep notebook was run into"):
        Session.reopen(tmp_path)
