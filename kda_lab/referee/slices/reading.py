"""Read a trace file of any known kind, told apart by its first bytes, within a limit of size."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from kda_lab.referee.readers.text import absent
from kda_lab.referee.slices.kernel_list import KernelList, refusal
from kda_lab.referee.slices.kineto import read_kineto
from kda_lab.referee.slices.nsight import read_nsight

SQLITE, GZIP = b"SQLite format 3\0", b"\x1f\x8b"
KINDS = "torch-profiler JSON, the same gzipped, or an Nsight Systems export to SQLite"
SIZE_LIMIT_MB = 256
"""Of JSON after unpacking; parsed, it takes about thirteen times that in memory."""


def read_trace(path: str | Path, size_limit_mb: int = SIZE_LIMIT_MB) -> KernelList:
    """Kernels of a torch-profiler trace (JSON, or gzipped JSON) or of an Nsight Systems export (SQLite).

    Args:
        path: the file; its name does not matter.
        size_limit_mb: most megabytes of JSON, unpacked. SQLite is read row by row and has a limit of rows instead.

    Raises:
        RefereeError: not there, empty, too large, cut, or not what its first bytes promise.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise refusal(str(path), "file", "a folder, pipe or device", "a readable trace file")
    try:
        with path.open("rb") as stream:
            head = stream.read(len(SQLITE))
        if not head:
            raise refusal(str(path), "size", 0, "at least one byte")
        if head == SQLITE:
            return read_nsight(path)
        if not head.startswith(GZIP) and head.lstrip()[:1] not in (b"", b"{", b"["):
            raise refusal(str(path), "first bytes", head, KINDS)
        return read_kineto(str(path), _text(path, head.startswith(GZIP), size_limit_mb))
    except FileNotFoundError as error:
        raise absent(path) from error
    except OSError as error:
        raise refusal(str(path), "file", error.strerror or str(error), "a readable trace file") from error


def _text(path: Path, packed: bool, size_limit_mb: int) -> bytes:
    """The JSON, unpacked; never more than the limit in memory."""
    limit = size_limit_mb * 1_000_000
    try:
        with gzip.open(path) if packed else path.open("rb") as stream:
            text = stream.read(limit + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise refusal(
            str(path), "gzip stream", str(error), "a whole one", "The file may be cut: copy it again."
        ) from error
    if len(text) > limit:
        remedy = "Profile a few steps only, export to SQLite, or raise size_limit_mb in the settings."
        raise refusal(
            str(path), "size of the JSON in MB", f"more than {size_limit_mb}", f"at most {size_limit_mb}", remedy
        )
    return text
