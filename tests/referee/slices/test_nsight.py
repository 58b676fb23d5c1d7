"""Nsight Systems exports are read by their documented columns, read-only, and refused with the table or row at fault."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import RefereeError
from kda_lab.referee.slices import nsight
from kda_lab.referee.slices.generated_files import nsight_sqlite
from kda_lab.referee.slices.kernel_list import Kernel
from kda_lab.referee.slices.nsight import read_nsight

KERNELS = [Kernel("k<int>", 0, 7, 100, 50), Kernel("j", 1, 23, 120, 0)]


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """A sound export of two kernels."""
    path = tmp_path / "a b?#%.sqlite"
    path.write_bytes(nsight_sqlite(KERNELS))
    return path


def altered(path: Path, *statements: str) -> Path:
    """The export after some SQL."""
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


def test_an_export_is_read_and_left_alone(export: Path) -> None:
    """Signs in the name do not matter, and no journal appears beside the file."""
    before = export.read_bytes()
    assert read_nsight(export).kernels == tuple(KERNELS)
    assert [p.name for p in export.parent.iterdir()] == [export.name]
    assert export.read_bytes() == before


def test_the_file_is_opened_so_that_nothing_can_be_written(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read-only and immutable: neither a journal nor a lock beside somebody's export."""
    opened: list[str] = []
    real = sqlite3.connect

    def remembered(address: str, *, uri: bool) -> sqlite3.Connection:
        opened.append(address)
        return real(address, uri=uri)

    monkeypatch.setattr(sqlite3, "connect", remembered)
    read_nsight(export)
    assert [address.rpartition("?")[2] for address in opened] == ["mode=ro&immutable=1"]


@settings(max_examples=8)
@given(st.lists(st.builds(Kernel, st.text("abc<>,: ", min_size=1), st.integers(0, 7), st.integers(0, 90), st.integers(0, 10**15),
                          st.integers(0, 10**6)), min_size=1, max_size=6, unique=True))  # fmt: skip
def test_written_kernels_read_back_equal(tmp_path_factory: pytest.TempPathFactory, kernels: list[Kernel]) -> None:
    """Every kernel survives the database."""
    path = tmp_path_factory.mktemp("export") / "t.sqlite"
    path.write_bytes(nsight_sqlite(kernels))
    assert set(read_nsight(path).kernels) == set(kernels)


def test_the_short_name_serves_where_the_full_one_is_missing(export: Path) -> None:
    """Columns differ between versions of the export."""
    altered(export, "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN demangledName")
    assert [k.name for k in read_nsight(export).kernels] == ["k<int>", "j"]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DROP TABLE StringIds", "StringIds among them. Profile with: nsys profile --trace=cuda."),
        ("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_KERNEL among them. Profile with: nsys"),
        (
            "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            "Graphs were traced as a whole: profile with --cuda-graph-trace=node.",
        ),
        ("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN streamId", "allowed: streamId among them."),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 99 WHERE start = 100",
         "CUPTI_ACTIVITY_KIND_KERNEL row 1, column end is 99; allowed: 100 or more, the row's start."),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 1.5 WHERE start = 100", "row 1, column start is 1.5; allowed: a whole"),
        ("DELETE FROM StringIds", "column demangledName is None; allowed: the id of a text in StringIds."),
        ("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL", "kernels is 0; allowed: at least one."),
    ],
    ids=["no-strings", "no-kernels", "graph-level", "no-stream", "end-before-start", "fraction", "no-name", "no-rows"],
)  # fmt: skip
def test_a_damaged_export_is_refused(export: Path, statement: str, message: str) -> None:
    """The table, column or row at fault is named."""
    with pytest.raises(RefereeError, match=re.escape(message)):
        read_nsight(altered(export, statement))


def test_an_export_without_any_name_column_is_refused(export: Path) -> None:
    """A kernel that nobody names cannot be a marker."""
    table = "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN"
    altered(export, f"{table} demangledName", f"{table} shortName")
    with pytest.raises(RefereeError, match="allowed: one of demangledName, shortName, mangledName among them"):
        read_nsight(export)


@pytest.mark.parametrize("keep", [20, 5000, 9000])
def test_a_cut_export_is_refused(export: Path, keep: int) -> None:
    """A file that was not copied to its end."""
    export.write_bytes(export.read_bytes()[:keep])
    with pytest.raises(RefereeError, match=r"database is '.*'; allowed: a whole SQLite file. Export it again"):
        read_nsight(export)


def test_an_export_of_too_many_kernels_is_refused(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is told before anything is read."""
    monkeypatch.setattr(nsight, "ROW_LIMIT", 1)
    with pytest.raises(
        RefereeError, match=r"rows of CUPTI_ACTIVITY_KIND_KERNEL is 2; allowed: at most 1. Profile a few"
    ):
        read_nsight(export)
