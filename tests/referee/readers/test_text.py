"""Files of claims as text: what cannot be read is refused once, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from kda_lab.errors import RefereeError
from kda_lab.referee.readers import text
from kda_lab.referee.readers.text import (
    SHOWN_CHARACTERS,
    complaint,
    json_records,
    parse_json,
    read_text,
    refuse,
    short_name,
    shown,
    table_rows,
)


def put(folder: Path, name: str, content: str | bytes) -> Path:
    """A file with that content."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"content is ''; allowed: at least one .* The file is empty\."),
        (b" \n\t\n", r"content is ''"),
        (b"a\nb\xff\n", r"f\.csv:2: encoding is byte 0xff; allowed: UTF-8"),
    ],
)
def test_text_that_is_no_text_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """Empty files and other encodings are named, with the line."""
    with pytest.raises(RefereeError, match=message):
        read_text(put(tmp_path, "f.csv", content), 100)


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """The limit is said in bytes, and what to do."""
    with pytest.raises(RefereeError, match=r"size is 11 bytes; allowed: at most 10\. Summarise or split the file"):
        read_text(put(tmp_path, "f.csv", "x" * 11), 10)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    """Neither is a file."""
    with pytest.raises(RefereeError, match=r"file '.*absent\.csv' does not exist; allowed: a file that can be read"):
        read_text(tmp_path / "absent.csv", 10)
    with pytest.raises(RefereeError, match="path is no regular file"):
        read_text(tmp_path, 10**9)


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    """Spreadsheets write one; a reader does not see it."""
    assert read_text(put(tmp_path, "f.csv", b"\xef\xbb\xbfarm\n"), 100) == "arm\n"


def test_a_refusal_has_one_form() -> None:
    """Place, field, given, allowed and remedy; no line where the file has none."""
    with pytest.raises(RefereeError, match=r"^referee: a/b\.csv:3: arm is ''; allowed: a name\. Name it\.$"):
        refuse(Path("a/b.csv"), 3, "arm", "''", "a name", "Name it.")
    with pytest.raises(RefereeError, match=r"^referee: a/b\.csv: size is 9; allowed: 8\.$"):
        refuse(Path("a/b.csv"), 0, "size", "9", "8")


def test_a_short_name_is_the_same_everywhere(tmp_path: Path) -> None:
    """Folder and file, without what stands above."""
    folder = tmp_path / "thread"
    folder.mkdir()
    assert short_name(folder / "claims.yaml") == "thread/claims.yaml"


def test_json_is_one_object_or_an_array_or_lines(tmp_path: Path) -> None:
    """All three hold records, with the line where each starts."""
    assert json_records(put(tmp_path, "a.json", '{"a":\n 1}')) == [(1, {"a": 1})]
    assert json_records(put(tmp_path, "b.json", '[{"a": 1}, {"a": 2}]')) == [(1, {"a": 1}), (1, {"a": 2})]
    lines = '{"a": 1}\n\n{"a": 2}\n'
    assert json_records(put(tmp_path, "c.jsonl", lines)) == [(1, {"a": 1}), (3, {"a": 2})]
    assert json_records(put(tmp_path, "d.json", lines)) == [(1, {"a": 1}), (3, {"a": 2})]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "f.jsonl",
            '{"a": 1}\n{"a": ',
            r"f\.jsonl:2: JSON is .*allowed: whole JSON values\. The file seems to be cut off",
        ),
        ("f.json", '{"a": [1, 2', r"f\.json:1: JSON is .*cut off"),
        ("f.jsonl", '{"a": 1}\n[1]\n', r"f\.jsonl:2: record is a list; allowed: a JSON object"),
        ("f.json", "3", r"record is a int; allowed: a JSON object"),
        ("f.json", "[]", r"records is none; allowed: at least one JSON object"),
        ("f.json", '{"a": 1, "a": 2}', r"the key 'a' stands twice"),
        ("f.json", "[" * 200_000, r"JSON is nested too deeply"),
        ("f.json", "plain words", r"f\.json:1: JSON is Expecting value at column 1"),
    ],
)
def test_broken_json_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    """Cut off, malformed, too deep, a key twice, no object: one error with the line."""
    with pytest.raises(RefereeError, match=message):
        json_records(put(tmp_path, name, content))


def test_nan_is_read_since_clients_write_it(tmp_path: Path) -> None:
    """A benchmark over nothing prints NaN; the judge has to see it."""
    value = json_records(put(tmp_path, "f.json", '{"mean_ttft_ms": NaN}'))[0][1]["mean_ttft_ms"]
    assert value != value


def test_a_record_of_too_many_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated texts and token lists belong elsewhere."""
    monkeypatch.setattr(text, "VALUES", 3)
    with pytest.raises(RefereeError, match=r"record is about 4 values; allowed: at most 3\. Leave texts out of it"):
        parse_json(tmp_path / "f.json", "[1, 2, 3, 4, 5]")


def test_a_table_has_a_header_and_rows(tmp_path: Path) -> None:
    """Comments and empty lines do not count; cells are stripped; lines are those of the file."""
    header, rows = table_rows(put(tmp_path, "f.csv", '# note\narm, ttft_ms\n\nbase, "1,0"\n'))
    assert header == ["arm", "ttft_ms"]
    assert list(rows) == [(4, {"arm": "base", "ttft_ms": "1,0"})]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("# a\n", r"table is comments alone"),
        ("arm,arm\n1,2\n", r"f\.csv:1: header is the column 'arm'; allowed: names, each once"),
        ("arm,\n1,2\n", r"header is the column ''"),
        ("arm\n", r"rows is none; allowed: at least one row"),
        ("arm,x\n1,2\n3\n", r"f\.csv:3: row is 1 cells; allowed: 2, as the header has"),
        ('arm\n"open\n', r"f\.csv:2: row is '\"open' \(unexpected end of data\)"),
    ],
)
def test_a_broken_table_is_refused(tmp_path: Path, content: str, message: str) -> None:
    """No header, no rows, ragged rows, an open quote: one error with the line."""
    with pytest.raises(RefereeError, match=message):
        list(table_rows(put(tmp_path, "f.csv", content))[1])


def test_a_long_value_is_cut() -> None:
    """A message shows the beginning and the end of a value, never thousands of digits of it."""
    assert shown("x" * SHOWN_CHARACTERS) == "x" * SHOWN_CHARACTERS
    cut = shown(f"'begin{'9' * 5000}end.csv'")
    assert len(cut) == SHOWN_CHARACTERS
    assert (cut[:6], cut[-8:]) == ("'begin", "end.csv'")
    with pytest.raises(RefereeError) as caught:
        refuse(Path("a.csv"), 3, "k" * 5000, repr("9" * 5000), "a number")
    assert len(str(caught.value)) < 250


def test_a_rule_over_fields_names_its_field() -> None:
    """The words of a rule hold field, value and what is allowed; its parent's whole content is not repeated."""
    item = {"type": "value_error", "loc": ("arms", 1), "msg": "Value error, url is 'x'; allowed: y", "input": {"a": 1}}
    assert complaint(item) == (("arms", 1, "url"), "'x'", "y")
    item["loc"] = ("url",)
    assert complaint(item) == (("url",), "'x'", "y")
    assert complaint({"type": "missing", "loc": ("arm",), "msg": "Field required", "input": {"b": 2}})[1] == "missing"
    assert complaint({"type": "int", "loc": (), "msg": "no", "input": "9" * 5000})[2] == "no"
