"""The referee in a notebook: tables, pictures and a verdict that fails when a claim is judged otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kda_lab.errors import ParameterError, RefereeError, VerificationError
from kda_lab.notebook.referee_session import FILE, RefereeSession
from kda_lab.notebook.session import Session

FUSION = "sglang-36206-kda-fusion"
KIMI = "sglang-32890-kimi-k3"


@pytest.fixture
def referee(tmp_path: Path) -> RefereeSession:
    """Two threads."""
    return RefereeSession.open(Session.open("test", str(tmp_path / "run"), "cpu"), [KIMI, FUSION])


def test_every_claim_has_a_line(referee: RefereeSession) -> None:
    """Name, verdict and reason; the judgements are written beside the figures."""
    html = referee.verdicts().to_html()
    assert html.count("<tr>") == 1 + sum(len(t.claims) for t in referee.threads)
    assert "separated, p = 0.10, n = 3" in html
    records = [json.loads(line) for line in (referee.session.run.path / FILE).read_text().splitlines()]
    assert {r["name"] for r in records} == {c.name for t in referee.threads for c in t.claims}
    assert "KDA projection fusion" in referee.tables().to_html()


def test_the_arithmetic_can_be_redone(referee: RefereeSession) -> None:
    """Lines of the checks that were asked for, and no others."""
    html = referee.arithmetic("c24-throughput-point", "occupancy").to_html()
    assert "23.06 in flight" in html
    assert "published" not in html
    with pytest.raises(ParameterError, match=r"check is 'mood'; allowed: .*occupancy"):
        referee.arithmetic("c24-throughput-point", "mood")
    with pytest.raises(ParameterError, match=r"claim is 'x'; allowed: .*throughput"):
        referee.arithmetic("x")


def test_pictures_are_saved(referee: RefereeSession) -> None:
    """Each beside the records, under its name, and each says what it shows."""
    assert "−2.2 % at the same number" in referee.occupancy_figure("c24-throughput-point").title
    assert "p = 0.10" in referee.power_figure("throughput", [3, 4]).title
    assert "7 do not" not in referee.published_figure().title
    assert {p.name for p in referee.session.run.path.glob("*.png")} == {"occupancy.png", "power.png", "published.png"}


def test_a_claim_without_the_numbers_has_no_picture(referee: RefereeSession) -> None:
    """The occupancy of a kernel and the noise of one run are unknown."""
    with pytest.raises(ParameterError, match="allowed: runs with a rate, and a latency"):
        referee.occupancy_figure("graph")
    with pytest.raises(ParameterError, match="allowed: a claim with several runs an arm"):
        referee.power_figure("graph", [3])


def test_what_does_not_follow_is_listed(referee: RefereeSession) -> None:
    """With the printed and the recomputed number, and where it stands."""
    html = referee.disagreements().to_html()
    assert "-1.00526" in html
    assert "twelve" not in html


def test_the_verdict_holds_each_expectation(referee: RefereeSession) -> None:
    """One claim judged otherwise, or not read, fails the run."""
    passed = referee.verdict({"throughput": "inconclusive(separated", "equality-normal": "invalid"})
    assert passed.passed
    assert passed.evidence == {"claims": 17, "expected": 2, "as_expected": 2}
    failed = referee.verdict({"throughput": "faster", "absent": "slower"})
    with pytest.raises(VerificationError, match=r"throughput: verdict is 'inconclusive.*absent: verdict is 'not read'"):
        failed.raise_if_failed()


def test_an_unknown_thread_is_refused(tmp_path: Path) -> None:
    """The threads that are there are listed."""
    with pytest.raises(RefereeError, match="thread is 'x'; allowed: sglang-36865-nvfp4"):
        RefereeSession.open(Session.open("test", str(tmp_path), "cpu"), ["x"])
