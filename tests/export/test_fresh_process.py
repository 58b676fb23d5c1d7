"""Gates in a fresh process: differing bits, failing imports and missing captures are all told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from kda_lab.contracts.model import Contract, SourceFile
from kda_lab.errors import ExportError
from kda_lab.export import fresh_process
from kda_lab.export.fresh_process import check_alone, check_bits, evaluated_contract

TOY = Path(__file__).with_name("toy_candidate.py")


@pytest.fixture
def contract() -> Contract:
    """Only what `check_alone` reads."""
    source = SourceFile(path="kernel.py", sha256="0" * 64, language="triton", license="x")
    return Contract.model_construct(entry="packed_decode", sources=(source,))


def staged(tmp_path: Path, text: str) -> Path:
    (tmp_path / "kernel.py").write_text(text)
    return tmp_path


def test_kernel_that_needs_the_laboratory_is_refused(tmp_path: Path, contract: Contract) -> None:
    """A late import of kda_lab, hidden from the reader of the source, fails where kda_lab is not installed."""
    text = "import importlib\nimportlib.import_module('kda_' + 'lab.runtime')\n"
    with pytest.raises(
        ExportError, match=r"(?s)export\.alone: fresh process failed .*an exported kernel must not need it"
    ):
        check_alone(staged(tmp_path, text), contract)


def test_kernel_without_its_entry_is_refused(tmp_path: Path, contract: Contract) -> None:
    """A file that imports but has no entry function fails the gate."""
    with pytest.raises(ExportError, match=r"(?s)export\.alone: .*no function called 'packed_decode'"):
        check_alone(staged(tmp_path, "import torch\n"), contract)


def test_kernel_that_imports_alone_passes(tmp_path: Path, contract: Contract) -> None:
    """The toy needs torch and triton only."""
    check_alone(staged(tmp_path, TOY.read_text()), contract)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            '{"replayed": 2, "different": ["a", "b"]}',
            r"export\.bits: the staged kernel differs from the candidate on a, b",
        ),
        ('{"replayed": 0, "different": []}', r"captures replayed is 0; allowed: at least one"),
    ],
)
def test_answers_of_the_replay_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, words: str
) -> None:
    """A difference on any capture, or no capture at all, fails the gate."""
    monkeypatch.setattr(fresh_process, "_run", lambda *a: f"chatter\n{answer}\n")
    with pytest.raises(ExportError, match=words):
        check_bits(tmp_path, TOY, [], "cpu")


def test_replay_that_cannot_start_is_a_failure(tmp_path: Path) -> None:
    """A staged folder without a contract ends the child, whose words are kept."""
    with pytest.raises(ExportError, match=r"(?s)export\.bits: fresh process failed .*contract\.json"):
        check_bits(tmp_path, TOY, [], "cpu")


def test_slow_child_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child beyond the time limit is killed and named."""
    monkeypatch.setattr(fresh_process, "TIMEOUT_S", 0.01)
    with pytest.raises(ExportError, match=r"export\.declaration: contract_worker\.py took more than 0\.01 s"):
        evaluated_contract(TOY)
