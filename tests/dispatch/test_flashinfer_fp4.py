"""FlashInfer's FP4 GEMM as a fallback: where it is offered, what it refuses, and how it is called."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch

from kda_lab import runtime
from kda_lab.contracts.facts import CallFacts
from kda_lab.contracts.imagined import imagined_call
from kda_lab.dispatch.flashinfer_fp4 import ACCEPTS, CAPABILITIES, MM_FP4, mm_fp4, unavailable
from kda_lab.errors import UnavailableError
from kda_lab.ops.nvfp4_gemm.spec import SPEC
from kda_lab.runtime import OptionalModule


def call(
    capability: tuple[int, int] | None = (12, 0), m: int = 9, n: int = 5120, k: int = 17408, dtype: str = "bfloat16"
) -> CallFacts:
    """Facts of a GEMM without an output buffer."""
    facts = imagined_call(ACCEPTS, {"M": m, "N": n, "K": k}, {"out_dtype": dtype}, capability)
    return CallFacts({name: t for name, t in facts.tensors.items() if name != "out"}, facts.scalars, capability)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A FlashInfer that can be found, and returns what it was called with."""
    module = ModuleType("flashinfer")
    module.__spec__ = ModuleSpec("flashinfer", None)
    module.mm_fp4 = lambda *arguments, **options: (arguments, options)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(runtime, "import_optional", lambda name: OptionalModule(name, module, ""))
    return module


def test_it_is_a_member_of_the_ops_chain() -> None:
    """The registered name is the one that the op's specification writes first."""
    assert SPEC.fallback[0] == MM_FP4.name
    assert tuple(ACCEPTS.tensors)[:5] == SPEC.tensors
    assert tuple(ACCEPTS.scalars) == SPEC.scalars


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_it_serves_the_architectures_of_its_table(capability: tuple[int, int]) -> None:
    """A good call on an architecture of the table has no reason against it."""
    assert unavailable(call(capability)) == ()


@pytest.mark.parametrize("capability", [(9, 0), (8, 9), (12, 2), (10, 1), None])
def test_it_serves_no_other_architecture(capability: tuple[int, int] | None) -> None:
    """SM90 has no FP4 GEMM, and a near architecture is not the same one."""
    given = "None" if capability is None else "{}.{}".format(*capability)
    (reason,) = unavailable(call(capability))
    assert str(reason) == (
        f"device.capability is {given}; allowed: exactly 10.0, 10.3, 10.7, 11.0, 12.0, 12.1. "
        "FlashInfer has no FP4 GEMM for others."
    )


def test_it_needs_flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not installed, that is the reason."""
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    (reason,) = unavailable(call())
    assert str(reason) == "flashinfer is not installed; allowed: FlashInfer 0.6.18. Install flashinfer-python."


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "float32"}, "out_dtype is torch.float32; allowed: torch.bfloat16."),
        ({"n": 5136}, "weight.shape[1] (N) is 5136; allowed: 32..2147483647 (multiples of 32)."),
        ({"k": 17440}, "x_fp4.shape[1] (K, from K/2) is 17440; allowed: 64..2147483647 (multiples of 64)."),
        ({"m": 0}, "x_fp4.shape[0] (M) is 0; allowed: 1..2147483647."),
    ],
)
def test_a_call_outside_its_declaration_is_refused(changes: dict[str, Any], words: str) -> None:
    """What FlashInfer does not check is checked before it is called."""
    (reason,) = unavailable(call(**changes))
    assert str(reason).startswith(words)


def test_it_passes_the_arguments_on() -> None:
    """The op's arguments go in FlashInfer's order, with blocks of 16 and its own choice of backend."""
    tensors = tuple(torch.zeros(1) for _ in range(5))
    arguments, options = mm_fp4(*tensors, out_dtype=torch.bfloat16, out=tensors[0])  # type: ignore[misc]
    assert all(a is b for a, b in zip(arguments, (*tensors, torch.bfloat16, tensors[0]), strict=True))
    assert options == {"block_size": 16, "backend": "auto"}


def test_a_flashinfer_that_does_not_import_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed but broken raises with the reason of the import; nothing is put in its place."""
    broken = OptionalModule("flashinfer", None, "unavailable, because importing flashinfer raised RuntimeError: no")
    monkeypatch.setattr(runtime, "import_optional", lambda name: broken)
    with pytest.raises(UnavailableError, match="flashinfer_mm_fp4 is unavailable, because importing flashinfer raised"):
        mm_fp4(*[torch.zeros(1)] * 5, out_dtype=torch.bfloat16)  # type: ignore[misc]


def test_asking_does_not_import_it() -> None:
    """A process that asks whether FlashInfer could serve a call has not imported it."""
    code = (
        "import sys; from kda_lab.contracts.facts import CallFacts; "
        "from kda_lab.dispatch.flashinfer_fp4 import unavailable; "
        "unavailable(CallFacts({}, {}, (12, 0))); print('flashinfer' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "False"
