"""A run's folder: the names of its files, writes that are whole or absent, one process at a time.

A run is one executed notebook with its records and figures:

    executed.ipynb   log.txt   parameters.json   provenance.json   verdict.json
    verify.jsonl     one line a (capture, arm): checks, errors, gate power
    timing.jsonl     one line a (row, arm, trial)
    chain.jsonl      one line an (arm, trial) of a chain of layers, and its untimed checks
    rows.csv, rows.parquet, *.svg, *.png, index.html   made by the report
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part."""
    # A lone surrogate, from a broken record say, is shown as its escape instead of stopping a report.
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes files private; a report is for everyone who may read the folder.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON, sorted and indented, atomically; NaN and infinity are refused (ValueError)."""
    write_atomic(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")


def write_json_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write JSON Lines atomically, one record a line."""
    write_atomic(path, "".join(json.dumps(r, sort_keys=True, allow_nan=False) + "\n" for r in records))


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a JSON Lines file; a missing file yields nothing."""
    if path.exists():
        with path.open() as stream:
            yield from (json.loads(line) for line in stream if line.strip())


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run. The folder is made on first use; nothing else is created here."""

    path: Path

    @classmethod
    def at(cls, path: str | Path) -> RunFolder:
        """The run folder at `path`, made when it is not there."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def executed_notebook(self) -> Path:
        return self.path / "executed.ipynb"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def parameters(self) -> Path:
        return self.path / "parameters.json"

    @property
    def provenance(self) -> Path:
        return self.path / "provenance.json"

    @property
    def verdict(self) -> Path:
        return self.path / "verdict.json"

    @property
    def verify_records(self) -> Path:
        return self.path / "verify.jsonl"

    @property
    def timing_records(self) -> Path:
        return self.path / "timing.jsonl"

    @property
    def page(self) -> Path:
        return self.path / "index.html"

    def read_verify(self) -> list[dict[str, Any]]:
        return list(read_json_lines(self.verify_records))

    def read_timing(self) -> list[dict[str, Any]]:
        return list(read_json_lines(self.timing_records))


def lock_folder(folder: Path, refusal: Exception) -> int:
    """Hold a folder against every other process that asks in this way; the lock goes with the process, however it ends.

    Args:
        refusal: raised where another process holds it.
    Returns:
        A descriptor; closing it gives the folder free.
    Raises:
        OSError: the folder cannot be opened.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise refusal from error
    return handle


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A temporary folder beside its final place, so that `os.replace` is one step; removed on exit."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
