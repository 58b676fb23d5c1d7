"""A suite session runs the op's suites on one arm, records them, and ends in an honest verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kda_lab.errors import ParameterError, VerificationError
from kda_lab.notebook import Session, suite_session
from kda_lab.notebook.suite_session import SuiteSession, word
from kda_lab.suites.suite import Case, Outcome, Result, Suite

SET = "data/captures/qsa.packed_decode"
RIGHT = Suite("right", "It holds.", lambda bench: [Case("a", lambda: Outcome(note="same bits")), Case("b", Outcome)])
WRONG = Suite("wrong", "It does not.", lambda bench: [Case("c", lambda: Outcome("too large"))])
ON_GPU = Suite("graphs", "On a GPU.", lambda bench: [], needs_gpu=True)


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session over suites of our own on the op's torch arm."""

    def make(*suites: Suite) -> SuiteSession:
        monkeypatch.setitem(suite_session.SUITES, "qsa.packed_decode", suites)
        session = Session.open("test", str(tmp_path / "run"), "cpu")
        return SuiteSession.open(session, SET, "upstream_schedule", [], 10, 1)

    return make


def test_right_suites_pass(opened: Any) -> None:
    """Counts in the sentence, a line a suite on disk, the skipped one named and not counted."""
    session = opened(RIGHT, ON_GPU)
    assert "It holds." in session.geometry().to_html()
    assert "needs a CUDA device" in session.run(9.0).to_html()
    assert "a: same bits" in session.remarks().to_html()
    verdict = session.verdict()
    assert verdict.passed
    assert "2 of 2 cases of 1 suites right in 0 launches of upstream_schedule; not run: graphs" in verdict.sentence
    lines = [json.loads(line) for line in (session.session.run.path / "suites.jsonl").read_text().splitlines()]
    assert [(r["suite"], r["passed"], r["skipped"]) for r in lines] == [
        ("right", True, ""),
        ("graphs", False, "needs a CUDA device"),
    ]
    assert json.loads(session.session.run.verdict.read_text())["evidence"]["cases"] == 2


def test_a_wrong_suite_fails(opened: Any) -> None:
    """Its fault is a failure of the verdict, which raises."""
    session = opened(RIGHT, WRONG)
    session.run(9.0)
    verdict = session.verdict()
    assert list(verdict.failures) == ["wrong: c: too large"]
    with pytest.raises(VerificationError, match="too large"):
        verdict.raise_if_failed()


def test_nothing_run_is_no_pass(opened: Any) -> None:
    """Only suites for a GPU on a CPU, or none run at all: the verdict does not pass."""
    session = opened(ON_GPU)
    assert not session.verdict().passed
    session.run(9.0)
    assert list(session.verdict().failures) == ["no suite was run"]


def test_the_time_is_up(opened: Any) -> None:
    """A suite that is cut short is named, and what it ran counts."""
    session = opened(RIGHT)
    session.run(1e-9)
    assert "1 of 1 cases of 1 suites right" in session.verdict().sentence
    assert "cut short: right" in session.verdict().sentence


def test_words_of_a_result() -> None:
    """Right, wrong, cut short and not run are told apart."""
    result = Result("s", "", 2, 2, 2, 3, 0.1, (), ())
    wrong = Result("s", "", 1, 2, 0, 3, 0.1, ("c: off",), ())
    skipped = Result("s", "", 0, 0, 0, 0, 0.0, (), (), "needs a CUDA device")
    assert [word(r) for r in (result, wrong, skipped)] == ["right", "WRONG, cut short", "not run: needs a CUDA device"]


def test_a_candidate_is_found_by_its_stem(tmp_path: Path) -> None:
    """The arm of a candidate file has a contract, whose words on overlap are shown."""
    session = Session.open("test", str(tmp_path / "run"), "cpu")
    chosen = SuiteSession.open(session, SET, "grouped", ["empty_rows"], 10, 1)
    assert [s.name for s in chosen.suites] == ["empty_rows"]
    assert "must not overlap" in chosen.geometry().to_html() and "interpreter" in chosen.geometry().to_html()
    chosen.run(0.01)
    assert "launches of grouped (interpreter)" in chosen.verdict().sentence


def test_bad_requests_are_refused(tmp_path: Path) -> None:
    """An op without suites, no stress launches, an unknown suite or kernel."""
    session = Session.open("test", str(tmp_path / "run"), "cpu")
    with pytest.raises(ParameterError, match=r"op of the capture set is 'nvfp4.gemm'; allowed: qsa.packed_decode\."):
        SuiteSession.open(session, "data/captures/nvfp4.gemm", "grouped", [], 10, 1)
    with pytest.raises(ParameterError, match=r"stress_launches is 0; allowed: 1 or more\."):
        SuiteSession.open(session, SET, "grouped", [], 0, 1)
    with pytest.raises(ParameterError, match=r"suites is \['nothing'\]; allowed: known_shapes, every_batch"):
        SuiteSession.open(session, SET, "grouped", ["nothing"], 10, 1)
    with pytest.raises(ParameterError, match="kernels is 'nobody'; allowed: "):
        SuiteSession.open(session, SET, "nobody", [], 10, 1)
