"""The files of a source and their digest: one file's own hash, two files' hash of hashes, and device code that is held."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.dispatch.kernel_files import KernelFiles, digest_of, kernel_files, require_held, source_digest
from kda_lab.errors import KernelLoadError

HOST, DEVICE = b"x = 1\n", b"__global__ void f() {}\n"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(folder: Path) -> Path:
    path = folder / "kernel.py"
    path.write_bytes(HOST)
    path.with_suffix(".cu").write_bytes(DEVICE)
    return path


def test_one_file_has_its_own_hash(tmp_path: Path) -> None:
    """A Triton source is its Python file, even with a .cu file beside it."""
    assert source_digest(write(tmp_path), "triton") == sha(HOST)
    assert kernel_files(tmp_path / "kernel.py", HOST, "triton") == KernelFiles(HOST, None)


def test_two_files_have_the_hash_of_their_hashes(tmp_path: Path) -> None:
    """CUDA C++: SHA-256 over both hexadecimal hashes, a newline after each, host code first; names do not enter."""
    expected = sha(f"{sha(HOST)}\n{sha(DEVICE)}\n".encode())
    path = write(tmp_path)
    assert source_digest(path, "cuda") == expected == digest_of(KernelFiles(HOST, DEVICE).hashes)
    renamed = path.rename(tmp_path / "other.py")
    path.with_suffix(".cu").rename(tmp_path / "other.cu")
    assert source_digest(renamed, "cuda") == expected


@given(st.binary(max_size=8), st.binary(max_size=8), st.binary(max_size=8), st.binary(max_size=8))
def test_digest_tells_sources_apart(a: bytes, b: bytes, c: bytes, d: bytes) -> None:
    """Two sources have one digest only when both files are the same, wherever a boundary lies."""
    assert (KernelFiles(a, b).sha256 == KernelFiles(c, d).sha256) == ((a, b) == (c, d))
    assert KernelFiles(a).sha256 != KernelFiles(a, b).sha256


def test_missing_files_are_named(tmp_path: Path) -> None:
    """Neither file may be missing."""
    with pytest.raises(KernelLoadError, match=r"source is '.*absent\.py' \(No such file or directory\); allowed"):
        source_digest(tmp_path / "absent.py", "cuda")
    (tmp_path / "alone.py").write_bytes(HOST)
    words = (
        r"device source is '.*alone\.cu' \(No such file .*allowed: a readable file\. Device code .* beside alone\.py"
    )
    with pytest.raises(KernelLoadError, match=words):
        source_digest(tmp_path / "alone.py", "cuda")


def module(**values: object) -> ModuleType:
    made = ModuleType("made")
    vars(made).update(values)
    return made


def test_module_must_hold_the_very_text() -> None:
    """One top-level string equal to the device code is enough; ends of lines are as read_text gives them."""
    require_held(module(SOURCE=DEVICE.decode(), OTHER=3), "kernel.cu", DEVICE)
    require_held(module(SOURCE="a\nb\n"), "kernel.cu", b"a\r\nb\r")
    words = r"text of kernel\.cu is not held by its host code; allowed: a top-level string: SOURCE = .*was hashed"
    for held in (DEVICE.decode() + " ", DEVICE, None):
        with pytest.raises(KernelLoadError, match=words):
            require_held(module(SOURCE=held), "kernel.cu", DEVICE)


def test_device_code_must_be_text() -> None:
    """Bytes that are not UTF-8 are refused."""
    with pytest.raises(KernelLoadError, match=r"kernel\.cu is no UTF-8 \(.*\); allowed: text in UTF-8"):
        require_held(module(), "kernel.cu", b"\xff\xfe")
