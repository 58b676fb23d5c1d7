"""Tables as a notebook shows them: every line, no index, a caption, the same bytes for the same records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas
from pandas.io.formats.style import Styler

from kda_lab.report.tables import Table


def shown(heads: Sequence[str], lines: Iterable[Sequence[Any]], caption: str = "") -> Styler:
    """A table of all its lines; numbers flush right, text flush left."""
    frame = pandas.DataFrame([list(line) for line in lines], columns=list(heads))
    # pandas draws a random id for each table unless it is given one.
    identity = hashlib.sha256(repr((heads, caption, frame.values.tolist())).encode()).hexdigest()[:8]
    styler = frame.style.hide(axis="index").set_uuid(identity).set_caption(caption)
    return styler.set_table_styles([{"selector": "td, th", "props": "text-align: left; padding: 0.2em 0.8em;"}])


def report_table(table: Table) -> Styler:
    """One of the report's tables."""
    return shown(table.heads, table.lines, table.caption)


def facts(values: Mapping[str, Any], caption: str = "") -> Styler:
    """Names and values, a line each."""
    return shown(("fact", "value"), [(name, _plain(value)) for name, value in values.items()], caption)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items())
    return str(value)


def few(lengths: Sequence[int]) -> str:
    """Up to four lengths one by one; of more their number and range."""
    if len(lengths) <= 4:
        return ", ".join(map(str, lengths))
    return f"{len(lengths)} rows, {min(lengths)} to {max(lengths)}"
