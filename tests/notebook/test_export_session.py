"""An export session: evidence first, the facade's answer judged, and nothing exported without both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kda_lab.contracts.facts import CallFacts, call_facts
from kda_lab.errors import ExportError, VerificationError
from kda_lab.notebook import ExportSession, export_session
from kda_lab.ops.protocol import OpSpec

ROOT = Path(__file__).parents[2]
SET = "data/captures/qsa.packed_decode"
CANDIDATE = "notebooks/candidates/qsa.packed_decode/grouped.py"
RUNS = ["reports/h200-replay-qsa-both", "reports/h200-sweep-qsa"]


@pytest.fixture
def session(tmp_path: Path) -> ExportSession:
    """A session on the package's own kernels, which it only reads."""
    return ExportSession.open("test", str(tmp_path / "run"), "qsa.packed_decode", "kda_lab/kernels")


def test_the_committed_runs_are_evidence_for_the_committed_source(session: ExportSession) -> None:
    """63 judged replays and rows of the H200 stand behind the candidate as it is now."""
    html = session.evidence_table(RUNS, CANDIDATE, SET).to_html()
    assert "9.0" in html
    assert ">63<" in html


def test_another_source_has_no_evidence(session: ExportSession, tmp_path: Path) -> None:
    """One more byte in the source and the runs prove nothing for it."""
    other = tmp_path / "grouped.py"
    other.write_bytes((ROOT / CANDIDATE).read_bytes() + b"\n")
    with pytest.raises(ExportError, match="source_sha256"):
        session.evidence_table(RUNS, str(other), SET)


def test_nothing_is_shown_before_the_export(session: ExportSession) -> None:
    """The contract's tables say to run the export first."""
    with pytest.raises(VerificationError, match="Run the export cell first"):
        session.architecture_table()


def test_the_facade_answers_on_this_machine(session: ExportSession) -> None:
    """On a CPU the unforced call is refused and the forced kernel agrees with the pinned output."""
    session.folder = ROOT / "kda_lab" / "kernels" / "qsa_packed_decode_grouped"
    session.call_facade(SET, "tp2r0-q1")
    assert session.facade["rel-L2 against the pinned output"] < 5e-3
    verdict = session.verdict()
    assert verdict.passed, verdict.failures


def test_dispatch_is_explained_without_a_gpu(session: ExportSession) -> None:
    """Dispatched on exactly 9.0, refused on 12.1 with the way to opt in where a kernel compiles for it."""
    assert session.explain(SET, "tp1-q4-saturated").kernel == "qsa_packed_decode_clustered"
    refused = session.explain(SET, "tp1-q4-saturated", capability=(12, 1))
    assert refused.kernel == ""
    assert "KDA_LAB_ALLOW_COMPILED=1" in str(refused)


def test_dispatch_is_explained_with_the_rules_of_the_op(
    session: ExportSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the op itself has against a call is part of the explanation, as it is of the call."""

    def two_rows(spec: OpSpec, inputs: Any, scalars: dict[str, Any], outputs: Any) -> CallFacts:
        return call_facts(spec, inputs, {**scalars, "max_seqlen_q": 2}, outputs)

    monkeypatch.setattr(export_session, "call_facts", two_rows)
    said = session.explain(SET, "tp1-q4-saturated")
    assert said.kernel == ""
    assert "every kernel: max_seqlen_q is 2; allowed: 1. QSA requires max_seqlen_q=1" in str(said)


def test_a_range_is_shown_with_its_step(session: ExportSession, tmp_path: Path) -> None:
    """Lists, ranges and the multiples that a range allows are in the table of shapes as refusals word them."""
    contract = json.loads((ROOT / "kda_lab/kernels/qsa_packed_decode_grouped/contract.json").read_text())
    stepped = {"B": {"minimum": 2, "maximum": 128, "multiple_of": 2}, "HQ": [12, 24], "HKV": 2}
    contract["callable"].insert(0, {"axes": stepped, "basis": "test"})
    session.folder = tmp_path / contract["kernel"]
    session.folder.mkdir()
    (session.folder / "contract.json").write_text(json.dumps(contract))
    shown = session.dispatch_table().to_html()
    assert "B 2..128 (multiples of 2), HQ 12|24, HKV 2" in shown
    assert "B 1..128, HQ 24, HKV 2" in shown


def test_without_the_facade_there_is_no_pass(session: ExportSession) -> None:
    """An export whose kernel was never called does not pass."""
    session.folder = ROOT / "kda_lab" / "kernels" / "qsa_packed_decode_grouped"
    session.facade = {"rel-L2 against the pinned output": float("nan")}
    assert session.verdict().word == "fail"
