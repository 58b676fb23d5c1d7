"""Make the toy op importable as `toy_op`, whatever pytest's import mode; one thread, since its tensors are tiny."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

if "toy_op" not in sys.modules:
    spec = importlib.util.spec_from_file_location("toy_op", Path(__file__).parents[1] / "verify" / "toy_op.py")
    sys.modules["toy_op"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["toy_op"])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run torch on one thread: waiting for a second one takes longer than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
