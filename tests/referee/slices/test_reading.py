"""A trace's kind is told by its first bytes, and no file is unpacked beyond the limit."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path

import pytest

from kda_lab.errors import RefereeError
from kda_lab.referee.slices.generated_files import kineto_json, nsight_sqlite
from kda_lab.referee.slices.kernel_list import Kernel
from kda_lab.referee.slices.reading import read_trace

KERNELS = [Kernel("a", 0, 7, 1, 2), Kernel("b", 0, 7, 5, 2)]
TEXT = kineto_json(KERNELS).encode()


@pytest.mark.parametrize("content", [TEXT, gzip.compress(TEXT), nsight_sqlite(KERNELS)], ids=["json", "gzip", "sqlite"])
def test_the_content_decides_and_not_the_name(tmp_path: Path, content: bytes) -> None:
    """Three kinds under one misleading name give the same kernels."""
    path = tmp_path / "trace.txt"
    path.write_bytes(content)
    assert read_trace(path).kernels == tuple(KERNELS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "size is 0; allowed: at least one byte."),
        (b"plain words", "first bytes is b'plain words'; allowed: torch-profiler JSON, the same gzipped, or an Nsight"),
        (gzip.compress(TEXT)[:-9], "gzip stream is '.*'; allowed: a whole one. The file may be cut"),
        (gzip.compress(TEXT)[:20], "gzip stream is '.*'; allowed: a whole one"),
        (b"\x1f\x8bxx", "gzip stream is '.*'; allowed: a whole one"),
        (gzip.compress(TEXT)[:15] + b"\xff" * 40, "gzip stream is '.*'; allowed: a whole one"),
    ],
    ids=["empty", "text", "gzip-tail", "gzip-head", "gzip-method", "gzip-damaged"],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """The words name the file and what is wrong with it."""
    path = tmp_path / "t.json.gz"
    path.write_bytes(content)
    with pytest.raises(RefereeError, match=f"t.json.gz: {message}"):
        read_trace(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """So is a folder, and a pipe, which would wait for a writer."""
    with pytest.raises(RefereeError, match=r"file '.*no\.json' does not exist; allowed: a file that can"):
        read_trace(tmp_path / "no.json")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(RefereeError, match="file is 'a folder, pipe or device'; allowed: a readable trace file"):
            read_trace(path)


def test_a_bomb_is_refused_within_the_limit(tmp_path: Path) -> None:
    """Thirty kilobytes that would unpack to thirty megabytes are refused at one, without unpacking the rest."""
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b" " * 30_000_000))
    message = r"size of the JSON in MB is 'more than 1'; allowed: at most 1\. Profile a few steps"
    tracemalloc.start()
    try:
        with pytest.raises(RefereeError, match=message):
            read_trace(path, size_limit_mb=1)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
