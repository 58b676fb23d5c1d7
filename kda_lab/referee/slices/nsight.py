"""Kernels of an Nsight Systems export to SQLite: the tables CUPTI_ACTIVITY_KIND_KERNEL and StringIds.

Made by `nsys export --type sqlite`. Of the schema that Nsight Systems documents only these columns are read: start and
end in nanoseconds, deviceId, streamId, and a name that points into StringIds. Tables are created when they are
first filled, so a profile without kernels has no kernel table at all.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from kda_lab.errors import RefereeError
from kda_lab.referee.slices.kernel_list import Kernel, KernelList, refusal

KERNELS, STRINGS, GRAPHS = "CUPTI_ACTIVITY_KIND_KERNEL", "StringIds", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
NAME_COLUMNS = ("demangledName", "shortName", "mangledName")
"""Columns that may name a kernel, the fullest name first."""
COLUMNS = ("start", "end", "deviceId", "streamId")
ROW_LIMIT = 5_000_000
"""Kernels read from one file; a step of a large model has a few thousand."""


def read_nsight(path: Path) -> KernelList:
    """Kernels of one export. The file is opened read-only and nothing is written beside it.

    Raises:
        RefereeError: no SQLite database, the tables or columns are missing, or a row is out of range.
    """
    address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            return KernelList.of(str(path), _kernels(str(path), database))
    except sqlite3.Error as error:
        remedy = "Export it again: nsys export --type sqlite."
        raise refusal(str(path), "database", str(error), "a whole SQLite file", remedy) from error


def _kernels(source: str, database: sqlite3.Connection) -> Iterator[Kernel]:
    name = _name_column(source, database)
    count = database.execute(f"SELECT count(*) FROM {KERNELS}").fetchone()[0]  # noqa: S608
    if count > ROW_LIMIT:
        raise refusal(source, f"rows of {KERNELS}", count, f"at most {ROW_LIMIT}", "Profile a few steps only.")
    query = (
        f"SELECT k.rowid, k.start, k.end, k.deviceId, k.streamId, s.value FROM {KERNELS} AS k "  # noqa: S608
        f"LEFT JOIN {STRINGS} AS s ON s.id = k.{name} ORDER BY k.start"
    )
    for row, start, end, device, stream, words in database.execute(query):
        where = f"{KERNELS} row {row}"
        for column, value in zip(COLUMNS, (start, end, device, stream), strict=True):
            if type(value) is not int:
                raise refusal(source, f"{where}, column {column}", value, "a whole number")
        if not isinstance(words, str) or not words:
            raise refusal(source, f"{where}, column {name}", words, f"the id of a text in {STRINGS}")
        if end < start:
            raise refusal(source, f"{where}, column end", end, f"{start} or more, the row's start")
        yield Kernel(words, device, stream, start, end - start)


def _name_column(source: str, database: sqlite3.Connection) -> str:
    """The column that names kernels; raises where a table or a column is missing."""
    tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
    for table in (KERNELS, STRINGS):
        if table not in tables:
            raise _missing_table(source, table, tables)
    columns = {row[1] for row in database.execute(f"PRAGMA table_info({KERNELS})")}
    missing = [c for c in COLUMNS if c not in columns]
    if missing:
        raise refusal(source, f"columns of {KERNELS}", sorted(columns), f"{', '.join(missing)} among them")
    found = [c for c in NAME_COLUMNS if c in columns]
    if not found:
        allowed = f"one of {', '.join(NAME_COLUMNS)} among them"
        raise refusal(source, f"columns of {KERNELS}", sorted(columns), allowed)
    return found[0]


def _missing_table(source: str, table: str, tables: set[str]) -> RefereeError:
    remedy = "Profile with: nsys profile --trace=cuda."
    if table == KERNELS and GRAPHS in tables:
        remedy = "Graphs were traced as a whole: profile with --cuda-graph-trace=node."
    return refusal(source, "tables", sorted(tables)[:12], f"{table} among them", remedy)
