"""Which runs stand against which."""

from __future__ import annotations

import math

import pytest

from kda_lab.referee import arms
from kda_lab.referee.claim import Claim, Control, Run


def run(arm: str, value: float = 1.0, **fields: object) -> Run:
    """A run with a kernel time."""
    return Run.model_validate({"arm": arm, "metrics": {"kernel_us": value}, **fields})


def test_a_control_counts_as_baseline() -> None:
    """Runs of an arm that repeats the baseline stand beside it; another arm's do not."""
    claim = Claim(
        name="x",
        metric="kernel_us",
        runs=(run("baseline"), run("again"), run("other"), run("candidate")),
        controls=(Control(arm="again", repeats="baseline"), Control(arm="other", repeats="candidate")),
    )
    base, cand = arms.sides(claim)
    assert ([r.arm for r in base], [r.arm for r in cand]) == (["baseline", "again"], ["candidate"])


def test_the_graph_is_judged_where_both_have_it() -> None:
    """Else the mode that both share."""
    both = tuple(run(a, mode=m) for a in ("baseline", "candidate") for m in ("eager", "graph"))
    assert arms.judged_mode(Claim(name="x", metric="kernel_us", runs=both)) == "graph"
    assert arms.judged_mode(Claim(name="x", metric="kernel_us", runs=both[:3])) == "eager"


def test_rounds_pair_runs() -> None:
    """Only rounds with both arms count; a run without a round puts all into one."""
    base = [run("baseline", v, round=i) for i, v in enumerate((1.0, 2.0, 3.0))]
    cand = [run("candidate", v, round=i) for i, v in enumerate((4.0, 5.0))]
    assert arms.rounds_of(base, cand, "kernel_us") == ([((1.0,), (4.0,)), ((2.0,), (5.0,))], 1)
    assert arms.rounds_of([*base, run("baseline", 9.0)], cand, "kernel_us")[0] == [((1.0, 2.0, 3.0, 9.0), (4.0, 5.0))]


def test_unusable_values_have_no_typical_one() -> None:
    """NaN, zero and infinity are left out of a median."""
    runs = [run("baseline", v) for v in (math.nan, 0.0, math.inf, 3.0, 5.0)]
    assert arms.typical(runs, "kernel_us") == 4.0
    assert arms.typical(runs, "graph_ms") is None


def test_latency_and_rate_are_rebuilt_from_parts() -> None:
    """TTFT and later tokens give latency, throughput over tokens the request rate."""
    made = Run(
        arm="a",
        output_tokens=11,
        metrics={"ttft_mean_ms": 500.0, "tpot_mean_ms": 50.0, "throughput_tok_s": 22.0},
    )
    assert (arms.end_to_end_ms(made), arms.request_rate_s(made)) == (1000.0, 2.0)
    assert (arms.end_to_end_ms(run("a")), arms.request_rate_s(run("a"))) == (None, None)


def test_thousands_of_runs_are_looked_at_once_each() -> None:
    """Runs in question are picked in one pass: 5,000 equal runs are never compared with one another."""
    runs = tuple(run(a, summarises=1, round=None) for _ in range(2500) for a in ("baseline", "candidate"))
    claim = Claim(name="x", metric="kernel_us", runs=(*runs, run("candidate", superseded=True)))
    compared = 0

    def count(left: Run, right: object) -> bool:
        nonlocal compared
        compared += 1
        return left is right

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Run, "__eq__", count)
        base, cand = arms.sides(claim)
    assert (len(base), len(cand), compared) == (2500, 2500, 0)
