"""Eager and graph are two results."""

from __future__ import annotations

from kda_lab.referee.checks import modes
from kda_lab.referee.claim import Claim, Mode, Run
from kda_lab.referee.finding import Finding


def checked(*values: tuple[str, Mode, float]) -> tuple[Finding, ...]:
    """Kernel times by arm and mode."""
    runs = tuple(Run(arm=a, mode=m, metrics={"kernel_us": v}) for a, m, v in values)
    return modes.check(Claim(name="x", metric="kernel_us", runs=runs))


def test_a_win_that_a_graph_removes_is_dispatch_cost() -> None:
    """Of 1.7 times eagerly, 1.3 times in a graph stays a win; 1.1 times is dispatch cost."""
    (found,) = checked(
        ("baseline", "eager", 17.0),
        ("candidate", "eager", 10.0),
        ("baseline", "graph", 13.0),
        ("candidate", "graph", 10.0),
    )
    assert (found.severity, found.short) == ("note", "verdict is for graph mode")
    (found,) = checked(
        ("baseline", "eager", 17.0),
        ("candidate", "eager", 10.0),
        ("baseline", "graph", 11.0),
        ("candidate", "graph", 10.0),
    )
    assert (found.severity, found.short) == ("warning", "dispatch cost")
    assert "graph: 10 / 11 - 1 = -9.09 %" in found.arithmetic


def test_arms_in_different_modes_do_not_compare() -> None:
    """A graph against an eager baseline is refused."""
    (found,) = checked(("baseline", "eager", 17.0), ("candidate", "graph", 10.0))
    assert (found.severity, found.short) == ("not comparable", "eager against graph")
    assert "baseline ran in mode eager, candidate in mode graph" in found.sentence


def test_eager_alone_is_remarked() -> None:
    """Nothing is said where both ran in a graph."""
    assert checked(("baseline", "eager", 2.0), ("candidate", "eager", 1.0))[0].short == "eager only"
    assert checked(("baseline", "graph", 2.0), ("candidate", "graph", 1.0)) == ()
