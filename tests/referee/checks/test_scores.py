"""Scores: denominators, counting noise, the smallest visible difference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.referee.checks import scores
from kda_lab.referee.claim import Claim, Score
from kda_lab.referee.finding import Finding

FUSION = ((95.814, 95.358, 95.510), (95.282, 95.586, 94.673))


def made(base: tuple[float, ...], cand: tuple[float, ...], questions: int | None, **fields: Any) -> Claim:
    """A claim about GSM8K scores in percent."""
    pairs = [("baseline", v) for v in base] + [("candidate", v) for v in cand]
    told = tuple(Score(arm=a, name="gsm8k", value=v, questions=questions) for a, v in pairs)
    return Claim(name="x", question="score", scores=told, **fields)


def main(claim: Claim) -> Finding:
    """The finding that holds the difference."""
    return next(f for f in scores.check(claim) if f.numbers)


def test_the_fusion_threads_denominator_is_another_one() -> None:
    """Six scores of 1,319 declared questions are multiples of 1/1314 and of no other denominator near it."""
    told = made(*FUSION, 1319)
    assert scores.denominators(1319, told.scores) == (1314,)
    warning = scores.check(told)[0]
    assert (warning.severity, warning.short) == ("warning", "denominator is 1314, not 1319")
    assert "no multiples of 1/1319; 1314 explains all" in warning.sentence


def test_the_fusion_thread_could_not_see_one_point() -> None:
    """-0.38 points, half width 0.93, smallest visible difference 1.3: inconclusive."""
    found = main(made(*FUSION, 1319))
    assert (found.severity, found.short) == ("inconclusive", "MDE 1.3 points")
    assert found.numbers["difference_points"] == pytest.approx(-0.3805, abs=5e-4)
    assert found.numbers["half_width_points"] == pytest.approx(0.93, abs=0.005)
    assert found.numbers["baseline_questions"] == 3 * 1314


def test_one_question_of_200_is_noise() -> None:
    """199 against 198 right decides nothing."""
    assert main(made((99.0,), (99.5,), 200)).severity == "inconclusive"


def test_a_large_difference_is_seen() -> None:
    """60 against 90 percent of 200 questions differ."""
    found = main(made((60.0,), (90.0,), 200))
    assert (found.severity, found.numbers["p"] < 1e-6) == ("note", True)


def test_many_questions_show_equivalence() -> None:
    """Of 20,000 questions, a tenth of a point lies within one point."""
    found = main(made((95.0,), (95.1,), 20_000))
    assert (found.severity, found.short) == ("passed", "margin 1 points")


def test_nobody_erred_is_no_certainty() -> None:
    """All right in both arms still has a counting error."""
    assert 1 < main(made((100.0,), (100.0,), 100)).numbers["mde_points"] < 10


@given(st.integers(50, 400), st.data())
@settings(max_examples=40)
def test_true_shares_are_explained(questions: int, data: st.DataObject) -> None:
    """A share printed with three digits is always explained by its own denominator."""
    right = data.draw(st.lists(st.integers(0, questions), min_size=1, max_size=6))
    told = tuple(Score(arm="a", name="n", value=round(100 * k / questions, 3)) for k in right)
    assert scores.explains(questions, told)
    assert questions in scores.denominators(questions, told)


@pytest.mark.parametrize(
    ("score", "short"),
    [
        ({"value": 101.0}, "score outside 0 to 100"),
        ({"value": float("nan")}, "score outside 0 to 100"),
        ({"value": 90.0, "correct": 46, "questions": 50}, "score is not k/n"),
    ],
    ids=["101", "nan", "k/n"],
)
def test_a_score_that_is_none_is_invalid(score: dict[str, Any], short: str) -> None:
    """Outside 0 to 100, or not the share of its own counts."""
    told = Score.model_validate({"arm": "baseline", "name": "n", **score})
    (found,) = scores.check(Claim(name="x", question="score", scores=(told,)))
    assert (found.severity, found.short) == ("invalid", short)


def test_without_denominators_nothing_is_decided() -> None:
    """Scores of nobody-knows-how-many questions are missing data."""
    (found,) = scores.check(made((95.0,), (96.0,), None))
    assert (found.severity, found.short) == ("inconclusive", "scores missing")
    assert "Scores of both arms and the number of questions are needed" in found.sentence


def test_right_answers_without_their_questions_are_held_against_the_stated_ones() -> None:
    """900 right answers are no share of 100 questions, and 80 are not 90 % of them."""
    for correct in (900, 80):
        told = (
            Score(arm="baseline", name="gsm8k", value=90.0, digits=1, correct=correct),
            Score(arm="candidate", name="gsm8k", value=90.0, digits=1, questions=100),
        )
        (found,) = scores.check(Claim(name="x", question="score", scores=told))
        assert (found.severity, found.short) == ("invalid", "score is not k/n")
        assert f"{correct} right answers of baseline are not 90.0 % of 100 questions" in found.sentence
