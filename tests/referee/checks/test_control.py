"""A/A controls, drift and blocked order."""

from __future__ import annotations

from kda_lab.referee.checks import control
from kda_lab.referee.claim import Claim, Control, Run
from kda_lab.referee.finding import Finding

QUIET = (100.0, 100.2, 99.9, 100.1)


def checked(again: tuple[float, ...], cand: tuple[float, ...], base: tuple[float, ...] = QUIET) -> list[Finding]:
    """Kernel times of the baseline, a control and the candidate."""
    arms = (("baseline", base), ("again", again), ("candidate", cand))
    runs = tuple(Run(arm=a, metrics={"kernel_us": v}) for a, values in arms for v in values)
    told = (Control(arm="again", repeats="baseline"),)
    return list(control.check(Claim(name="x", metric="kernel_us", runs=runs, controls=told)))


def test_a_quiet_control_passes() -> None:
    """The control lies on the baseline."""
    (found,) = checked((100.05, 99.95, 100.1, 100.0), (95.0, 95.1))
    assert (found.severity, abs(found.numbers["drift_percent"]) < 0.1) == ("passed", True)


def test_a_control_that_differs_is_invalid() -> None:
    """Four runs of the same code, all 5 % slower than the baseline's four: A/A failed."""
    (found,) = checked((105.0, 105.2, 104.9, 105.1), (95.0, 95.1))
    assert (found.severity, found.short) == ("invalid", "A/A failed")
    assert "The baseline against itself differs by +5.00 %" in found.sentence


def test_a_drift_as_large_as_the_effect_decides_nothing() -> None:
    """One adjacent run 2 % off, against an effect of 3 %."""
    (found,) = checked((102.0,), (103.0, 103.1))
    assert (found.severity, found.short) == ("inconclusive", "drift as large as the effect")


def test_a_small_drift_is_let_pass() -> None:
    """0.3 % of drift against 8 %: the source thread's adjacent baseline (sglang PR 36865)."""
    (found,) = checked((265.647,), (289.452,), (266.218,))
    assert found.severity == "passed"
    assert found.arithmetic[1] == "A/B: +8.73 %; drift / effect = 0.02"


def test_a_required_control_is_missed() -> None:
    """A claim that requires a control and has none is undecided."""
    (found,) = control.check(Claim(name="x", requires=("control",)))
    assert (found.severity, found.short) == ("inconclusive", "no A/A control")


def test_the_baseline_may_be_its_own_control() -> None:
    """Alternate runs of the baseline are held against each other."""
    runs = [Run(arm="baseline", metrics={"kernel_us": v}) for v in (100, 110, 101, 111, 99, 109, 100, 112)]
    runs.append(Run(arm="candidate", metrics={"kernel_us": 90}))
    told = (Control(arm="baseline", repeats="baseline"),)
    (found,) = control.check(Claim(name="x", metric="kernel_us", runs=tuple(runs), controls=told))
    assert found.short == "A/A failed"


def test_a_blocked_order_is_seen() -> None:
    """A A B B cannot tell a drift from an effect; A B B A can."""

    def found(orders: tuple[int, ...]) -> list[str]:
        arms = ("baseline", "baseline", "candidate", "candidate")
        runs = tuple(Run(arm=a, order=o, metrics={"kernel_us": 1.0}) for a, o in zip(arms, orders, strict=True))
        return [f.short for f in control.check(Claim(name="x", metric="kernel_us", runs=runs))]

    assert found((1, 2, 3, 4)) == found((3, 4, 1, 2)) == ["blocked order"]
    assert found((1, 4, 2, 3)) == []


def test_one_arm_always_first_is_remarked() -> None:
    """A B A B A B leaves half a round of drift in every pair; A B B A does not."""

    def found(order: tuple[str, ...]) -> list[str]:
        runs = tuple(Run(arm=a, order=i, round=i // 2, metrics={"kernel_us": 1.0}) for i, a in enumerate(order))
        return [f.short for f in control.check(Claim(name="x", metric="kernel_us", runs=runs))]

    assert found(("baseline", "candidate") * 3) == ["same arm always first"]
    assert found(("baseline", "candidate", "candidate", "baseline", "baseline", "candidate")) == []


def test_a_control_that_shows_nothing_meets_no_requirement() -> None:
    """Without runs, of an unknown arm, or the candidate itself under the name of a control."""
    arms = (("baseline", 100.0), ("baseline", 100.1), ("candidate", 95.0), ("candidate", 95.1))
    runs = tuple(Run(arm=a, metrics={"kernel_us": v}) for a, v in arms)
    for arm, repeats in (
        ("again", "baseline"),
        ("again", "bassline"),
        ("baseline", "bassline"),
        ("candidate", "baseline"),
    ):
        told = (Control(arm=arm, repeats=repeats),)
        claim = Claim(name="x", metric="kernel_us", runs=runs, controls=told, requires=("control",))
        found = [(f.severity, f.short) for f in control.check(claim)]
        assert found == [("warning", "control without runs"), ("inconclusive", "no A/A control")]
