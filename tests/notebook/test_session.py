"""A session runs the steps of a notebook, says why nothing was timed, and ends in an honest verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from kda_lab.errors import CaptureError, ParameterError, VerificationError
from kda_lab.notebook import Session
from kda_lab.notebook import session as session_module
from kda_lab.ops.registry import load_op
from kda_lab.timing.rows import TimingRun

SET = "data/captures/qsa.packed_decode"
ROOT = Path(__file__).parents[2]


def copied(folder: Path, *changes: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the committed H200 replay whose timing records went through `changes`."""
    source = ROOT / "reports" / "h200-replay-qsa-both"
    folder.mkdir()
    for name in ("parameters.json", "verify.jsonl"):
        (folder / name).write_bytes((source / name).read_bytes())
    records = [json.loads(line) for line in (source / "timing.jsonl").read_text().splitlines()]
    for record in records:
        for change in changes:
            change(record)
    (folder / "timing.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder


def slow_down(record: dict[str, Any]) -> None:
    """Make the candidate a hundred times slower on one row."""
    if record["arm"] == "grouped" and record["row"] == "tp1-q1":
        record["median_us"] *= 100
        record["samples_us"] = [100 * sample for sample in record["samples_us"]]
        record["bandwidth_gb_s"] /= 100


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


def test_a_set_of_another_op_is_refused(session: Session) -> None:
    """Where a notebook has an op and a folder, both must say the same."""
    assert session.captures(SET, op="qsa.packed_decode").op == "qsa.packed_decode"
    with pytest.raises(ParameterError, match=r"is 'qsa\.packed_decode'; allowed: 'kda\.fold'"):
        session.captures(SET, op="kda.fold")


def test_an_empty_list_of_arms_takes_all(session: Session) -> None:
    """Every candidate of the op's folder, and every arm of the op with the baseline first."""
    roles = [(arm.name, role) for arm, role in session.arms("qsa.compact_kv", [], [])]
    own = [arm.name for arm in load_op("qsa.compact_kv").baselines.ARMS]
    assert [name for name, role in roles if role == "candidate"] == ["ranked"]
    assert roles[1:] == [(own[0], "baseline"), *((name, "peer") for name in own[1:])]


@pytest.mark.parametrize(
    ("trials", "modes", "words"),
    [
        (0, ["cold"], "trials is 0; allowed: at least 1"),
        ("5", ["cold"], "trials is '5'; allowed: a whole number"),
        (True, ["cold"], "trials is True; allowed: a whole number"),
        (5, ["hot"], "mode is 'hot'; allowed: cold, warm, eager, eight"),
        (5, ["cold", "cold"], "modes is .*; allowed: a list of cold"),
        (5, "cold", "modes is 'cold'; allowed: a list of cold"),
    ],
)
def test_what_cannot_be_timed_is_refused_before_the_replays(
    session: Session, trials: Any, modes: Any, words: str
) -> None:
    """The step that finds the arms refuses them already; the step that times does so for whoever did not say."""
    with pytest.raises(ParameterError, match=words):
        session.arms("qsa.packed_decode", ["grouped"], ["per_head"], trials, modes)
    arms = session.arms("qsa.packed_decode", ["grouped"], ["per_head"], 3, ["cold", "eight"])
    with pytest.raises(ParameterError, match=words):
        session.time_rows("qsa.packed_decode", [], arms, trials, modes)


def test_a_run_without_modes_only_replays(session: Session) -> None:
    """Replays on a shared card are judged without timings that nobody could trust."""
    arms = session.arms("qsa.packed_decode", ["grouped"], ["per_head"], 5, [])
    assert session.time_rows("qsa.packed_decode", [], arms, 5, []).records == []


def test_a_committed_run_is_judged_again_from_its_records(tmp_path: Path) -> None:
    """The committed H200 replay passes the present rules; the reason becomes part of the sentence."""
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("parameters.json", "verify.jsonl", "timing.jsonl"):
        (copy / name).write_bytes((ROOT / "reports" / "h200-replay-qsa-both" / name).read_bytes())
    verdict = Session.reopen(copy).verdict("a test")
    assert verdict.passed, verdict.failures
    assert "candidate passed 30 of 30 replays" in verdict.sentence
    assert verdict.sentence.endswith("30 rows timed: 30 faster; judged again: a test")


def test_a_second_kernel_a_call_fails_the_verdict(tmp_path: Path) -> None:
    """A candidate that launched more kernels than it declares is a failure that names the row."""
    copy = tmp_path / "run"
    copy.mkdir()
    source = ROOT / "reports" / "h200-replay-qsa-both"
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


def test_a_matrix_product_runs_through(session: Session) -> None:
    """One small row of the other op: its class in the table, the interpreter named, its own checks, not timed."""
    rows = session.rows("nvfp4.gemm", ["tiny_d"], [1], ["exact"])
    captures = session.synthetic("nvfp4.gemm", rows, 1)
    assert "class" in session.capture_table(captures).to_html() and "exact" in session.capture_table(captures).to_html()
    arms = session.arms("nvfp4.gemm", ["portable"], ["cublas_bf16"])
    assert "interpreter" in session.arm_table(arms).to_html()
    done = session.replay(captures, arms)
    names = [check["name"] for check in done.records[0]["checks"]]
    assert {"changed_x", "changed_alpha"} < set(names)
    assert session.time_rows("nvfp4.gemm", rows, arms, 5, ["cold", "eight"]).reason == "not timed (interpreter)"
    for drawn in (session.batch_figure(), session.each_figure(), session.roof_figure(), session.eight_figure()):
        assert drawn == "not timed (interpreter)"
    verdict = session.verdict()
    assert verdict.passed, verdict.failures


def test_other_modes_are_timed_without_peers(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cold rows have all arms, rows with eight sets the candidate and the baseline; the records come together."""
    asked: list[tuple[str, list[str]]] = []

    def timed(op, rows, arms, run, *, device, protocol):
        asked.append((protocol.mode, [role for _, role in arms]))
        return TimingRun([{"mode": protocol.mode}], 1, 2)

    monkeypatch.setattr(session_module, "time_rows", timed)
    arms = session.arms("qsa.packed_decode", ["grouped"], ["per_head", "torch_sdpa"])
    found = session.time_rows("qsa.packed_decode", [], arms, 5, ["cold", "eight"])
    assert asked == [("cold", ["candidate", "baseline", "peer"]), ("eight", ["candidate", "baseline"])]
    assert (found.records, found.timed_rows, found.resumed_rows) == ([{"mode": "cold"}, {"mode": "eight"}], 2, 4)
    with pytest.raises(ParameterError, match="mode is 'hot'; allowed: cold, warm, eager, eight"):
        session.time_rows("qsa.packed_decode", [], arms, 5, ["hot"])  # type: ignore[list-item]


def test_figures_of_a_timed_run(tmp_path: Path) -> None:
    """A finished run draws its roof, every baseline and a named peer, and says what was not timed."""
    session = Session.reopen(copied(tmp_path / "run"))
    title = session.roof_figure().title
    assert title.startswith("qsa.packed_decode: clustered reaches")
    assert "grouped reaches" in title
    assert "over flashinfer_ragged_fa2" in session.each_figure().title
    assert "against flashinfer_paged_tc" in session.batch_figure("flashinfer_paged_tc").title
    assert session.batch_figure("nobody") == session.peer_figure("nobody") == "peer nobody was not timed"
    assert session.eight_figure() == "no row was timed with eight sets"


def test_figures_of_rows_without_a_cold_time_say_so(tmp_path: Path) -> None:
    """Tiny calls may all stay warm: the notebook must still reach its verdict."""
    copy = copied(tmp_path / "run")
    lines = [json.loads(line) for line in (copy / "timing.jsonl").read_text().splitlines()]
    warm = [{**r, "state": "warm", "state_reason": "warm"} if r["kind"] == "timing" else r for r in lines]
    (copy / "timing.jsonl").write_text("".join(json.dumps(r) + "\n" for r in warm))
    session = Session.reopen(copy)
    assert "no row has both a cold time and a roof" in session.latency_figure()
    assert isinstance(session.batch_figure(), str) and isinstance(session.roof_figure(), (str, Figure))


def test_rows_with_eight_sets_are_no_failure(tmp_path: Path) -> None:
    """They are warm on purpose; but a wrong answer in one of them fails the run."""
    copy = copied(tmp_path / "run")
    lines = [json.loads(line) for line in (copy / "timing.jsonl").read_text().splitlines()]
    eight = [{**r, "row": f"{r['row']} (eight sets)", "input_sets": 8, "state": "warm", "state_reason": "warm: 8"}
             for r in lines if r["kind"] == "timing" and r["role"] != "peer"]  # fmt: skip
    (copy / "timing.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [*lines, *eight]))
    session = Session.reopen(copy)
    verdict = session.verdict()
    assert verdict.passed, verdict.failures
    assert verdict.evidence["timed_rows"] == 15
    assert "eight-set speedup over cold speedup, geomean 1.00×" in session.eight_figure().title
    assert "(eight sets)" in session.row_table().to_html()
    wrong = next(r for r in eight if r["role"] == "candidate")
    wrong.update(state="invalid", state_reason="invalid: recheck failed: x")
    (copy / "timing.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [*lines, *eight]))
    assert any("(eight sets): invalid" in failure for failure in Session.reopen(copy).verdict().failures)


def test_a_slower_candidate_fails_unless_the_op_falls_back_on_it(tmp_path: Path) -> None:
    """A kernel that the op falls back on serves shapes that nothing else serves: it is counted, and fails nothing."""
    session = Session.reopen(copied(tmp_path / "run", slow_down))
    verdict = session.verdict()
    assert [f.split(",")[0] for f in verdict.failures] == ["grouped on tp1-q1: slower"]
    session.fallbacks = frozenset({"grouped"})
    again = session.verdict()
    assert again.passed, again.failures
    assert again.sentence.endswith("15 rows of fallback grouped: 14 faster, 1 slower")


def test_kernels_in_the_fallback_chain_are_known(session: Session) -> None:
    """The portable kernel stands in its op's chain; the one for QSA does not."""
    session.arms("nvfp4.gemm", ["portable"], ["cublas_bf16"])
    assert session.fallbacks == {"portable"}
    session.arms("qsa.packed_decode", ["grouped"], ["per_head"])
    assert session.fallbacks == frozenset()
