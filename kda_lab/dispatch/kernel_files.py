"""The files of one kernel source and their one digest: a Python file, and for CUDA C++ the `.cu` file beside it.

A kernel of language `cuda` is `X.py`, its host code, and `X.cu`, its device code, which the host code reads when
it is imported. What a record says was judged must name both, so the digest covers both.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from kda_lab.errors import KernelLoadError, Reason

ROOM = "dispatch"
CUDA = "cuda"
DEVICE_SUFFIX = ".cu"


def digest_of(hashes: Sequence[str]) -> str:
    """The one digest of a source of several files, from the SHA-256 of each, host code first.

    One file: its own hash. Several: the SHA-256 of their hashes in hexadecimal, each followed by a newline; so
    it follows from the hashes in a contract, and names of files do not enter.
    """
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("".join(f"{h}\n" for h in hashes).encode()).hexdigest()


@dataclass(frozen=True)
class KernelFiles:
    """The bytes of one source, read once: what is judged, hashed, compiled and copied are the same bytes."""

    host: bytes
    device: bytes | None = None
    """Of the `.cu` file; None for a language without one."""

    @property
    def hashes(self) -> tuple[str, ...]:
        """SHA-256 of each file, host code first."""
        parts = [self.host] if self.device is None else [self.host, self.device]
        return tuple(hashlib.sha256(part).hexdigest() for part in parts)

    @property
    def sha256(self) -> str:
        """The digest that records carry as `source_sha256`."""
        return digest_of(self.hashes)


def kernel_files(path: Path, host: bytes, language: str) -> KernelFiles:
    """The files of the source at `path`, whose Python bytes are known; `.cu` is read for language `cuda` only.

    Raises:
        KernelLoadError: the language is `cuda` and there is no readable `.cu` file beside the Python file.
    """
    if language != CUDA:
        return KernelFiles(host)
    file = path.with_suffix(DEVICE_SUFFIX)
    try:
        return KernelFiles(host, file.read_bytes())
    except OSError as error:
        given = f"{str(file)!r} ({error.strerror or error})"
        remedy = f"Device code of language 'cuda' stands beside {path.name}."
        raise KernelLoadError(ROOM, [Reason("device source", given, "a readable file", remedy)]) from error


def source_digest(path: Path, language: str) -> str:
    """The digest of the source at `path`, as records carry it.

    Raises:
        KernelLoadError: a file of it cannot be read.
    """
    try:
        host = path.read_bytes()
    except OSError as error:
        given = f"{str(path)!r} ({error.strerror or error})"
        raise KernelLoadError(ROOM, [Reason("source", given, "a readable file")]) from error
    return kernel_files(path, host, language).sha256


def require_held(module: ModuleType, name: str, device: bytes) -> None:
    """Refuse a module that did not read exactly these bytes of device code when it was imported.

    The module reads its `.cu` file by itself, after the bytes were hashed. One of its top-level strings must be
    that very text; so neither a file that changed in between nor another file is what gets compiled.

    Raises:
        KernelLoadError: `device` is not UTF-8, or no top-level string of the module is its text.
    """
    try:
        # As `Path.read_text` gives it: every end of line is a newline.
        text = io.StringIO(device.decode(), newline=None).read()
    except UnicodeDecodeError as error:
        raise KernelLoadError(ROOM, [Reason(name, f"no UTF-8 ({error.reason})", "text in UTF-8")]) from error
    if not any(isinstance(value, str) and value == text for value in vars(module).values()):
        allowed = 'a top-level string: SOURCE = Path(__file__).with_suffix(".cu").read_text()'
        remedy = "What is compiled must be the text that was hashed."
        raise KernelLoadError(ROOM, [Reason(f"text of {name}", "not held by its host code", allowed, remedy)])
