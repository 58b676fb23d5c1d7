"""Prompts: seeded, of the asked length, and salted where a prefix cache could carry over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kda_lab.errors import RefereeError
from kda_lab.referee.serving.plan import Plan
from kda_lab.referee.serving.prompts import SALT_ITEMS, WORDS, make_prompts


@pytest.mark.parametrize("kind", ["words", "token_ids"])
def test_prompts_are_those_of_their_seed(make_plan: Callable[..., Plan], kind: str) -> None:
    """The same seed gives the same prompts, another seed others."""
    one, again, other = (
        make_prompts(make_plan(prompts={"kind": kind, "seed": s, "prefix": "shared"}), "c1 r0 v0") for s in (1, 1, 2)
    )
    assert one == again != other
    assert len(one) == 4


def test_lengths_are_as_asked_with_and_without_salt(make_plan: Callable[..., Plan]) -> None:
    """A salt replaces the first items; it adds none."""
    for prefix in ("shared", "salted"):
        words = make_prompts(make_plan(prompts={"input_tokens": 16, "prefix": prefix}), "x")
        ids = make_prompts(make_plan(prompts={"kind": "token_ids", "input_tokens": 16, "prefix": prefix}), "x")
        assert {len(w.split()) for w in words if isinstance(w, str)} == {16}
        assert {len(i) for i in ids} == {16}


def test_drawn_ids_stay_in_their_range(make_plan: Callable[..., Plan]) -> None:
    """No id lies outside the range that the plan allows."""
    plan = make_plan(prompts={"kind": "token_ids", "first_id": 5, "last_id": 7, "prefix": "salted"})
    assert {i for prompt in make_prompts(plan, "x") for i in prompt} == {5, 6, 7}


def test_salted_cells_share_no_beginning(make_plan: Callable[..., Plan]) -> None:
    """Salted prompts of two cells differ at their beginning and agree after it; shared ones are the same."""
    plan = make_plan(prompts={"input_tokens": 16, "prefix": "salted"})
    a, b = (make_prompts(plan, salt) for salt in ("c1 r0 v0", "c1 r1 v0"))
    for one, two in zip(a, b, strict=True):
        assert isinstance(one, str)
        assert isinstance(two, str)
        assert one.split()[:SALT_ITEMS] != two.split()[:SALT_ITEMS]
        assert one.split()[SALT_ITEMS:] == two.split()[SALT_ITEMS:]
    shared = make_plan(prompts={"prefix": "shared"})
    assert make_prompts(shared, "c1 r0 v0") == make_prompts(shared, "c1 r1 v0")


def test_the_warm_up_has_prompts_of_its_own(make_plan: Callable[..., Plan]) -> None:
    """Warm-up prompts are none of the measured ones, and differ from cell to cell even where those are shared."""
    plan = make_plan(warmup_requests=3, prompts={"prefix": "shared"})
    first, second = (make_prompts(plan, key, warmup=True) for key in ("c1-r0-base", "c1-r1-base"))
    assert len(first) == 3
    assert first != second
    assert not {str(p) for p in first} & {str(p) for p in make_prompts(plan, "")}


def test_a_file_is_taken_in_turn(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    """A prompt file shorter than the cell is repeated; a salt stands before its texts."""
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "one"}\n\n{"prompt": "two", "id": 2}\n')
    given = {"kind": "file", "file": str(file)}
    assert make_prompts(make_plan(prompts=given | {"prefix": "shared"}), "") == ["one", "two", "one", "two"]
    salted = make_prompts(make_plan(prompts=given | {"prefix": "salted"}), "x")
    assert [str(p).split()[SALT_ITEMS:] for p in salted] == [["one"], ["two"], ["one"], ["two"]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"prompt": "a"}\n{"text": "b"}\n', r"p\.jsonl:2: prompt is None; allowed: a text that is not empty"),
        ('{"prompt": ""}\n', r"p\.jsonl:1: prompt is ''"),
        ('{"prompt": "a"}\n[]\n', r"p\.jsonl:2: record is a list; allowed: a JSON object"),
        ("", r"p\.jsonl: content is ''"),
    ],
)
def test_a_bad_prompt_file_is_named(make_plan: Callable[..., Plan], tmp_path: Path, text: str, words: str) -> None:
    """A line without a prompt is refused with file and line."""
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(RefereeError, match=words):
        make_prompts(make_plan(prompts={"kind": "file", "file": str(tmp_path / "p.jsonl")}), "")


def test_the_words_are_words() -> None:
    """Each word is short, lower case and listed once."""
    assert len(set(WORDS)) == len(WORDS) > 80
    assert all(word.isalpha() and word.islower() for word in WORDS)
