"""Reading a candidate: imports first, then its declaration, and never a run in this process."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from kda_lab.errors import ExportError
from kda_lab.export.candidate import device_functions, read_candidate

TOY = Path(__file__).with_name("toy_candidate.py")


def edited(tmp_path: Path, old: str, new: str) -> Path:
    text = TOY.read_text()
    assert old in text
    path = tmp_path / "edited.py"
    path.write_text(text.replace(old, new, 1))
    return path


def test_literal_declaration_is_read_without_running(tmp_path: Path) -> None:
    """A file that would fail when run still yields its declaration and the hash of its bytes."""
    path = edited(tmp_path, "@triton.jit", "1 / 0\n\n\n@triton.jit")
    found = read_candidate(path)
    assert found.declaration.kernel == "toy_decode"
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_computed_declaration_is_evaluated_elsewhere(tmp_path: Path) -> None:
    """A CONTRACT that is computed is evaluated in another process; nothing of the file stays in this one."""
    path = edited(tmp_path, '"GROUP": 12', '"GROUP": 3 * 4')
    before = set(sys.modules)
    assert read_candidate(path).declaration.compile_units[0].constants["GROUP"] == 12
    assert not [n for n in set(sys.modules) - before if "edited" in n or "exported" in n]


def test_computed_declaration_that_raises(tmp_path: Path) -> None:
    """A CONTRACT whose evaluation fails is refused with the child's traceback."""
    with pytest.raises(ExportError, match=r"(?s)export\.declaration: fresh process failed .*ZeroDivisionError"):
        read_candidate(edited(tmp_path, '"GROUP": 12', '"GROUP": 12 // 0'))


@pytest.mark.parametrize(
    "line",
    [
        "import kda_lab",
        "from kda_lab.runtime import capability",
        "import numpy as np",
        "from . import other",
        "import sys",
        "import gc",
    ],
)
def test_foreign_imports_are_refused(tmp_path: Path, line: str) -> None:
    """Anything but torch, triton and a short list of modules is refused with its line, nested imports too."""
    with pytest.raises(
        ExportError,
        match=r"export\.imports: edited\.py: import is '.*'; allowed: torch, triton, __future__, collections, .*\. Line \d+",
    ):
        read_candidate(edited(tmp_path, "    heads = q.shape[1]", f"    {line}\n    heads = q.shape[1]"))


def test_imports_are_checked_before_anything_runs(tmp_path: Path) -> None:
    """A computed declaration in a file with a foreign import is not evaluated."""
    path = edited(tmp_path, '"GROUP": 12', '"GROUP": 12 // 0')
    path.write_text("import numpy\n" + path.read_text().replace("from __future__ import annotations\n", ""))
    with pytest.raises(ExportError, match=r"export\.imports"):
        read_candidate(path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("CONTRACT = {", "OTHER = {", r"CONTRACT is absent; allowed: one dict"),
        ('"kernel": "toy_decode"', '"kernel": "Toy Decode"', r"CONTRACT\.kernel is 'Toy Decode'"),
        ('"kernels_per_call": 1,', "", r"CONTRACT\.kernels_per_call is"),
        (
            '"entry": "packed_decode"',
            '"entry": "decode"',
            r"CONTRACT\.entry is 'decode'; allowed: one of \['_toy_kernel', 'packed_decode'\]",
        ),
        ('"function": "_toy_kernel"', '"function": "_other"', r"CONTRACT\.compile_units\.0 is '_other'"),
        (
            '"language": "triton"',
            '"language": "cu" + "da"',
            r"CONTRACT\.language is None; allowed: a literal\. It decides",
        ),
        ("@triton.jit", "@triton.jit(", "is not valid Python"),
    ],
)
def test_wrong_declaration_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    """Each fault of a declaration names its field, what is there and what is allowed."""
    with pytest.raises(ExportError, match=rf"export\.declaration: .*{words}"):
        read_candidate(edited(tmp_path, old, new))


def test_missing_file(tmp_path: Path) -> None:
    """A path without a file is refused."""
    with pytest.raises(ExportError, match=r"candidate is '.*absent\.py'; allowed: a Python file that exists"):
        read_candidate(tmp_path / "absent.py")


CUDA_TOY = Path(__file__).with_name("toy_cuda_candidate.py")


def cuda_copy(tmp_path: Path, old: str = "", new: str = "", device: str | None = None) -> Path:
    text = CUDA_TOY.read_text()
    assert old in text
    path = tmp_path / "copied.py"
    path.write_text(text.replace(old, new, 1) if old else text)
    path.with_suffix(".cu").write_text(CUDA_TOY.with_suffix(".cu").read_text() if device is None else device)
    return path


def test_missing_device_code_is_named(tmp_path: Path) -> None:
    """A candidate of language cuda without its .cu file is refused with the file's name."""
    path = cuda_copy(tmp_path)
    path.with_suffix(".cu").unlink()
    words = r"export\.declaration: .*copied\.cu' \(No such file or directory\); allowed: a readable"
    with pytest.raises(ExportError, match=words):
        read_candidate(path)


def test_cuda_candidate_is_two_files_under_one_digest() -> None:
    """Python and device code are read, both enter the digest, and the .cu file is what is compiled."""
    found = read_candidate(CUDA_TOY)
    device = CUDA_TOY.with_suffix(".cu").read_bytes()
    assert (found.files.host, found.files.device) == (CUDA_TOY.read_bytes(), device)
    hashes = [hashlib.sha256(data).hexdigest() for data in (CUDA_TOY.read_bytes(), device)]
    assert found.sha256 == hashlib.sha256("".join(f"{h}\n" for h in hashes).encode()).hexdigest()
    assert found.compiled == CUDA_TOY.with_suffix(".cu")


def test_device_code_beside_a_triton_candidate_means_nothing(tmp_path: Path) -> None:
    """A .cu file counts for language cuda only."""
    path = edited(tmp_path, "@triton.jit", "@triton.jit")
    before = read_candidate(path).sha256
    path.with_suffix(".cu").write_text("__global__ void f() {}")
    found = read_candidate(path)
    assert (found.sha256, found.files.device, found.compiled) == (before, None, path)


def test_cuda_core_and_pathlib_are_for_cuda_only(tmp_path: Path) -> None:
    """Host code needs them to find, compile and launch its device code; a Triton kernel needs neither."""
    for line in ("from cuda.bindings import driver", "from cuda import core", "import cuda.bindings.driver"):
        read_candidate(cuda_copy(tmp_path, "import functools\n", f"import functools\n{line}\n"))
    for line in ("from cuda.core import Device", "import pathlib"):
        with pytest.raises(
            ExportError, match=r"export\.imports: .* is '(cuda\.core\.Device|pathlib)'; allowed: torch, triton, _"
        ):
            read_candidate(edited(tmp_path, "import torch\n", f"{line}\nimport torch\n"))


@pytest.mark.parametrize(
    "line",
    [
        "import ctypes",
        "from cuda.bindings import nvrtc",
        "from cuda.bindings import driver, runtime",
        "import subprocess",
        "import cuda",
    ],
)
def test_cuda_candidate_may_import_nothing_else(tmp_path: Path, line: str) -> None:
    """Other ways to reach a driver, a compiler or the process are refused."""
    path = cuda_copy(tmp_path, "import functools\n", f"import functools\n{line}\n")
    with pytest.raises(
        ExportError, match=r"allowed: torch, triton, .*, cuda\.core, cuda\.bindings\.driver, pathlib\. Line"
    ):
        read_candidate(path)


def test_unit_must_name_a_function_of_the_device_code(tmp_path: Path) -> None:
    """The name before the template arguments must be a __global__ function of the .cu file."""
    path = cuda_copy(tmp_path, '"function": "toy_decode<12, 256>"', '"function": "from_bf16"')
    with pytest.raises(ExportError, match=r"compile_units\.0 is 'from_bf16'; allowed: one of \['toy_decode'\]"):
        read_candidate(path)


def test_device_functions_are_definitions_only() -> None:
    """Comments and prototypes are no functions; attributes and templates do not hide the name."""
    text = b"""
    // __global__ void commented() {}
    /* __global__ void blocked() {} */
    __global__ void prototype(int a);
    template <int A> __global__ void __launch_bounds__(128, (1 + 1)) wide(float* x) { x[0] = A; }
    extern "C" __global__ __cluster_dims__(2, 1, 1) void plain() {}
    __device__ void helper() {}
    """
    assert device_functions(text) == ["wide", "plain"]
