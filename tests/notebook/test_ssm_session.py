"""A session of replay and verification: identities by the candidates, signs from records, and what fails the verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kda_lab.errors import ParameterError
from kda_lab.notebook import Session, ssm_session
from kda_lab.notebook.ssm_session import IDENTITIES_FILE, SIGNS, SsmSession
from kda_lab.verify.verdict import Verdict


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> tuple[SsmSession, Verdict]:
    """A session that was walked to its end on the CPU, with a short ring."""
    session = Session.open("test", str(tmp_path_factory.mktemp("run")), "cpu")
    ssm = SsmSession.open(session, places=2, seed=3)
    ssm.verify(2)
    ssm.replay()
    ssm.time(12, 1, 4, 5)
    return ssm, ssm.verdict()


def test_the_candidates_pass_every_identity(walked: tuple[SsmSession, Verdict]) -> None:
    """Nothing is timed on a CPU, the records of the checks are written, and the sentence says both."""
    ssm, verdict = walked
    assert verdict.passed, verdict.failures
    assert "identities hold; not timed (interpreter)" in verdict.sentence
    lines = (ssm.session.run.path / IDENTITIES_FILE).read_text().splitlines()
    assert len(lines) == len(ssm.checks) > 10
    assert {json.loads(line)["passed"] for line in lines} == {True}
    assert ssm.signs() == "not timed (interpreter)"


def test_an_identity_that_does_not_hold_fails_the_verdict(walked: tuple[SsmSession, Verdict]) -> None:
    """It is named; so is a run in which nothing was checked."""
    ssm, _ = walked
    wrong = replace(ssm.checks[0], error=9.0, detail="9 elements differ")
    verdict = replace(ssm, checks=[wrong, *ssm.checks[1:]]).verdict()
    assert not verdict.passed and wrong.stage in verdict.failures[0]
    assert replace(ssm, checks=[]).verdict().failures == ("no identity was checked",)


def row(op: str, arm_us: float, **axes: Any) -> Any:
    return SimpleNamespace(op=op, role="candidate", arm_us=arm_us, noise=0.01, axes=axes)


def timed(monkeypatch: pytest.MonkeyPatch, rows: list[Any]) -> None:
    monkeypatch.setattr(ssm_session, "compare", lambda records: SimpleNamespace(rows=rows))
    monkeypatch.setattr(ssm_session, "read_run", lambda run: None)


ROWS = [
    row("kda.packed_decode", 10.0),
    row("kda.replay_decode", 12.0, predecayed=False),
    row("kda.replay_decode", 10.05, predecayed=True),
    row("kda.verify_ring", 9.0),
    row("kda.verify_snapshots", 6.0),
]


def test_signs_are_told_and_not_judged(walked: tuple[SsmSession, Verdict], monkeypatch: pytest.MonkeyPatch) -> None:
    """One as published, one within the noise, one the other way: the run passes, and says all three."""
    timed(monkeypatch, ROWS)
    ssm = replace(walked[0], not_timed="")
    rows = ssm._rows()
    assert [ssm._ratio(sign, rows)[0] for sign in SIGNS] == ["as published", "same within noise", "the other way"]
    assert ssm._ratio(SIGNS[0], rows)[1] == "1.2× ± 1 %"
    verdict = ssm.verdict()
    assert verdict.passed
    assert "packed decode beats a replay with raw keys: as published" in verdict.sentence


def test_a_sign_without_times_fails_on_a_gpu(
    walked: tuple[SsmSession, Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where times are taken, each sign needs both of its own."""
    timed(monkeypatch, ROWS[:3])
    verdict = replace(walked[0], not_timed="").verdict()
    assert verdict.failures == ("verification with a ring beats snapshots: not timed",)


def test_every_op_of_a_sign_is_timed_under_a_label_of_its_own(
    walked: tuple[SsmSession, Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both verifications have rows of equal shapes: one may not take the other's place in the records."""
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(ssm_session, "why_not_timed", lambda device: "")
    monkeypatch.setattr(ssm_session, "time_rows", lambda op, rows, *_, **__: seen.extend((op, r.label) for r in rows))
    replace(walked[0]).time(12, 32, 4, 5)
    assert len({label for _, label in seen}) == len(seen) == 5
    wanted = {op for sign in SIGNS for op, _ in (sign.first, sign.second)}
    assert {op for op, _ in seen} == wanted


@pytest.mark.parametrize("places", [1, 17, True, "4"])
def test_another_number_of_places_is_refused(places: Any, tmp_path: Path) -> None:
    """Pre-decayed keys bound it on both sides."""
    session = Session.open("test", str(tmp_path), "cpu")
    with pytest.raises(ParameterError, match=r"places is .*; allowed: 2 to 16"):
        SsmSession.open(session, places, 1)
