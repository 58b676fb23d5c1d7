"""Prompts of a cell: the same for every arm, and salted where no prefix cache may carry over."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from kda_lab.referee.readers.text import json_records, refuse
from kda_lab.referee.serving.plan import Plan, Prompts

Prompt = str | list[int]
_LINES = (
    "time year people way day man thing woman life child world school state family student group country problem hand",
    "part place case week company system program question work number night point home water room mother area money",
    "story fact month lot right study book eye job word business issue side kind head house service friend father",
    "power hour game line end member law car city community name president team minute idea body information back",
    "parent face others level office door health person art war history party result change morning reason research",
    "girl guy moment air teacher force education",
)
WORDS: tuple[str, ...] = tuple(word for line in _LINES for word in line.split())
"""Frequent English words, each one token in most vocabularies."""
SALT_ITEMS = 6
"""Words or ids before each salted prompt: about 10^12 values from the words above."""


def make_prompts(plan: Plan, salt: str, warmup: bool = False) -> list[Prompt]:
    """The prompts of one cell.

    Args:
        plan: how many and of which kind.
        salt: `Cell.salt`; read where the plan salts, and for the warm-up.
        warmup: prompts of their own for the warm-up, so that the measured ones stay out of every cache.
    Raises:
        RefereeError: the prompt file has a bad line.
    """
    count = plan.warmup_requests if warmup else plan.requests
    made = list(_bodies(plan.prompts, count, "warm-up" if warmup else "measured"))
    if not plan.salted and not warmup:
        return made
    # A warm-up that repeated itself from cell to cell would find its own prefix cached.
    generator = random.Random(f"{plan.prompts.seed} salt {salt} {warmup}")  # noqa: S311
    return [_salted(plan.prompts, prompt, generator) for prompt in made]


def _bodies(prompts: Prompts, count: int, stream: str) -> Iterator[Prompt]:
    if prompts.kind == "file":
        lines = _from_file(prompts)
        yield from (lines[i % len(lines)] for i in range(count))
        return
    generator = random.Random(f"{prompts.seed} {stream}")  # noqa: S311
    for _ in range(count):
        if prompts.kind == "words":
            yield " ".join(generator.choices(WORDS, k=prompts.input_tokens))
        else:
            yield [generator.randint(prompts.first_id, prompts.last_id) for _ in range(prompts.input_tokens)]


def _salted(prompts: Prompts, prompt: Prompt, generator: random.Random) -> Prompt:
    """The prompt with its first items replaced, so that its length stays; a file's prompt gets them in front."""
    if isinstance(prompt, list):
        salt = [generator.randint(prompts.first_id, prompts.last_id) for _ in range(SALT_ITEMS)]
        return salt + prompt[SALT_ITEMS:]
    words = generator.choices(WORDS, k=SALT_ITEMS)
    rest = prompt if prompts.kind == "file" else " ".join(prompt.split(" ")[SALT_ITEMS:])
    return f"{' '.join(words)} {rest}"


def _from_file(prompts: Prompts) -> list[str]:
    path = Path(prompts.file)
    found = []
    for line, record in json_records(path):
        text = record.get("prompt")
        if not isinstance(text, str) or not text:
            refuse(path, line, "prompt", f"{text!r:.80}", "a text that is not empty")
        found.append(text)
    return found
