"""Verdicts: the order of the reasons, the vocabulary, and the four source threads' key claims."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import RefereeError
from kda_lab.referee.claim import Claim, Control, Coverage, Equality, Gate, Level, Run, Score
from kda_lab.referee.judge import judge, judge_all
from kda_lab.referee.metrics import METRICS
from kda_lab.referee.statistics import words

SLOW, FAST = (100.0, 100.4, 99.7, 100.2, 99.9, 100.1), (97.1, 97.3, 96.8, 97.0, 96.9, 97.2)


def runs(arm: str, values: tuple[float, ...], metric: str = "kernel_us", **fields: Any) -> tuple[Run, ...]:
    """Runs of an arm."""
    return tuple(Run.model_validate({"arm": arm, "metrics": {metric: v}, **fields}) for v in values)


def verdict(base: tuple[float, ...], cand: tuple[float, ...], metric: str = "kernel_us", **fields: Any) -> str:
    """The verdict of two arms."""
    made = (*runs("baseline", base, metric), *runs("candidate", cand, metric))
    return str(judge(Claim(name="x", metric=metric, runs=made, **fields)))


@pytest.mark.parametrize(
    ("base", "cand", "metric", "words"),
    [
        (SLOW, FAST, "kernel_us", "faster(-3.00 %, p = 0.0022)"),
        (FAST, SLOW, "kernel_us", "slower(+3.09 %, p = 0.0022)"),
        (FAST, SLOW, "throughput_tok_s", "faster(+3.09 %, p = 0.0022)"),
        (SLOW, FAST, "throughput_tok_s", "slower(-3.00 %, p = 0.0022)"),
        (SLOW, SLOW, "kernel_us", "equivalent(margin 1 %)"),
        (SLOW, FAST, "nodes", "differs(-3.00 %, p = 0.0022)"),
        (SLOW[:3], FAST[:3], "kernel_us", "inconclusive(separated, p = 0.10, n = 3)"),
    ],
    ids=["time down", "time up", "rate up", "rate down", "same", "count", "three"],
)
def test_the_words_of_speed(base: tuple[float, ...], cand: tuple[float, ...], metric: str, words: str) -> None:
    """Lower times and higher rates are faster; a count only differs."""
    assert verdict(base, cand, metric) == words


def test_three_runs_and_a_control_decide() -> None:
    """The same three runs are faster once the baseline was run three times more."""
    again = runs("again", (100.3, 99.8, 100.0))
    made = (*runs("baseline", SLOW[:3]), *runs("candidate", FAST[:3]), *again)
    claim = Claim(name="x", metric="kernel_us", runs=made, controls=(Control(arm="again", repeats="baseline"),))
    assert judge(claim).verdict == "faster"


def test_the_gravest_reason_comes_first() -> None:
    """One by one the faults are repaired: invalid, not comparable, cold cache, superseded, inconclusive, faster."""
    base = [Run(arm="baseline", metrics={"kernel_us": v}, commit="a") for v in SLOW]
    bad = {"metrics": {"kernel_us": math.nan}, "hardware": "B", "cache_state": "cold", "commit": "old", "order": 1}
    told = [
        ("invalid(value is NaN)", bad),
        ("not comparable(differs in hardware)", bad | {"metrics": {"kernel_us": 97.0}}),
    ]
    base = [r.model_copy(update={"hardware": "A", "cache_state": "warm"}) for r in base]
    steps = [
        *told,
        ("invalid(cache policy differs)", {"hardware": "A", "cache_state": "cold", "commit": "old"}),
        (
            "invalid(superseded: taken before the final commit)",
            {"hardware": "A", "cache_state": "warm", "commit": "old"},
        ),
        ("inconclusive(no A/A control)", {"hardware": "A", "cache_state": "warm", "commit": "new"}),
    ]
    for told_words, fields in steps:
        cand = [
            Run.model_validate({"arm": "candidate", "metrics": {"kernel_us": v}, **fields, "order": None}) for v in FAST
        ]
        made = Claim(name="x", metric="kernel_us", runs=(*base, *cand), commit="new", requires=("control",))
        assert str(judge(made)) == told_words
    assert judge(made.model_copy(update={"requires": ()})).verdict == "faster"


def test_a_zero_baseline_is_invalid() -> None:
    """Nothing is divided by it."""
    assert verdict((0.0, 0.0, 0.0), FAST) == "invalid(baseline value is zero)"


def test_equality_has_its_own_words() -> None:
    """Identical, differs, and invalid where the control failed."""
    same = Equality(left="baseline", right="candidate", identical=True, mode="deterministic")
    control = Equality(left="baseline", right="baseline", identical=True)
    other = Equality(left="baseline", right="candidate", identical=False)

    def found(*items: Equality) -> str:
        return str(judge(Claim(name="x", question="equality", equality=items)))

    assert found(same) == "identical(deterministic mode)"
    assert found(control, other) == "differs(normal mode)"
    assert found(control.model_copy(update={"identical": False}), other) == "invalid(A/A failed in normal mode)"


def test_scores_have_words_too() -> None:
    """Differs, equivalent within points, inconclusive with an MDE."""

    def found(base: float, cand: float, questions: int) -> str:
        told = (("baseline", base), ("candidate", cand))
        made = tuple(Score(arm=a, name="n", value=v, questions=questions) for a, v in told)
        return str(judge(Claim(name="x", question="score", scores=made)))

    assert found(99.0, 99.5, 200) == "inconclusive(MDE 2.4 points)"
    assert found(60.0, 90.0, 200).startswith("differs(+30.00 points, p = ")
    assert found(95.0, 95.1, 20_000) == "equivalent(margin 1 points)"


def test_a_gate_is_vacuous_or_holds() -> None:
    """The packed decode's tolerance at its own scales accepts zeros; a sound one that accepts is equivalence."""

    def found(**fields: Any) -> str:
        return str(judge(Claim(name="x", question="gate", gates=(Gate.model_validate({"name": "g", **fields}),))))

    assert found(accepts={"all zero": True, "no decay": True}) == "invalid(vacuous: accepts all zero)"
    assert found(accepts={"all zero": False}, accepts_candidate=True, tolerance="5e-3") == "equivalent(5e-3)"
    assert found(accepts={"all zero": False}, accepts_candidate=False) == "differs(gate rejects)"


def test_an_empty_question_is_undecided() -> None:
    """Nothing to judge is never a verdict."""
    assert str(judge(Claim(name="x", question="equality"))) == "inconclusive(outputs not compared)"
    assert str(judge(Claim(name="x", question="score"))) == "inconclusive(scores missing)"
    assert str(judge(Claim(name="x"))) == "invalid(missing arm)"


def test_names_are_unique() -> None:
    """Two claims of one name are refused."""
    with pytest.raises(RefereeError, match=r"referee: claim is 'x'; allowed: each name once"):
        judge_all([Claim(name="x"), Claim(name="x")])


def test_the_judge_says_what_the_rule_says() -> None:
    """Sixty claims of six runs an arm, equal and 2 % apart: the verdict is the statistics' word."""
    rng = np.random.default_rng(2)
    logs = 0.01 * rng.standard_normal((12, 60))
    logs[6:, 30:] += 0.02
    told = {"higher": "slower", "lower": "faster", "equivalent": "equivalent", "undecided": "inconclusive"}
    for word, row in zip(words(((6, 6),), logs, 1.0), np.exp(logs).T, strict=True):
        assert verdict(tuple(map(float, row[:6])), tuple(map(float, row[6:]))).startswith(told[word])


NUMBERS = st.sampled_from([math.nan, math.inf, -1.0, 0.0, 1.0, 1.01, 2.0, 1e300, 5e-324])
RUNS = st.builds(
    Run,
    arm=st.sampled_from(["baseline", "candidate", "again"]),
    round=st.none() | st.integers(0, 3),
    order=st.none() | st.integers(0, 9),
    concurrency=st.none() | st.integers(1, 2),
    output_tokens=st.none() | st.integers(0, 2),
    mode=st.sampled_from(["", "eager", "graph"]),
    cache_state=st.sampled_from(["", "cold", "warm"]),
    metrics=st.dictionaries(st.sampled_from(sorted(METRICS)), NUMBERS, max_size=8),
    superseded=st.booleans(),
)
CLAIMS = st.builds(
    Claim,
    name=st.just("x"),
    question=st.sampled_from(["speed", "equality", "score", "gate"]),
    metric=st.sampled_from(["kernel_us", "throughput_tok_s", "nodes", "summed_kernel_us"]),
    runs=st.lists(RUNS, max_size=8).map(tuple),
    controls=st.sampled_from([(), (Control(arm="again", repeats="baseline"),)]),
    scores=st.lists(
        st.builds(
            Score,
            arm=st.sampled_from(["baseline", "candidate"]),
            name=st.just("n"),
            value=st.sampled_from([math.nan, -1.0, 0.0, 50.0, 99.5, 100.0]),
            questions=st.none() | st.integers(1, 9),
        ),
        max_size=4,
    ).map(tuple),
    levels=st.lists(st.builds(Level, name=st.just("l"), baseline_us=NUMBERS, candidate_us=NUMBERS), max_size=3).map(
        tuple
    ),
    coverage=st.lists(st.builds(Coverage, name=st.just("c"), ran_on=st.just("A"), passed=st.just(0)), max_size=1).map(
        tuple
    ),
)


@given(CLAIMS)
@settings(max_examples=150)
def test_every_claim_gets_a_verdict(claim: Claim) -> None:
    """Whatever the numbers are, the judge answers in its vocabulary, twice the same."""
    first = judge(claim)
    assert first.model_dump_json() == judge(claim).model_dump_json()
    assert first.reasons
    assert first.reached == (first.verdict in ("faster", "slower", "equivalent", "identical", "differs"))


def test_one_difference_outweighs_an_agreement() -> None:
    """Of two evaluations, two gates or two modes, the one that differs is the verdict, with its own numbers."""
    pairs = (("gsm8k", 95.0, 95.0), ("mmlu", 80.0, 60.0))
    scores = tuple(
        Score(arm=a, name=n, value=v, digits=1, questions=10_000)
        for n, *values in pairs
        for a, v in zip(("baseline", "candidate"), values, strict=True)
    )
    found = judge(Claim(name="x", question="score", scores=scores))
    assert str(found).startswith("differs(-20.00 points")
    assert found.numbers["difference_points"] == pytest.approx(-20)
    gates = tuple(Gate(name=n, accepts={"zero": False}, accepts_candidate=n == "g1") for n in ("g1", "g2"))
    refused = judge(Claim(name="x", question="gate", gates=gates))
    assert (str(refused), refused.reasons[0][:2]) == ("differs(gate rejects)", "g2")
    modes = tuple(
        Equality(left="baseline", right=right, mode=mode, identical=(right, mode) != ("candidate", "normal"))
        for mode in ("deterministic", "normal")
        for right in ("baseline", "candidate")
    )
    assert str(judge(Claim(name="x", question="equality", equality=modes))) == "differs(normal mode)"


def test_the_change_beside_a_verdict_has_its_sign() -> None:
    """A verdict of slower never stands beside a rise of throughput."""
    base = (100, 100.1, 100.2, 99.9, 99.8, 100.05, 99.95, 100.15, 99.85, 100.12, 99.88, 100.01)
    cand = (101, 101.1, 101.2, 100.9, 100.8, 101.05, 100.95, 30, 31, 29, 30.5, 29.5)
    made = (*runs("baseline", base, "throughput_tok_s"), *runs("candidate", cand, "throughput_tok_s"))
    found = judge(Claim(name="x", runs=made))
    assert (found.verdict, found.detail[0], found.numbers["change_percent"] < 0) == ("slower", "-", True)


def test_values_too_far_apart_are_refused_in_words() -> None:
    """A spread that no measurement has is a fault of units, whatever it would overflow."""
    for low, high in ((1e-250, 1e250), (1e-60, 1e60), (1.0, 2e6)):
        assert verdict((low, high, low, high), (low, high, low)) == "invalid(values too far apart)"


def test_copied_runs_are_inconclusive() -> None:
    """Six times the same value says nothing of the noise."""
    assert verdict((100.0,) * 6, (103.0,) * 6) == "inconclusive(MDE unknown, no spread)"
