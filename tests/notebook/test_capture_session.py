"""The recording notebook's steps, without the model: what it refuses, says and judges."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kda_lab.captures.agreement import Agreement
from kda_lab.captures.store import CaptureSet
from kda_lab.errors import ParameterError, UnavailableError, VerificationError
from kda_lab.notebook import capture_session
from kda_lab.notebook.capture_session import CaptureSession, disagreement

COMMITTED = Path(__file__).parents[2] / "data" / "captures" / "qsa.packed_decode"
SAME = Agreement("a", 1.0, 0.0, 0.0, 0.0, 0.0, True)


@pytest.fixture
def session(tmp_path: Path) -> CaptureSession:
    """A session over the committed set that writes to a temporary folder."""
    return CaptureSession.open("10_capture_qsa", str(tmp_path / "run"), str(COMMITTED))


def test_never_describes_the_committed_set_and_says_so(session: CaptureSession, tmp_path: Path) -> None:
    """Nothing is recorded; the verdict's evidence says that too."""
    said = session.record(str(tmp_path / "out"), ["tp1"], "never")
    assert said.startswith("Not recorded again, because rerecord is 'never'.") and not (tmp_path / "out").exists()
    verdict = session.verdict()
    written = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert verdict.passed and written["evidence"] == {"captures_recorded": 0, "captures_verified": 15}
    assert "none recorded again: rerecord is 'never'" in written["sentence"]


def test_without_the_extra_auto_describes_and_always_fails(
    session: CaptureSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing package is a reason in one case and an error in the other."""
    monkeypatch.setattr(capture_session, "missing_extra", lambda: "unavailable, because importing gguf raised")
    assert "importing gguf raised" in session.record(str(tmp_path / "out"), ["tp1"], "auto")
    with pytest.raises(UnavailableError, match="importing gguf raised"):
        session.record(str(tmp_path / "out"), ["tp1"], "always")


def test_a_recording_is_compared_with_the_committed_set(
    session: CaptureSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the recorder returns becomes the set at hand, and its captures are counted."""
    monkeypatch.setattr(capture_session, "missing_extra", lambda: "")
    monkeypatch.setattr(capture_session, "record_qsa", lambda text, out, **named: COMMITTED)
    assert session.record(str(tmp_path / "out"), ["tp1"], "auto").startswith("15 captures recorded into ")
    session.agreement_table()
    assert {r.selection_overlap for r in session.records} == {1.0}
    assert session.verdict().evidence == {"captures_recorded": 15, "captures_verified": 15}


def test_the_committed_set_is_never_the_output(session: CaptureSession) -> None:
    """An unknown choice and the committed folder are refused together."""
    words = r"rerecord is 'maybe'; allowed: auto, always, never. out is .*; allowed: another folder"
    with pytest.raises(ParameterError, match=words):
        session.record(str(COMMITTED), ["tp1"], "maybe")


@pytest.mark.parametrize(
    "changes",
    [{"selection_overlap": 0.98}, {"q": 0.02}, {"k": 0.02}, {"v": 0.02}, {"out": 0.02}, {"out": float("nan")}],
)
def test_disagreement_fails_the_verdict(session: CaptureSession, changes: dict[str, float]) -> None:
    """Every number of the comparison can fail the run; NaN is no agreement."""
    assert disagreement(SAME) == ""
    record = replace(SAME, **changes)
    assert disagreement(record).startswith("a: selection in common")
    session.records = [record]
    with pytest.raises(VerificationError, match="fail: 15 committed captures"):
        session.verdict().raise_if_failed()


def test_the_picture_and_the_words_are_of_the_captures_at_hand(session: CaptureSession) -> None:
    """The manifest's own words, and one panel a layer."""
    assert session.folded() == CaptureSet.open(COMMITTED).entry("tp1-q1").folded
    assert len(session.selection_picture("tp1-q4-saturated").axes) == 2
    assert "tp2r1-q12" in session.capture_table().to_html()
