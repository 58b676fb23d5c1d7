"""Files of claims as text: bounded, whole, UTF-8, and every refusal names the file and the line."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from kda_lab.errors import Reason, RefereeError

YAML_BYTES = 2_000_000
"""Typed by hand, read by a parser in Python: more is no claim."""
TABLE_BYTES = 64_000_000
"""Of one CSV, JSON or JSON Lines file."""
VALUES = 2_000_000
"""Numbers, texts and containers in one JSON record."""


SHOWN_CHARACTERS = 80
"""Of a value in a message: a number of 5,000 digits is no message."""
SHOWN_END = 24
_COMPLAINT = re.compile(r"(\w+) (?:is|are|has) (.+?); allowed: (.+)", re.DOTALL)
Location = tuple[str | int, ...]


def shown(given: str) -> str:
    """The `repr` of a value as a message shows it: whole, or `SHOWN_CHARACTERS` of it without its middle."""
    if len(given) <= SHOWN_CHARACTERS:
        return given
    # The end stays too, since that of a path names the file.
    return f"{given[: SHOWN_CHARACTERS - SHOWN_END - 1]}…{given[-SHOWN_END:]}"


def complaint(item: Mapping[str, Any]) -> tuple[Location, str, str]:
    """Where, what was given and what is allowed, of one error of a pydantic model.

    A rule over several fields stands at their parent; its words, `<field> is <given>; allowed: …`, name the field.

    Args:
        item: one of `ValidationError.errors()`.
    """
    place, words = tuple(item["loc"]), str(item["msg"]).removeprefix("Value error, ")
    told = _COMPLAINT.fullmatch(words)
    if told:
        own = place if place and place[-1] == told[1] else (*place, told[1])
        return own, shown(told[2]), told[3].removesuffix(".")
    given = "missing" if item["type"] == "missing" else shown(repr(item.get("input")))
    return place, given, words


def absent(path: Path) -> RefereeError:
    """The error of a file that is not there."""
    return RefereeError("referee", f"file {str(path)!r} does not exist; allowed: a file that can be read.")


def refuse(path: Path, line: int, field: str, given: str, allowed: str, remedy: str = "") -> NoReturn:
    """Raise the one error of a bad file.

    Args:
        path: the file, as its user named it.
        line: 1 for the first line; 0 where the file has none.
        field: what is wrong there.
        given: the `repr` of what stands there.
        allowed: what may stand there.
        remedy: what to do, one sentence.

    Raises:
        RefereeError: always.
    """
    place = f"{path}:{line}" if line else f"{path}"
    raise RefereeError("referee", [Reason(f"{place}: {shown(field)}", shown(given), allowed, remedy)])


def short_name(path: Path) -> str:
    """A file's name with its folder's: what a claim says of its source, the same on every machine."""
    return f"{path.resolve().parent.name}/{path.name}"


def read_text(path: Path, most_bytes: int) -> str:
    """Content of a text file.

    Raises:
        RefereeError: absent, no file, empty, larger than `most_bytes`, or not UTF-8.
    """
    try:
        size = path.stat().st_size
        if not path.is_file():
            refuse(path, 0, "path", "no regular file", "a file or a folder of files")
        if size > most_bytes:
            refuse(
                path,
                0,
                "size",
                f"{size:,} bytes",
                f"at most {most_bytes:,}",
                "Summarise or split the file; keep the rest.",
            )
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        refuse(path, line, "encoding", f"byte {error.object[error.start]:#04x}", "UTF-8")
    except FileNotFoundError as error:
        raise absent(path) from error
    except OSError as error:
        refuse(path, 0, "file", error.strerror or type(error).__name__, "a file that can be read")
    if not text.strip():
        refuse(path, 0, "content", "''", "at least one claim, table row or record", "The file is empty.")
    return text


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"the key {key!r} stands twice")
        made[key] = value
    return made


def parse_json(path: Path, text: str, line: int = 1) -> Any:
    """One JSON value that starts at `line`; NaN and Infinity are read, as benchmark clients write them.

    Raises:
        RefereeError: truncated or malformed, nested too deeply, a key twice, or more than `VALUES` values.
    """
    try:
        value = json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        remedy = "The file seems to be cut off." if error.pos >= len(text.rstrip()) - 1 else ""
        refuse(
            path, line + error.lineno - 1, "JSON", f"{error.msg} at column {error.colno}", "whole JSON values", remedy
        )
    except (ValueError, RecursionError) as error:
        given = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        refuse(path, line, "JSON", given, "whole JSON values")
    if text.count(",") > VALUES:
        refuse(
            path, line, "record", f"about {text.count(','):,} values", f"at most {VALUES:,}", "Leave texts out of it."
        )
    return value


def json_records(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Objects of a JSON or JSON Lines file with the line where each starts.

    A file is one object, one array of objects, or one object a line.

    Raises:
        RefereeError: as `read_text` and `parse_json`, or a value is no object.
    """
    text = read_text(path, TABLE_BYTES)
    lines = text.splitlines()
    if path.suffix == ".jsonl" or (len(lines) > 1 and _is_whole(lines[0])):
        found = [(number, parse_json(path, line, number)) for number, line in enumerate(lines, 1) if line.strip()]
    else:
        value = parse_json(path, text)
        found = [(1, item) for item in value] if isinstance(value, list) else [(1, value)]
    for number, value in found:
        if not isinstance(value, dict):
            refuse(path, number, "record", f"a {type(value).__name__}", "a JSON object")
    if not found:
        refuse(path, 1, "records", "none", "at least one JSON object")
    return found


def _is_whole(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def table_rows(path: Path) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """Columns of a CSV file, and its rows with their lines; cells are stripped, lines that start with # left out.

    Raises:
        RefereeError: no header, a column twice or without a name, a row longer or shorter than the header, or no row.
    """
    lines = read_text(path, TABLE_BYTES).splitlines()
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    if not numbered:
        refuse(path, 1, "table", "comments alone", "a header and rows")
    cells = [(number, _cells(path, number, line)) for number, line in numbered]
    first, header = cells[0]
    for name in header:
        if not name or header.count(name) > 1:
            refuse(path, first, "header", f"the column {name!r}", "names, each once")
    if len(cells) == 1:
        refuse(path, first, "rows", "none", "at least one row below the header")
    return header, _rows(path, header, cells[1:])


def _cells(path: Path, number: int, line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader(io.StringIO(line), strict=True, skipinitialspace=True))]
    except csv.Error as error:
        refuse(path, number, "row", f"{line[:60]!r} ({error})", "comma-separated cells, quotes closed on the same line")


def _rows(path: Path, header: list[str], cells: list[tuple[int, list[str]]]) -> Iterator[tuple[int, dict[str, str]]]:
    for number, row in cells:
        if len(row) != len(header):
            refuse(path, number, "row", f"{len(row)} cells", f"{len(header)}, as the header has")
        yield number, dict(zip(header, row, strict=True))
