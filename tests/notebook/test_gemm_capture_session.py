"""The NVFP4 recording notebook's steps, without the models: what they record, leave out, say and judge."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kda_lab.captures.nvfp4_agreement import GemmAgreement
from kda_lab.captures.nvfp4_record import FOLDED, PRODUCER
from kda_lab.errors import UnavailableError, VerificationError
from kda_lab.notebook import gemm_capture_session
from kda_lab.notebook.gemm_capture_session import GemmCaptureSession

COMMITTED = Path(__file__).parents[2] / "data" / "captures" / "nvfp4.gemm"
BOTH = ["smollm2", "gemma3"]


@pytest.fixture
def session(tmp_path: Path) -> GemmCaptureSession:
    """A session over the committed set that writes to a temporary folder."""
    return GemmCaptureSession.open("11_capture_nvfp4", str(tmp_path / "run"), str(COMMITTED))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Models that would have been recorded; the recording is the committed set."""
    seen: list[list[str]] = []
    monkeypatch.setattr(
        gemm_capture_session, "record_nvfp4", lambda text, out, models, replace: seen.append(models) or COMMITTED
    )
    return seen


def missing(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Some models cannot be run."""
    reasons = dict.fromkeys(names, "unavailable, because of the test")
    monkeypatch.setattr(gemm_capture_session, "missing_models", lambda: reasons)


def test_never_describes_the_committed_set(session: GemmCaptureSession, tmp_path: Path) -> None:
    """Nothing is recorded; the verdict's evidence says that too."""
    assert "rerecord is 'never'" in session.record(str(tmp_path / "out"), BOTH, "never")
    verdict = session.verdict()
    written = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert verdict.passed and written["evidence"] == {"captures_recorded": 0, "captures_verified": 20}


def test_a_missing_model_is_left_out_and_named(
    session: GemmCaptureSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: list[list[str]]
) -> None:
    """Auto records the other one; always fails; a model that is not asked for does not matter."""
    missing(monkeypatch, "smollm2")
    said = session.record(str(tmp_path / "out"), BOTH, "auto")
    assert recorded == [["gemma3"]] and said.endswith("Left out: smollm2 unavailable, because of the test.")
    assert session.why_not == ""
    with pytest.raises(UnavailableError, match="smollm2 unavailable, because of the test"):
        session.record(str(tmp_path / "out"), BOTH, "always")
    assert "Left out" not in session.record(str(tmp_path / "out"), ["gemma3"], "always")


def test_without_any_model_nothing_is_recorded(
    session: GemmCaptureSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: list[list[str]]
) -> None:
    """Both reasons are said."""
    missing(monkeypatch, *BOTH)
    said = session.record(str(tmp_path / "out"), BOTH, "auto")
    assert recorded == [] and "smollm2 unavailable" in said and "gemma3 unavailable" in said
    assert "none recorded again: smollm2 unavailable" in session.verdict().sentence


def test_a_recording_is_compared_and_its_captures_counted(
    session: GemmCaptureSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: list[list[str]]
) -> None:
    """All twenty agree with themselves."""
    missing(monkeypatch)
    session.record(str(tmp_path / "out"), BOTH, "auto")
    assert "gemma3_down-M9" in session.agreement_table().to_html()
    assert {(r.same_weight, r.x, r.alpha, r.out, r.same_bits) for r in session.records} == {(True, 0.0, 0.0, 0.0, True)}
    assert session.verdict().evidence == {"captures_recorded": 20, "captures_verified": 20}


def test_disagreement_fails_the_verdict(session: GemmCaptureSession) -> None:
    """A weight of other bytes is enough."""
    same = GemmAgreement("a", True, 0.0, 0.0, 0.0, True)
    session.records = [same]
    session.verdict().raise_if_failed()
    session.records = [replace(same, same_weight=False)]
    with pytest.raises(VerificationError, match="fail: 20 committed captures"):
        session.verdict().raise_if_failed()


def test_words_tables_and_pictures_are_of_the_captures_at_hand(session: GemmCaptureSession) -> None:
    """The manifest's own words, a line a capture, a line an operand."""
    assert (session.folded(), session.producer()) == (FOLDED, PRODUCER)
    table = session.capture_table().to_html()
    assert "smollm2_gate_up-M1" in table and "1015 to 1023" in table
    assert len(session.operand_picture().axes) == 2 and len(session.cost_picture().axes) == 1
