"""A full contract of `qsa.packed_decode` for exactly SM121, and the facts of a call that it accepts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kda_lab.contracts.facts import CallFacts, TensorFacts
from kda_lab.contracts.model import Contract, Declaration

BF16 = {"dtypes": ["bfloat16"], "alignment_bytes": 16}
CU = {"dtypes": ["int32"], "shape": ["B+1"]}
BATCHES = {"minimum": 1, "maximum": 128}
EVIDENCE = {"path": "reports/evidence/grouped/v3/sm121.json", "sha256": "0" * 64}
CONTRACT: dict[str, Any] = {
    "contract_version": 1,
    "version": 3,
    "op": "qsa.packed_decode",
    "kernel": "grouped",
    "entry": "packed_decode",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "tests",
    "task": "tests",
    "tensors": {
        "q": {**BF16, "shape": ["B", "HQ", 256]},
        "k": {**BF16, "shape": ["N", "HKV", 256]},
        "v": {**BF16, "shape": ["N", "HKV", 256]},
        "cu_seqlens_q": CU,
        "cu_seqlens_k": CU,
        "out": {**BF16, "shape": ["B", "HQ", 256], "optional": True},
    },
    "scalars": {
        "max_seqlen_k": {"kind": "int", "minimum": 1, "maximum": 2055},
        "softmax_scale": {"kind": "float", "minimum": 0.0, "optional": True},
        "max_seqlen_q": {"kind": "int", "allowed": [1], "remedy": "QSA requires max_seqlen_q=1."},
    },
    "callable": [
        {"axes": {"HQ": 24, "HKV": 2, "B": BATCHES}, "basis": "source thread (sglang PR 36845)"},
        {"axes": {"HQ": 12, "HKV": 1, "B": BATCHES}, "basis": "source thread (sglang PR 36845)"},
    ],
    "dispatched": [{"axes": {"HQ": 24, "HKV": 2, "B": {"minimum": 1, "maximum": 16}}}],
    "fallback": {"kind": "raise"},
    "state": {"scratch_bytes": 1024, "concurrency": "one launch at a time", "reset": "reset_state()"},
    "kernels_per_call": 1,
    "compile_units": [],
    "sources": [{"path": "kernel.py", "sha256": "1" * 64, "language": "triton", "license": "Apache-2.0"}],
    "provenance": {"task": "tests", "author": "tests", "commit": "unknown", "run": "none", "kda_lab": "0"},
    "architectures": [
        {"capability": [12, 1], "status": "qualified", "evidence": EVIDENCE},
        {"capability": [12, 0], "status": "compiled"},
        {"capability": [10, 0], "status": "refused", "note": "Its shared memory is laid out differently."},
    ],
    "tolerances": [],
    "gate_power": {"killed": 17, "total": 17, "mutants": []},
    "benchmarks": [],
    "headline": [],
}

CODES = {"dtypes": ["uint8"], "alignment_bytes": 16}
SCALES = {"dtypes": ["uint8", "float8_e4m3fn"], "alignment_bytes": 16}
GEMM: dict[str, Any] = {
    "op": "nvfp4.gemm",
    "kernel": "streamed",
    "entry": "gemm",
    "language": "cuda",
    "license": "Apache-2.0",
    "author": "tests",
    "task": "tests",
    "tensors": {
        "x_fp4": {**CODES, "shape": ["M", "K/2"]},
        "weight": {**CODES, "shape": ["K/2", "N"], "transposed": True},
        "x_sf": {**SCALES, "shape": ["ceil128(M)", "ceil4(K/16)"]},
        "weight_sf": {**SCALES, "shape": ["ceil4(K/16)", "ceil128(N)"], "transposed": True},
        "alpha": {"dtypes": ["float32"], "shape": [1]},
        "out": {"dtypes": ["bfloat16", "float32"], "shape": ["M", "N"], "optional": True},
    },
    "scalars": {"out_dtype": {"kind": "dtype", "allowed": ["bfloat16", "float32"]}},
    "callable": [
        {
            "axes": {
                "M": {"minimum": 1, "maximum": 16},
                "N": {"minimum": 16, "maximum": 2**20, "multiple_of": 16},
                "K": {"minimum": 64, "maximum": 2**20, "multiple_of": 64},
            }
        }
    ],
    "fallback": {"kind": "chain", "chain": ["portable"]},
    "state": {"scratch_bytes": 0, "concurrency": "any", "reset": "none"},
    "kernels_per_call": 1,
    "compile_units": [],
}
"""A declaration of `nvfp4.gemm`: every part of the grammar, transposed tensors, a dtype."""


def contiguous(*shape: int) -> tuple[int, ...]:
    """Row-major strides of a shape."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def tensor(dtype: str, *shape: int) -> TensorFacts:
    """Facts of a contiguous tensor on cuda:0."""
    return TensorFacts(dtype, shape, contiguous(*shape), "cuda", 0)


class Calls:
    """Makes facts of QSA calls: a good one, and one with some of its facts replaced."""

    contiguous = staticmethod(contiguous)
    tensor = staticmethod(tensor)

    @staticmethod
    def good(B: int = 4, HQ: int = 24, HKV: int = 2, D: int = 256, rows: int = 8204) -> CallFacts:
        """Facts of a call that the contract accepts by default."""
        bf16 = {"q": tensor("bfloat16", B, HQ, D), "k": tensor("bfloat16", rows, HKV, D)}
        cu = {"cu_seqlens_q": tensor("int32", B + 1), "cu_seqlens_k": tensor("int32", B + 1)}
        scalars = {"max_seqlen_k": 2051, "softmax_scale": None, "max_seqlen_q": 1}
        return CallFacts({**bf16, "v": bf16["k"], **cu}, scalars, (12, 1))

    @staticmethod
    def change(facts: CallFacts, **tensors: dict[str, Any]) -> CallFacts:
        """The facts with fields of some tensors replaced: `change(facts, q={"dtype": "float16"})`."""
        changed = {name: replace(facts.tensors[name], **fields) for name, fields in tensors.items()}
        return replace(facts, tensors={**facts.tensors, **changed})

    @staticmethod
    def scalars(facts: CallFacts, **values: Any) -> CallFacts:
        """The facts with some scalars replaced."""
        return replace(facts, scalars={**facts.scalars, **values})


@pytest.fixture(scope="session")
def calls() -> Calls:
    """Maker of facts."""
    return Calls()


@pytest.fixture(scope="session")
def make_contract() -> Callable[..., Contract]:
    """A function that makes the contract with some fields replaced."""
    return lambda **changes: Contract.model_validate({**CONTRACT, **changes})


@pytest.fixture(scope="session")
def contract(make_contract: Callable[..., Contract]) -> Contract:
    """The QSA contract for SM121."""
    return make_contract()


@pytest.fixture(scope="session")
def contract_values() -> dict[str, Any]:
    """The contract as plain values; copy before changing."""
    return CONTRACT


@pytest.fixture(scope="session")
def gemm_values() -> dict[str, Any]:
    """The GEMM's declaration as plain values; copy before changing."""
    return GEMM


@pytest.fixture(scope="session")
def gemm_declaration() -> Declaration:
    """The declaration of a GEMM on packed codes."""
    return Declaration.model_validate(GEMM)
