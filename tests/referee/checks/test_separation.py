"""Separation: what the finding says of p, its floor, lost spreads and left-out runs."""

from __future__ import annotations

from typing import Any

from kda_lab.referee.checks import separation
from kda_lab.referee.claim import Claim, Run
from kda_lab.referee.finding import Finding


def checked(base: list[float], cand: list[float], requires: Any = (), **fields: Any) -> list[Finding]:
    """Throughputs of two arms."""
    pairs = [("baseline", v) for v in base] + [("candidate", v) for v in cand]
    runs = tuple(Run.model_validate({"arm": a, "metrics": {"throughput_tok_s": v}, **fields}) for a, v in pairs)
    return list(separation.check(Claim(name="x", runs=runs, requires=requires)))


def test_three_separated_runs_are_said_to_be_so() -> None:
    """Separated, p = 0.10, n = 3, and how many runs would decide."""
    (found,) = checked([3038.33, 3055.28, 3061.53], [3106.03, 3133.26, 3122.06])
    assert (found.severity, found.short) == ("inconclusive", "separated, p = 0.10, n = 3")
    assert "3 v 3 runs cannot give p below 0.1, whatever the effect" in found.sentence
    assert "4 interleaved runs of each arm find a change of this size" in found.sentence
    assert "20 relabellings: p = 0.1, attainable minimum 0.1" in found.arithmetic


def test_overlapping_runs_name_the_smallest_visible_change() -> None:
    """Four noisy runs: not told from noise, with the MDE."""
    (found,) = checked([100, 101, 102, 103], [101.5, 102.5, 103.5, 100.5])
    assert (found.severity, found.short[:4], found.short[-1]) == ("inconclusive", "MDE ", "%")
    assert found.numbers["mde_percent"] > 1


def test_a_summary_has_lost_its_spread() -> None:
    """Medians of three runs each are one number an arm."""
    (found,) = checked([95.16], [93.12], summarises=3, summary="median")
    assert found.short == "MDE unknown, runs not printed"
    assert "Only summaries of 3 runs were printed: the spread is lost" in found.sentence


def test_equal_summaries_over_rounds_are_still_runs() -> None:
    """Means of three runs at eight operating points: eight pairs."""
    points = [266.218, 522.936, 960.507, 1427.207, 184.624, 359.919, 678.651, 1022.864]
    made = [289.452, 558.694, 1028.929, 1520.322, 190.493, 369.908, 697.802, 1050.453]
    runs = tuple(
        Run(arm=arm, round=i, summarises=3, summary="mean", metrics={"throughput_tok_s": v})
        for arm, values in (("baseline", points), ("candidate", made))
        for i, v in enumerate(values)
    )
    (found,) = separation.check(Claim(name="x", runs=runs))
    assert (found.severity, found.numbers["p"]) == ("passed", 2 / 256)


def test_rounds_that_are_required_must_be_there() -> None:
    """Runs without rounds do not fulfil a claim that requires them."""
    found = checked([100, 101, 100, 101], [110, 111, 110, 112], requires=("rounds",))
    assert [f.short for f in found if f.severity == "inconclusive"] == ["no rounds"]


def test_runs_without_a_partner_are_counted() -> None:
    """A round with one arm only is left out, and said to be."""
    runs = [Run(arm=a, round=i, metrics={"kernel_us": 1.0 + i}) for i in range(7) for a in ("baseline", "candidate")]
    found = separation.check(Claim(name="x", metric="kernel_us", runs=tuple(runs[:-1])))
    assert found[-1].sentence == "1 runs stand in rounds that lack the other arm, and are left out."
