"""Token records: what is read, and what one clear error says of each bad line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kda_lab.errors import RefereeError
from kda_lab.referee import token_records
from kda_lab.referee.token_records import TokenRecord, read_tokens

GOOD: dict[str, Any] = {"prompt": "p0", "arm": "base", "mode": "normal", "token_ids": [1, 2], "logprobs": [-0.5, -1.0]}


def write(path: Path, *lines: str | dict[str, Any]) -> Path:
    """JSON Lines of the given lines."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_a_record_reads_with_its_defaults(tmp_path: Path) -> None:
    """Round 0 and no logprobs are what is meant where a line says neither; a numbered prompt becomes a name."""
    record = {k: v for k, v in GOOD.items() if k != "logprobs"} | {"prompt": 7}
    (found,) = read_tokens([write(tmp_path / "a.jsonl", "", record)])
    assert found == TokenRecord(prompt="7", arm="base", mode="normal", token_ids=(1, 2))


def test_a_logprob_that_was_not_computed_reads_as_such(tmp_path: Path) -> None:
    """null and NaN are read: the comparison has to see them."""
    line = '{"prompt": "p", "arm": "a", "mode": "m", "token_ids": [1, 2], "logprobs": [null, NaN]}'
    (found,) = read_tokens([write(tmp_path / "a.jsonl", line)])
    assert found.logprobs is not None
    assert found.logprobs[0] is None
    assert found.logprobs[1] != found.logprobs[1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "p0", "arm"', r"a\.jsonl:2: JSON is .*allowed: whole JSON values.* seems to be cut off"),
        ("[1, 2]", r"a\.jsonl:2: record is \[1, 2\]"),
        (GOOD | {"token_ids": [1, "2"]}, r"a\.jsonl:2: token_ids\.1 is '2'; allowed: Input should be a valid integer"),
        (GOOD | {"token_ids": [1, -2]}, r"a\.jsonl:2: token_ids\.1 is -2; .*greater than or equal to 0"),
        (GOOD | {"token_ids": [True, 2]}, r"a\.jsonl:2: token_ids\.0 is True"),
        (GOOD | {"logprobs": [-0.5]}, r"a\.jsonl:2: logprobs is 1 in number; allowed: 2, one a token id"),
        (GOOD | {"logprobs": ["-0.5", -1.0]}, r"a\.jsonl:2: logprobs\.0 is '-0\.5'"),
        (GOOD | {"arm": ""}, r"a\.jsonl:2: arm is ''"),
        ({k: v for k, v in GOOD.items() if k != "mode"}, r"a\.jsonl:2: mode is .*; allowed: Field required"),
        (GOOD | {"logprob": []}, r"a\.jsonl:2: logprob is \[\]; allowed: Extra inputs are not permitted"),
        ('{"prompt": "p", "prompt": "q"}', r"a\.jsonl:2: JSON is the key 'prompt' stands twice"),
        (GOOD, r"a\.jsonl:2: prompt is 'p0' of arm 'base' round 0, already in .*a\.jsonl:1; .*Number the rounds"),
    ],
    ids=lambda v: str(v)[:24] if isinstance(v, str) else "record",
)
def test_a_bad_line_is_named(tmp_path: Path, line: str | dict[str, Any], words: str) -> None:
    """Each bad line gives one error with file, line, field and what is allowed."""
    with pytest.raises(RefereeError, match=words):
        read_tokens([write(tmp_path / "a.jsonl", GOOD, line)])


def test_a_bad_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing, empty, oversized or binary file is refused by name."""
    with pytest.raises(RefereeError, match=r"file '.*none\.jsonl' does not exist"):
        read_tokens([tmp_path / "none.jsonl"])
    with pytest.raises(RefereeError, match=r"e\.jsonl: content is ''"):
        read_tokens([write(tmp_path / "e.jsonl", " ")])
    (tmp_path / "b.jsonl").write_bytes(b"\n\xff\xfe")
    with pytest.raises(RefereeError, match=r"b\.jsonl:2: encoding is byte 0xff; allowed: UTF-8"):
        read_tokens([tmp_path / "b.jsonl"])
    monkeypatch.setattr(token_records, "LARGEST_BYTES", 10)
    with pytest.raises(RefereeError, match=r"g\.jsonl: size is .* bytes; allowed: at most 10"):
        read_tokens([write(tmp_path / "g.jsonl", GOOD)])


def test_a_repeat_in_another_file_is_found(tmp_path: Path) -> None:
    """The same file given twice is a repeat of its records."""
    path = write(tmp_path / "a.jsonl", GOOD)
    with pytest.raises(RefereeError, match="each prompt once an arm, round and mode"):
        read_tokens([path, path])


RECORDS = st.builds(
    lambda prompt, pairs: TokenRecord(
        prompt=prompt,
        arm="a",
        mode="m",
        token_ids=tuple(i for i, _ in pairs),
        logprobs=tuple(v for _, v in pairs),
    ),
    st.text(min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 2**31), st.floats(-50, 0)), max_size=6),
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(RECORDS, min_size=1, max_size=5, unique_by=lambda r: r.prompt))
def test_what_is_written_reads_back(tmp_path: Path, records: list[TokenRecord]) -> None:
    """A record written as JSON is the same record when it is read."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(r.model_dump_json() + "\n" for r in records))
    assert read_tokens([path]) == records
