"""The loader: hashes before imports, the hashed bytes are the bytes that run, and every damage is named."""

from __future__ import annotations

import hashlib
import inspect
import json
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kda_lab.dispatch.loader import kernel_folders, load_kernel, load_source, read_contract, read_contracts
from kda_lab.errors import KernelLoadError

Write = Callable[..., Path]


def edit_contract(folder: Path, **changes: Any) -> None:
    """Replace fields of a written contract."""
    file = folder / "contract.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_good_folder_loads(write_kernel: Write) -> None:
    """A folder whose files agree gives contract, module and a callable entry."""
    loaded = load_kernel(write_kernel())
    assert loaded.contract.kernel == "alpha"
    assert loaded.entry(None, None, factor=2) == "alpha"
    assert loaded.module.CALLS == [2]


def test_one_changed_byte_is_refused_before_import(write_kernel: Write) -> None:
    """A source that differs from its hash in one byte is named with both hashes, and does not run."""
    folder = write_kernel(source="import sys\nsys.kda_ran = True\ndef scale(): pass\n")
    tampered = (folder / "kernel.py").read_bytes() + b"\n"
    (folder / "kernel.py").write_bytes(tampered)
    found = hashlib.sha256(tampered).hexdigest()
    with pytest.raises(
        KernelLoadError,
        match=rf"alpha/kernel.py sha256 is '{found}'; allowed: '[0-9a-f]{{64}}'\. Export the kernel again",
    ):
        load_kernel(folder)
    assert not hasattr(sys, "kda_ran")


DEVICE = "__global__ void f() {}\n"
READS = "from pathlib import Path\nTEXT = Path(__file__).with_suffix('.cu').read_text()\ndef scale(): return TEXT\n"


def with_device_code(folder: Path, text: str = DEVICE) -> Path:
    """List a .cu file beside the Python source, in a contract of language cuda."""
    (folder / "kernel.cu").write_text(text)
    listed = [
        {"path": n, "sha256": hashlib.sha256((folder / n).read_bytes()).hexdigest(), "language": x, "license": "none"}
        for n, x in (("kernel.py", "python"), ("kernel.cu", "cuda"))
    ]
    edit_contract(folder, sources=listed, language="cuda")
    return folder


def test_device_code_is_hashed_and_held(write_kernel: Write) -> None:
    """A CUDA C++ kernel loads when both hashes are right and its module read the very device code."""
    assert load_kernel(with_device_code(write_kernel(source=READS))).entry() == DEVICE


def test_changed_device_code_is_refused_before_import(write_kernel: Write) -> None:
    """One more byte in the .cu file, and nothing runs."""
    folder = with_device_code(write_kernel(source="import sys\nsys.kda_ran = True\ndef scale(): pass\n"))
    (folder / "kernel.cu").write_text(DEVICE + " ")
    with pytest.raises(KernelLoadError, match=r"alpha/kernel\.cu sha256 is '"):
        load_kernel(folder)
    assert not hasattr(sys, "kda_ran")


def test_host_code_with_another_device_text_is_refused(write_kernel: Write) -> None:
    """Host code that does not hold the hashed text could compile anything; it does not stay imported."""
    folder = with_device_code(write_kernel(source="TEXT = 'other'\ndef scale(): return TEXT\n"))
    before = set(sys.modules)
    with pytest.raises(KernelLoadError, match=r"text of alpha/kernel\.cu is not held by its host code"):
        load_kernel(folder)
    assert not [name for name in set(sys.modules) - before if "alpha" in name]


def test_equal_host_code_with_other_device_code_is_another_module(write_kernel: Write) -> None:
    """Two versions that differ in device code alone do not share a place in sys.modules."""
    first = load_kernel(with_device_code(write_kernel(source=READS))).module
    second = load_kernel(with_device_code(write_kernel(source=READS), DEVICE * 2)).module
    assert first.__name__ != second.__name__


def test_missing_source_is_refused(write_kernel: Write) -> None:
    """A listed file that is not there is named."""
    folder = write_kernel()
    (folder / "kernel.py").unlink()
    with pytest.raises(
        KernelLoadError, match=r"alpha/kernel\.py is missing \(No such file or directory\); allowed: a readable file"
    ):
        load_kernel(folder)


@pytest.mark.parametrize("name", ["extra.py", "sub/extra.py", "extra.so", "extra.cu"])
def test_unlisted_code_is_refused(name: str, write_kernel: Write) -> None:
    """A code file that the contract does not list is refused, wherever it lies in the folder."""
    folder = write_kernel()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("x = 1\n")
    with pytest.raises(
        KernelLoadError, match=rf"alpha/{name} is not in the contract; allowed: only listed code files\. Remove it"
    ):
        load_kernel(folder)


def test_papers_beside_the_kernel_are_fine(write_kernel: Write) -> None:
    """A README, a licence and Python's own cache do not disturb."""
    folder = write_kernel()
    (folder / "README.md").write_text("read me")
    (folder / "LICENSE").write_text("text")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "kernel.cpython-312.so").write_text("")
    assert load_kernel(folder).contract.kernel == "alpha"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", r"alpha/contract\.json is unreadable \(.*\); allowed: a JSON object"),
        ('{"version": NaN}', r"NaN is not JSON"),
        ("[" * 200_000, r"alpha/contract\.json is unreadable"),
        ("\xff", r"alpha/contract\.json is unreadable|alpha\.contract_version is 'absent'"),
        ("[]", r"alpha\.contract_version is 'absent'; allowed: 1\."),
        ("{}", r"alpha\.contract_version is 'absent'; allowed: 1\."),
        ('{"contract_version": 0}', r"alpha\.contract_version is 0; allowed: 1\. Export the kernel again"),
        ('{"contract_version": 2}', r"alpha\.contract_version is 2; allowed: 1\."),
        ('{"contract_version": true}', r"alpha\.contract_version is True; allowed: 1\."),
        ('{"contract_version": "1"}', r"alpha\.contract_version is '1'; allowed: 1\."),
    ],
)
def test_broken_contract_is_refused(text: str, words: str, write_kernel: Write) -> None:
    """A contract that is no JSON, or of another version, is refused with the field's name."""
    folder = write_kernel()
    (folder / "contract.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(KernelLoadError, match=words):
        load_kernel(folder)


def test_every_wrong_field_of_a_contract_is_named(write_kernel: Write) -> None:
    """Two wrong fields give two reasons, each with its dotted place in the file."""
    folder = write_kernel()
    edit_contract(folder, version=0, scalars={"factor": {"kind": "complex"}})
    with pytest.raises(KernelLoadError) as caught:
        read_contract(folder)
    assert {reason.field for reason in caught.value.reasons} == {"alpha.version", "alpha.scalars.factor.kind"}
    assert "alpha.version is 0; allowed: Input should be greater than or equal to 1" in str(caught.value)


def test_missing_field_is_said_to_be_missing(write_kernel: Write) -> None:
    """A field that is absent is reported as missing, without printing the whole contract."""
    folder = write_kernel()
    values = json.loads((folder / "contract.json").read_text())
    del values["sources"]
    (folder / "contract.json").write_text(json.dumps(values))
    with pytest.raises(KernelLoadError, match=r"alpha\.sources is missing; allowed: Field required\."):
        read_contract(folder)


def test_missing_contract_is_refused(write_kernel: Write) -> None:
    """A kernel folder without a contract is not a kernel."""
    folder = write_kernel()
    (folder / "contract.json").unlink()
    with pytest.raises(
        KernelLoadError, match=r"source is '.*contract\.json' \(No such file or directory\); allowed: a readable file"
    ):
        load_kernel(folder)


def test_folder_and_kernel_have_one_name(write_kernel: Write) -> None:
    """A folder that was renamed by hand is refused."""
    folder = write_kernel()
    renamed = folder.with_name("beta")
    folder.rename(renamed)
    with pytest.raises(
        KernelLoadError, match=r"beta\.kernel is 'alpha'; allowed: 'beta'\. A kernel lives in a folder of its own name"
    ):
        read_contract(renamed)


@pytest.mark.parametrize(("source", "given"), [("x = 1\n", "missing"), ("scale = 3\n", "a int")])
def test_missing_entry_is_refused(source: str, given: str, write_kernel: Write) -> None:
    """The contract's entry must be a function of the source."""
    with pytest.raises(
        KernelLoadError, match=rf"alpha\.entry is {given}; allowed: a function called 'scale' in kernel\.py"
    ):
        load_kernel(write_kernel(source=source))


def test_unclear_entry_file_is_refused(write_kernel: Write, tmp_path: Path) -> None:
    """With two Python files and no kernel.py nobody knows which one holds the entry."""
    folder = write_kernel()
    data = (folder / "kernel.py").read_bytes()
    listed = []
    for name in ("one.py", "two.py"):
        (folder / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        listed.append({"path": name, "sha256": digest, "language": "python", "license": "none"})
    (folder / "kernel.py").unlink()
    edit_contract(folder, sources=listed)
    with pytest.raises(
        KernelLoadError, match=r"alpha\.sources is \['one\.py', 'two\.py'\]; allowed: kernel\.py, or a single \.py file"
    ):
        load_kernel(folder)


def test_source_with_a_syntax_error_is_refused(write_kernel: Write) -> None:
    """A source whose hash is right but that is no Python is a load error with line and reason."""
    with pytest.raises(
        KernelLoadError, match=r"source is '.*kernel\.py' \(.*line 1.*\); allowed: valid Python in UTF-8"
    ):
        load_kernel(write_kernel(source="def scale(:\n"))


def test_the_hashed_bytes_run_while_the_file_changes(write_kernel: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that changes after every read: what was hashed runs, or the load is refused; nothing else ever runs."""
    source = write_kernel(source="def scale(): return 'good'\n") / "kernel.py"
    versions = [source.read_bytes(), b"def scale(): return 'evil'\n"]
    read = Path.read_bytes

    def read_then_rewrite(file: Path) -> bytes:
        data = read(file)
        if file == source:
            source.write_bytes(versions[data == versions[0]])
        return data

    monkeypatch.setattr(Path, "read_bytes", read_then_rewrite)
    for _ in range(3):
        loaded = load_kernel(source.parent)
        assert loaded.entry() == "good"
        assert "good" in inspect.getsource(loaded.entry)
        with pytest.raises(KernelLoadError, match="sha256"):
            load_kernel(source.parent)


def test_source_text_stays_that_of_the_code(write_kernel: Write) -> None:
    """`inspect.getsource`, which Triton compiles from, returns what was hashed even after the file changed on disk."""
    folder = write_kernel()
    loaded = load_kernel(folder)
    (folder / "kernel.py").write_text("changed = True\n" * 50)
    linecache.checkcache()
    assert inspect.getsource(loaded.entry).startswith("def scale(x, w, *, factor, out=None):")


def test_load_source_leaves_the_import_path_alone(tmp_path: Path) -> None:
    """A file is imported by its path: `sys.path` is unchanged, and the module is registered under its name."""
    file = tmp_path / "candidate.py"
    file.write_text("VALUE = __name__\n")
    before = list(sys.path)
    assert load_source(file, "kda_test_candidate").VALUE == "kda_test_candidate"
    assert sys.path == before
    assert sys.modules["kda_test_candidate"].__file__ == str(file)
    assert load_source(file).VALUE.startswith("kda_lab_source_candidate_")


def test_load_source_sees_an_edit(tmp_path: Path) -> None:
    """An edited file is run anew, and its source text is the new one."""
    file = tmp_path / "edited.py"
    file.write_text("def f():\n    return 1\n")
    assert load_source(file).f() == 1
    file.write_text("def f():\n    return 2\n")
    again = load_source(file)
    assert again.f() == 2
    assert "return 2" in inspect.getsource(again.f)


def test_lines_of_the_source_are_those_of_the_code(tmp_path: Path) -> None:
    """Form feeds and Windows line ends do not shift the source text against the code."""
    file = tmp_path / "lines.py"
    file.write_bytes(b"\xef\xbb\xbfa = 'x\x0cy\xe2\x80\xa8z'\r\ndef f():\r\n    return 1\r\n")
    assert inspect.getsource(load_source(file).f) == "def f():\n    return 1\n"


def test_a_source_that_raises_raises_its_own_error(tmp_path: Path) -> None:
    """An exception of the file itself comes through, and no half-made module stays behind."""
    file = tmp_path / "broken.py"
    file.write_text("raise ZeroDivisionError('mine')\n")
    with pytest.raises(ZeroDivisionError, match="mine"):
        load_source(file, "kda_test_broken")
    assert "kda_test_broken" not in sys.modules


def test_a_failed_reload_keeps_the_old_module(tmp_path: Path) -> None:
    """When a new version of a file raises, the module that had the name is still registered."""
    file = tmp_path / "module.py"
    file.write_text("GOOD = True\n")
    old = load_source(file, "kda_test_reload")
    file.write_text("raise ZeroDivisionError\n")
    with pytest.raises(ZeroDivisionError):
        load_source(file, "kda_test_reload")
    assert sys.modules["kda_test_reload"] is old


@pytest.mark.parametrize(
    ("data", "words"), [(b"x = '\xff'\n", "valid Python in UTF-8"), (b"x\x00y", "valid Python in UTF-8")]
)
def test_bytes_that_are_no_text_are_refused(data: bytes, words: str, tmp_path: Path) -> None:
    """A file that is not UTF-8 Python is a load error, not a UnicodeDecodeError from within."""
    (tmp_path / "bytes.py").write_bytes(data)
    with pytest.raises(KernelLoadError, match=words):
        load_source(tmp_path / "bytes.py")


def test_missing_source_file_is_said(tmp_path: Path) -> None:
    """A path without a file is an error that names the path."""
    with pytest.raises(
        KernelLoadError, match=r"source is '.*nowhere\.py' \(No such file or directory\); allowed: a readable file"
    ):
        load_source(tmp_path / "nowhere.py")


def test_reading_contracts_imports_nothing(write_kernel: Write, tmp_path: Path) -> None:
    """The list of contracts is made from metadata: a source that would raise is not run."""
    write_kernel("beta", source="raise SystemExit\n")
    write_kernel("alpha")
    (tmp_path / "kernels" / "__init__.py").write_text("")
    (tmp_path / "kernels" / "__pycache__").mkdir()
    (tmp_path / "kernels" / ".leftover").mkdir()
    found = read_contracts(tmp_path / "kernels")
    assert [(f.contract.kernel, f.path.name) for f in found] == [("alpha", "alpha"), ("beta", "beta")]


def test_one_broken_contract_is_loud(write_kernel: Write, tmp_path: Path) -> None:
    """A damaged folder among good ones raises; it is never passed over."""
    write_kernel("alpha")
    edit_contract(write_kernel("beta"), contract_version=7)
    with pytest.raises(KernelLoadError, match=r"beta\.contract_version is 7; allowed: 1"):
        read_contracts(tmp_path / "kernels")


def test_no_kernels_folder_means_no_kernels(tmp_path: Path) -> None:
    """Where nothing was exported there is nothing to list, and no error."""
    assert kernel_folders(tmp_path / "absent") == []
    assert read_contracts(tmp_path / "absent") == []
