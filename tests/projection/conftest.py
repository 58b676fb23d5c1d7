"""Makes the made-up machine importable by the tests of this folder."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def fakes() -> ModuleType:
    """The module of the made-up machine, `fakes.py` of this folder."""
    path = Path(__file__).with_name("fakes.py")
    spec = importlib.util.spec_from_file_location("projection_fakes", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["projection_fakes"] = module
    spec.loader.exec_module(module)
    return module
