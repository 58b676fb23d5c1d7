"""Publishing: one step, one exporter at a time, and ten kills that never leave half a kernel."""

from __future__ import annotations

import fcntl
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kda_lab.errors import ExportError
from kda_lab.export import publish
from kda_lab.export.publish import SCRATCH_PREFIX, exchange, export_lock, put_in_place, remove_leftovers, staged_folder

# Publishes version after version, each of many files that all hold the same number, until it is killed.
PUBLISHER = """
import itertools, sys
from pathlib import Path
from kda_lab.export.publish import export_lock, put_in_place, staged_folder
kernels = Path(sys.argv[1])
for version in itertools.count(int(sys.argv[2])):
    files = {f"part{i}.txt": str(version).encode() for i in range(6)}
    with export_lock(kernels), staged_folder(kernels, "toy", files) as staged:
        put_in_place(staged, kernels / "toy")
    if version == int(sys.argv[2]):
        print("started", flush=True)
"""


def held(folder: Path) -> set[str]:
    return {p.read_text() for p in folder.iterdir()}


def test_kill_at_any_moment_leaves_a_whole_kernel(tmp_path: Path) -> None:
    """After each of ten kill -9 at random moments the folder holds one version, whole, and never an older one."""
    moments = random.Random(7)
    last = 1
    for _ in range(10):
        worker = subprocess.Popen([sys.executable, "-c", PUBLISHER, str(tmp_path), str(last)], stdout=subprocess.PIPE)
        assert worker.stdout is not None and worker.stdout.readline() == b"started\n"
        time.sleep(moments.uniform(0, 0.15))
        worker.kill()
        worker.communicate()
        files = sorted(p.name for p in (tmp_path / "toy").iterdir())
        assert files == [f"part{i}.txt" for i in range(6)]
        (version,) = held(tmp_path / "toy")
        assert int(version) >= last
        last = int(version)
    with export_lock(tmp_path):
        assert [p.name for p in tmp_path.iterdir()] == ["toy"]


def test_first_export_needs_no_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is new is put in place by a plain rename."""
    monkeypatch.setattr(publish, "exchange", None)
    with staged_folder(tmp_path, "toy", {"a.txt": b"1"}) as staged:
        put_in_place(staged, tmp_path / "toy")
    assert held(tmp_path / "toy") == {"1"}
    assert [p.name for p in tmp_path.iterdir()] == ["toy"]


def test_new_version_replaces_every_file(tmp_path: Path) -> None:
    """Files that the new version no longer has are gone."""
    for files in ({"a.txt": b"1", "old.txt": b"1"}, {"a.txt": b"2"}):
        with staged_folder(tmp_path, "toy", files) as staged:
            put_in_place(staged, tmp_path / "toy")
    assert [p.name for p in (tmp_path / "toy").iterdir()] == ["a.txt"]


def test_failure_while_staging_leaves_nothing(tmp_path: Path) -> None:
    """An exception before the swap removes the scratch folder and touches nothing else."""
    with pytest.raises(ZeroDivisionError), staged_folder(tmp_path, "toy", {"a.txt": b"1"}):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []


def test_file_system_without_exchange_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel offers no swap, an export over an old version stops and both folders stay as they were."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(publish.ctypes, "CDLL", lambda *a, **k: object())
    with pytest.raises(
        ExportError, match=r"export\.publish: .*kernels_dir is .*; allowed: a file system that can swap two folders"
    ):
        exchange(tmp_path / "new", tmp_path / "old")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "old"]


def test_exchange_reports_the_reason_of_the_system(tmp_path: Path) -> None:
    """A swap with a folder that is not there says so in the system's words."""
    (tmp_path / "new").mkdir()
    with pytest.raises(ExportError, match="No such file or directory"):
        exchange(tmp_path / "new", tmp_path / "absent")


def test_second_exporter_is_refused(tmp_path: Path) -> None:
    """While one process holds the package folder, another export stops at once."""
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(ExportError, match="Another export is running there"), export_lock(tmp_path):
            pass
    finally:
        os.close(handle)


def test_leftovers_of_killed_exports_are_removed(tmp_path: Path) -> None:
    """Only scratch folders go; kernels and files stay."""
    for name in (f"{SCRATCH_PREFIX}abc", "toy"):
        (tmp_path / name / "inner").mkdir(parents=True)
    (tmp_path / "__init__.py").touch()
    assert remove_leftovers(tmp_path) == [f"{SCRATCH_PREFIX}abc"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["__init__.py", "toy"]


def test_folder_that_cannot_be_synced_is_in_place_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the swap a failing sync of the parent folder is no failure of the export."""

    def fail(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(publish, "_sync_folder", fail)
    for text in (b"1", b"2"):
        with staged_folder(tmp_path, "toy", {"a.txt": text}) as staged:
            put_in_place(staged, tmp_path / "toy")
    assert held(tmp_path / "toy") == {"2"}
