"""Token records: what one arm answered to one prompt, as JSON Lines.

Input, one JSON object a line:

    {"prompt": "p7", "arm": "fused", "round": 0, "mode": "deterministic", "token_ids": [11, 8], "logprobs": [-0.5, -1.25]}

`round` may be left out (0). `logprobs` may be left out for a whole file, never for one arm alone. A log-probability that
a server could not compute is null or NaN. `prompt_sha256` may say which text an id stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictFloat, StrictInt, ValidationError, model_validator
from typing_extensions import Self

from kda_lab.contracts.fields import Data
from kda_lab.referee.readers.text import complaint, parse_json, read_text, refuse

LARGEST_BYTES = 256_000_000
"""Of one file: about four million tokens."""

Name = Annotated[str, Field(min_length=1, max_length=200)]


class TokenRecord(Data):
    """The output of one prompt by one arm in one round."""

    prompt: Name
    """Which prompt, the same name in every arm."""
    arm: Name
    round: Annotated[StrictInt, Field(ge=0)] = 0
    mode: Name
    """How the server ran: `normal`, `deterministic`, or a word of one's own."""
    token_ids: tuple[Annotated[StrictInt, Field(ge=0)], ...]
    logprobs: tuple[StrictFloat | None, ...] | None = None
    """Natural logarithms, one a token."""
    prompt_sha256: str = ""

    @model_validator(mode="before")
    @classmethod
    def _numbered_prompts(cls, value: object) -> object:
        if isinstance(value, dict) and type(value.get("prompt")) is int:
            return {**value, "prompt": str(value["prompt"])}
        return value

    @model_validator(mode="after")
    def _one_logprob_a_token(self) -> Self:
        if self.logprobs is not None and len(self.logprobs) != len(self.token_ids):
            raise ValueError(
                f"logprobs are {len(self.logprobs)} in number; allowed: {len(self.token_ids)}, one a token id"
            )
        return self


def read_tokens(paths: Iterable[Path]) -> list[TokenRecord]:
    """All records of the files, in order.

    Raises:
        RefereeError: a file is missing, empty, too large, not UTF-8, has a line that is not such a record, or a record
            stands there twice; the text names file and line.
    """
    found: list[TokenRecord] = []
    places: dict[tuple[str, str, int, str], str] = {}
    for path in paths:
        for line, record in _lines(path):
            key = (record.mode, record.arm, record.round, record.prompt)
            if key in places:
                given = f"{record.prompt!r} of arm {record.arm!r} round {record.round}, already in {places[key]}"
                refuse(path, line, "prompt", given, "each prompt once an arm, round and mode", "Number the rounds.")
            places[key] = f"{path}:{line}"
            found.append(record)
    return found


def _lines(path: Path) -> Iterator[tuple[int, TokenRecord]]:
    text = read_text(path, LARGEST_BYTES)
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, _record(path, number, line)


def _record(path: Path, number: int, line: str) -> TokenRecord:
    try:
        return TokenRecord.model_validate(parse_json(path, line, number))
    except ValidationError as error:
        place, given, allowed = complaint(error.errors(include_url=False)[0])
        refuse(path, number, ".".join(map(str, place)) or "record", given, allowed)
