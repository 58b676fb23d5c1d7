"""A run's folder: writes are whole or absent, and records read back as they were written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.run_folder import (
    RunFolder,
    lock_folder,
    read_json_lines,
    scratch_folder,
    write_atomic,
    write_json,
    write_json_lines,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(records=st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=5))
def test_records_round_trip(records: list[dict], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Any JSON records come back as they were, whatever characters they hold."""
    path = tmp_path_factory.mktemp("lines") / "records.jsonl"
    write_json_lines(path, records)
    assert list(read_json_lines(path)) == records


def test_a_missing_file_has_no_records(tmp_path: Path) -> None:
    """Nothing was recorded yet: nothing is read."""
    assert RunFolder.at(tmp_path / "run").read_verify() == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_json_is_refused_and_the_old_file_stays(value: float, tmp_path: Path) -> None:
    """NaN is refused before anything is written."""
    path = tmp_path / "verdict.json"
    write_json(path, {"passed": True})
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(path, {"value": value})
    assert path.read_text() == '{\n  "passed": true\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that dies before the last step changes nothing and leaves no temporary file."""
    path = tmp_path / "page.html"
    write_atomic(path, "old")
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_scratch_folder_goes_away(tmp_path: Path) -> None:
    """It lies beside its final place and is removed, also after an error."""
    with pytest.raises(RuntimeError), scratch_folder(tmp_path, ".new-") as folder:
        (folder / "file").write_text("x")
        assert folder.parent == tmp_path
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_lone_surrogate_is_written_as_its_escape(tmp_path: Path) -> None:
    """A broken name in a record does not stop the page that shows it."""
    write_atomic(tmp_path / "page.html", "a\udc80b")
    assert (tmp_path / "page.html").read_text() == "a\\udc80b"


def test_a_locked_folder_is_refused_until_it_is_given_free(tmp_path: Path) -> None:
    """The second asker gets the error it brought; a folder that is not there is an OSError."""
    handle = lock_folder(tmp_path, ValueError("first"))
    with pytest.raises(ValueError, match="busy"):
        lock_folder(tmp_path, ValueError("busy"))
    os.close(handle)
    os.close(lock_folder(tmp_path, ValueError("busy")))
    with pytest.raises(FileNotFoundError):
        lock_folder(tmp_path / "gone", ValueError("busy"))
