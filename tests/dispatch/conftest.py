"""Fake exported kernels in a temporary folder, and facts as a GPU would give them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kda_lab.contracts.facts import CallFacts, call_facts
from kda_lab.dispatch.dispatcher import Dispatcher
from kda_lab.dispatch.fallback import FallbackFunction
from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec("toy.scale", ("x", "w"), ("factor",), ("out",), refusal="unsupported toy call")
CHAIN_SPEC = replace(SPEC, fallback=("absent", "plain"))
SOURCE = '''"""A kernel that says its name."""

CALLS = []


def scale(x, w, *, factor, out=None):
    CALLS.append(factor)
    if factor == 13:
        raise RuntimeError("thirteen")
    return "{name}"
'''


CONTRACT: dict[str, Any] = {
    "contract_version": 1,
    "version": 1,
    "op": "toy.scale",
    "entry": "scale",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "tests",
    "task": "none",
    "tensors": {
        "x": {"dtypes": ["bfloat16"], "shape": ["T", "D"], "alignment_bytes": 16},
        "w": {"dtypes": ["float32"], "shape": ["D"]},
        "out": {"dtypes": ["bfloat16"], "shape": ["T", "D"], "optional": True},
    },
    "scalars": {"factor": {"kind": "int", "minimum": 1, "maximum": 100}},
    "callable": [{"axes": {"D": 8, "T": {"minimum": 1, "maximum": 64}}}],
    "dispatched": [{"axes": {"D": 8, "T": {"minimum": 1, "maximum": 8}}}],
    "fallback": {"kind": "raise"},
    "state": {"scratch_bytes": 0, "concurrency": "any", "reset": "none"},
    "kernels_per_call": 1,
    "compile_units": [],
    "provenance": {"task": "none", "author": "tests", "commit": "unknown", "run": "none", "kda_lab": "0"},
    "architectures": [
        {
            "capability": [9, 0],
            "status": "qualified",
            "evidence": {"path": "reports/evidence/alpha/v1/sm90.json", "sha256": "0" * 64},
        },
        {"capability": [12, 0], "status": "compiled"},
    ],
    "tolerances": [],
    "gate_power": {"killed": 0, "total": 0, "mutants": []},
    "benchmarks": [],
    "headline": [],
}
"""A kernel for `toy.scale`: x [T, D] bf16, w [D] fp32; T 1 to 8 dispatched, to 64 callable; SM90 qualified."""


def contract_dict(name: str, source: bytes, **changes: Any) -> dict[str, Any]:
    """The contract of one kernel, with the hash of its source."""
    digest = hashlib.sha256(source).hexdigest()
    listed = {"path": "kernel.py", "sha256": digest, "language": "triton", "license": "Apache-2.0"}
    return {**CONTRACT, "kernel": name, "sources": [listed], **changes}


@pytest.fixture
def write_kernel(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a kernel folder; keyword arguments replace fields of its contract."""

    def write(name: str = "alpha", source: str = SOURCE, **changes: Any) -> Path:
        folder = tmp_path / "kernels" / name
        folder.mkdir(parents=True, exist_ok=True)
        data = source.replace("{name}", name).encode()
        (folder / "kernel.py").write_bytes(data)
        (folder / "contract.json").write_text(json.dumps(contract_dict(name, data, **changes)))
        return folder

    return write


class FakeGpu:
    """Reads the facts of CPU tensors as if they were on a GPU, and counts how often it was asked."""

    def __init__(self) -> None:
        self.capability: tuple[int, int] | None = (9, 0)
        self.asked = 0

    def __call__(
        self, spec: OpSpec, tensors: Mapping[str, Any], scalars: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> CallFacts:
        self.asked += 1
        facts = call_facts(spec, tensors, scalars, outputs)
        moved = {n: replace(t, device_type="cuda", device_index=0) for n, t in facts.tensors.items()}
        return replace(facts, tensors=moved, capability=self.capability, interpreted=False)


@pytest.fixture
def gpu() -> FakeGpu:
    """A faked SM90 GPU; set `.capability` for another one."""
    return FakeGpu()


@pytest.fixture
def dispatcher(tmp_path: Path, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Dispatcher:
    """A dispatcher over the fake kernels, with a fallback called `plain` and a clean environment."""
    for name in ("KDA_LAB_KERNEL", "KDA_LAB_DISPATCH", "KDA_LAB_ALLOW_COMPILED"):
        monkeypatch.delenv(name, raising=False)
    plain = FallbackFunction("plain", lambda x, w, *, factor, out=None: "plain", lambda facts: ())
    return Dispatcher(tmp_path / "kernels", [plain], gpu)


@pytest.fixture
def spec() -> OpSpec:
    """The toy op, which raises when no kernel matches."""
    return SPEC


@pytest.fixture
def chain_spec() -> OpSpec:
    """The toy op with a chain of fallbacks, of which only the second, `plain`, exists."""
    return CHAIN_SPEC


def aligned(rows: int, dtype: torch.dtype) -> torch.Tensor:
    """[rows, 8] of zeros at a multiple of 256 bytes, as a GPU allocation would be; the CPU's are at 64."""
    base = torch.zeros(rows * 8 + 256, dtype=dtype)
    start = (-base.data_ptr() % 256) // base.element_size()
    return base[start : start + rows * 8].view(rows, 8)


@pytest.fixture
def run(dispatcher: Dispatcher) -> Callable[..., Any]:
    """A function that calls the toy op; by default with T 4, D 8, factor 2."""

    def call(
        op: OpSpec = SPEC, x: Any = None, factor: Any = 2, out: Any = None, kernel: str | None = None, rows: int = 4
    ) -> Any:
        x = aligned(rows, torch.bfloat16) if x is None else x
        return dispatcher.call(op, (x, aligned(1, torch.float32)[0]), {"factor": factor}, {"out": out}, kernel)

    return call
