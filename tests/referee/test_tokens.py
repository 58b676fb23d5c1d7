"""Deterministic comparison: identical, differs, not comparable, or an invalid oracle, and where outputs part."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import RefereeError
from kda_lab.referee.token_records import TokenRecord
from kda_lab.referee.tokens import TokenVerdict, compare_outputs, compare_tokens, equality_of

Logprobs = Sequence[float | None] | None


def record(arm: str, ids: Sequence[int], logprobs: Logprobs = None, **fields: Any) -> TokenRecord:
    """One output; prompt `p0`, round 0 and mode `normal` unless said otherwise."""
    values = None if logprobs is None else tuple(logprobs)
    return TokenRecord(**({"prompt": "p0", "mode": "normal"} | fields), arm=arm, token_ids=tuple(ids), logprobs=values)


def judged(*records: TokenRecord, control: str = "") -> TokenVerdict:
    """The one verdict of records in one mode."""
    (verdict,) = compare_tokens(records, "base", "cand", control)
    return verdict


BASE, AGAIN = record("base", [5, 6], [-0.5, -0.25]), record("base", [5, 6], [-0.5, -0.25], round=1)


def test_the_same_outputs_are_identical() -> None:
    """Equal ids and logprobs after an equal control are identical, and the mode is named."""
    verdict = judged(BASE, AGAIN, record("cand", [5, 6], [-0.5, -0.25]))
    assert verdict.word == "identical"
    assert str(verdict) == (
        "identical: 1 of 1 prompts and 2 of 2 tokens identical (ids and logprobs), largest logprob gap 0, over "
        "1 round(s); control: 1 round(s), identical. This holds for mode 'normal' alone."
    )


def test_another_token_is_found_where_it_stands() -> None:
    """The first place of the first prompt is named with both ids and the gap."""
    verdict = judged(BASE, AGAIN, record("cand", [5, 9], [-0.5, -0.75]))
    assert verdict.word == "differs"
    assert "cand round 0 differs at prompt p0 token 1 (ids 6, 9; logprob gap 0.5)" in verdict.reason


def test_another_logprob_differs_though_the_ids_agree() -> None:
    """A logprob that is off by one bit is a difference."""
    verdict = judged(BASE, AGAIN, record("cand", [5, 6], [-0.5, -0.25000000000000006]))
    assert verdict.word == "differs"
    assert "token 1 (ids 6, 6; logprob gap 5.55e-17)" in verdict.reason


def test_a_shorter_output_differs_at_its_end() -> None:
    """Different lengths part where the shorter one ends."""
    verdict = judged(BASE, AGAIN, record("cand", [5], [-0.5]))
    assert "prompt p0 token 1 (ids 6, end of output; logprob gap unknown)" in verdict.reason


def test_a_baseline_that_differs_from_itself_is_no_oracle() -> None:
    """A diverging control makes the verdict invalid, even where the candidate equals the baseline."""
    moved = record("base", [5, 7], [-0.5, -0.75], round=1)
    verdict = judged(BASE, moved, record("cand", [5, 6], [-0.5, -0.25]))
    assert verdict.word == "invalid"
    assert "the baseline differs from itself (base round 1) at prompt p0 token 1 (ids 6, 7" in verdict.reason
    assert "Deterministic mode is needed" in verdict.reason
    assert verdict.candidate is not None
    assert verdict.candidate.identical


def test_a_diverging_control_is_invalid_also_where_the_candidate_differs() -> None:
    """Nothing is blamed on a candidate that the baseline's own spread explains."""
    moved = record("base", [5, 7], [-0.5, -0.75], round=1)
    assert judged(BASE, moved, record("cand", [8, 8], [-0.5, -0.25])).word == "invalid"


def test_without_a_control_there_is_no_verdict() -> None:
    """Equality is refused where nobody ran the baseline twice."""
    verdict = judged(BASE, record("cand", [5, 6], [-0.5, -0.25]))
    assert (verdict.word, "run the baseline twice" in verdict.reason) == ("invalid", True)


def test_the_control_may_be_an_arm() -> None:
    """An arm named as the control is compared with the baseline like a second round."""
    again, cand = record("again", [5, 6], [-0.5, -0.25]), record("cand", [5, 6], [-0.5, -0.25])
    assert judged(BASE, again, cand, control="again").word == "identical"
    assert judged(BASE, record("again", [5, 1], [-0.5, -2.0]), cand, control="again").word == "invalid"


def test_every_round_of_the_candidate_counts() -> None:
    """One diverging round among several is found and named."""
    rounds = [record("cand", [5, 6 + (r == 2)], [-0.5, -0.25], round=r) for r in range(4)]
    assert "cand round 2 differs at" in judged(BASE, AGAIN, *rounds).reason


def test_other_prompts_are_not_comparable() -> None:
    """Prompt sets that differ are listed, never intersected silently."""
    verdict = judged(BASE, AGAIN, record("cand", [5, 6], [-0.5, -0.25], prompt="p1"))
    assert verdict.word == "not comparable"
    assert "cand round 0: other prompts than the baseline: p0 missing, p1 added" in verdict.reason


def test_many_missing_prompts_are_counted() -> None:
    """A long list of prompts is cut and counted."""
    base = [record("base", [1], prompt=str(n), round=r) for n in range(9) for r in (0, 1)]
    verdict = judged(*base, record("cand", [1], prompt="0"))
    assert "1, 2, 3, 4, 5 and 3 more missing, none added" in verdict.reason


def test_a_control_of_other_prompts_is_no_control() -> None:
    """A control that lacks prompts leaves the oracle invalid."""
    base = [record("base", [1], prompt=p) for p in ("a", "b")]
    cand = [record("cand", [1], prompt=p) for p in ("a", "b")]
    verdict = judged(*base, record("base", [1], prompt="a", round=1), *cand)
    assert verdict.word == "invalid"
    assert "the control cannot be compared: base round 1: other prompts than the baseline: b missing" in verdict.reason


def test_another_text_under_the_same_name_is_not_comparable() -> None:
    """A prompt's name stands for one text; digests that differ say it does not."""
    base = [record("base", [1], round=r, prompt_sha256="aa") for r in (0, 1)]
    verdict = judged(*base, record("cand", [1], prompt_sha256="bb"))
    assert "prompt p0 has another text: prompt_sha256 'aa', 'bb'" in verdict.reason


def test_logprobs_on_one_side_are_not_comparable() -> None:
    """An arm without logprobs cannot be compared with one that has them."""
    verdict = judged(BASE, AGAIN, record("cand", [5, 6]))
    assert (verdict.word, "logprobs on one side only" in verdict.reason) == ("not comparable", True)


def test_ids_alone_are_said_to_be_alone() -> None:
    """Without logprobs the verdict names that only ids were compared."""
    verdict = judged(record("base", [1]), record("base", [1], round=1), record("cand", [1]))
    assert (verdict.word, "ids only, no logprobs given" in verdict.reason) == ("identical", True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None], ids=str)
@pytest.mark.parametrize("arm", ["base", "cand"])
def test_a_logprob_that_is_no_number_proves_nothing(value: float | None, arm: str) -> None:
    """NaN in any arm makes the verdict invalid and is located, even where all arms have it."""
    arms = {"base": [-0.5, -0.25], "cand": [-0.5, -0.25]}
    bad = {name: [-0.5, value] if name == arm else values for name, values in arms.items()}
    verdict = judged(record("base", [5, 6], bad["base"]), AGAIN, record("cand", [5, 6], bad["cand"]))
    assert verdict.word == "invalid"
    assert f"the logprob is {value} at arm '{arm}' round 0 prompt p0 token 1" in verdict.reason


def test_outputs_without_a_token_prove_nothing() -> None:
    """Empty outputs agree about nothing."""
    verdict = judged(record("base", []), record("base", [], round=1), record("cand", []))
    assert (verdict.word, "no output of the baseline has a token" in verdict.reason) == ("invalid", True)


def test_modes_are_judged_apart() -> None:
    """Deterministic mode can be identical where the normal one has no oracle."""
    normal = [BASE, record("base", [5, 7], [-0.5, -1.0], round=1), record("cand", [5, 6], [-0.5, -0.25])]
    steady = [r.model_copy(update={"mode": "deterministic"}) for r in (BASE, AGAIN, normal[2])]
    verdicts = compare_tokens([*normal, *steady], "base", "cand")
    assert [(v.mode, v.word) for v in verdicts] == [("deterministic", "identical"), ("normal", "invalid")]


def test_an_arm_missing_from_a_mode_is_not_comparable() -> None:
    """A mode that only one arm ran in has no comparison."""
    records = [BASE, AGAIN, record("cand", [5], [-0.5], mode="deterministic")]
    verdicts = compare_tokens(records, "base", "cand")
    assert {v.mode: v.reason.split(" has")[0] for v in verdicts} == {
        "normal": "arm 'cand'",
        "deterministic": "arm 'base'",
    }
    assert {v.word for v in verdicts} == {"not comparable"}


def test_wrong_arms_are_refused() -> None:
    """Unknown, repeated and doubled arms are errors that list what there is."""
    with pytest.raises(RefereeError, match=r"candidate is 'cnad'; allowed: an arm of the records: base, cand"):
        compare_tokens([BASE, record("cand", [1])], "base", "cnad")
    with pytest.raises(RefereeError, match=r"arms is \['base', 'base'\]; allowed: a name of its own for each"):
        compare_tokens([BASE], "base", "base")
    with pytest.raises(RefereeError, match=r"records is prompt 'p0' twice in arm 'base' round 0"):
        compare_tokens([BASE, BASE, record("cand", [1])], "base", "cand")


def test_equality_facts_of_a_claim() -> None:
    """A verdict becomes the claim's two facts: the control and the candidate."""
    verdict = judged(BASE, AGAIN, record("cand", [5, 9], [-0.5, -0.75]))
    control, candidate = equality_of(verdict, "base", "cand")
    assert (control.left, control.right, control.identical, control.maximum_difference) == ("base", "base", True, 0.0)
    assert (candidate.right, candidate.compared, candidate.equal) == ("cand", 2, 1)
    assert candidate.first_difference == "prompt p0 token 1 (ids 6, 9; logprob gap 0.5)"
    assert equality_of(judged(BASE, record("cand", [1], [-1.0])), "base", "cand") == ()


OUTPUTS = st.dictionaries(
    st.integers(0, 30).map(str),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-0.5, -0.25])), max_size=5),
    min_size=1,
    max_size=5,
)


@settings(max_examples=100)
@given(OUTPUTS, st.randoms(use_true_random=False))
def test_comparison_laws(outputs: dict[str, list[tuple[int, float]]], chance: random.Random) -> None:
    """An output equals itself; a changed id is found, at the first changed place, from either side."""
    a = {p: record("a", [i for i, _ in o], [v for _, v in o], prompt=p) for p, o in outputs.items()}
    assert compare_outputs(a, a).identical
    full = sorted((p for p in a if a[p].token_ids), key=int)
    if not full:
        return
    prompt = chance.choice(full)
    place = chance.randrange(len(a[prompt].token_ids))
    ids = list(a[prompt].token_ids)
    ids[place] += 1
    b = a | {prompt: a[prompt].model_copy(update={"token_ids": tuple(ids)})}
    for made in (compare_outputs(a, b), compare_outputs(b, a)):
        assert made.first is not None
        assert (made.first.prompt, made.first.token) == (prompt, place)
        assert made.identical_tokens == made.tokens - 1
        assert made.identical_prompts == made.prompts - 1


def test_a_gap_is_told_with_what_was_compared() -> None:
    """Where some prompts have logprobs their number stands beside the gap; where none has, no gap is told."""
    bare = record("base", [1], prompt="p1")
    some = judged(BASE, bare, AGAIN, bare.model_copy(update={"round": 1}), record("cand", [5, 6], [-0.5, -0.75]),
                  record("cand", [1], prompt="p1"))  # fmt: skip
    assert "(ids and logprobs of 1 of 2 prompts), largest logprob gap 0.5" in some.reason
    none = judged(bare, bare.model_copy(update={"round": 1}), record("cand", [2], prompt="p1"))
    assert "(ids only, no logprobs given)." in none.reason
    assert "largest" not in none.reason
