"""The committed traces are what the generator writes, labelled as made up, and small."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kda_lab.referee.slices.generated_files import ARMS
from kda_lab.referee.slices.reading import read_trace

DATA = Path(__file__).parents[3] / "data" / "traces"


def test_the_generator_writes_the_committed_traces(files: dict[str, Path]) -> None:
    """Text to the byte; of the databases the kernels, since their bytes differ with the version of SQLite."""
    assert sorted(files) == sorted(p.name for p in DATA.glob("made_up_*"))
    for name, path in files.items():
        assert read_trace(path).kernels == read_trace(DATA / name).kernels
        if name.endswith(".gz"):
            assert gzip.decompress(path.read_bytes()) == gzip.decompress((DATA / name).read_bytes())


@pytest.mark.parametrize("arm", ARMS)
def test_a_made_up_trace_says_so(arm: str) -> None:
    """In the file itself, in either format."""
    text = json.loads(gzip.decompress((DATA / f"made_up_{arm}.pt.trace.json.gz").read_bytes()))
    with closing(sqlite3.connect(DATA / f"made_up_{arm}.sqlite")) as database:
        label = database.execute("SELECT value FROM META_DATA_EXPORT WHERE name = 'LABEL'").fetchone()[0]
    assert text["kda_lab"] == label
    assert "nothing here was measured" in label


def test_both_formats_hold_the_same_first_step() -> None:
    """Names, streams and counts; the JSON goes on for more steps."""
    for arm in ARMS:
        short = read_trace(DATA / f"made_up_{arm}.sqlite").kernels
        long = read_trace(DATA / f"made_up_{arm}.pt.trace.json.gz").kernels
        assert len(long) == 5 * len(short)
        assert [k.name for k in long[:50] if k.stream == 7] == [k.name for k in short[:50] if k.stream == 7]


def test_the_traces_are_small() -> None:
    """All together below 300 KB."""
    assert sum(p.stat().st_size for p in DATA.iterdir()) < 300_000
