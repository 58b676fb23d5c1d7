"""The contract of the source thread's kernel as the thread states it: exactly capability 12.1, compiled, never run here.

Data for the predicate, not an exported kernel: the thread's source is named by its hash and is not part of this
project. It shows that the predicate can say what that kernel's own gate says, refusals included.
"""

from __future__ import annotations

from typing import Any

from kda_lab import __version__
from kda_lab.contracts.model import Contract
from kda_lab.ops.qsa_packed_decode.cases import DRAFT_WIDTH, TOPOLOGIES, WIDTH
from kda_lab.ops.qsa_packed_decode.spec import SPEC

CAPABILITY = (12, 1)
MAX_BATCH = 128
THREAD = "source thread (sglang PR 36845)"
SOURCE_SHA256 = "4f9977f88abfea4393a2add3a2c9255699f7e13b981dbc1a976b024b3b00e909"
"""Of the winning submission, as the thread gives it."""
SCRATCH_BYTES = 2 * MAX_BATCH * (8 * 16 * (WIDTH + 2) * 4 + 4)
"""Partial sums of 8 splits of 16 query rows, and a counter, for each of 256 (row, KV head): 32.25 MiB."""

_ROWS: dict[str, Any] = {"dtypes": ["bfloat16"], "contiguous": True}
_ENDS: dict[str, Any] = {"dtypes": ["int32"], "shape": ["B+1"], "contiguous": True}
_SHAPES: list[dict[str, Any]] = [
    {"axes": {"B": {"minimum": 1, "maximum": MAX_BATCH}, "HQ": heads, "HKV": kv_heads}, "basis": THREAD}
    for heads, kv_heads in TOPOLOGIES.values()
]


def thread_contract() -> Contract:
    """The thread's contract: BF16, D 256, (24, 2) or (12, 1) heads, B 1 to 128, at most 2055 keys a row, capability 12.1.

    The architecture is `compiled`: it is dispatched only with the explicit opt-in. The thread measured it on a GB10;
    no evidence of this project says so.
    """
    return Contract.model_validate({
        "version": 1,
        "op": SPEC.name,
        "kernel": "qsa_packed_decode_thread",
        "entry": "packed_decode",
        "language": "triton",
        "license": "Apache-2.0",
        "author": "the authors of sglang PR 36845",
        "task": "QSA packed decode on GB10",
        "tensors": {
            "q": {**_ROWS, "shape": ["B", "HQ", WIDTH]},
            "k": {**_ROWS, "shape": ["N", "HKV", WIDTH]},
            "v": {**_ROWS, "shape": ["N", "HKV", WIDTH]},
            "cu_seqlens_q": _ENDS,
            "cu_seqlens_k": _ENDS,
            "out": {**_ROWS, "shape": ["B", "HQ", WIDTH], "optional": True},
        },
        "scalars": {
            "max_seqlen_k": {"kind": "int", "minimum": 1, "maximum": DRAFT_WIDTH},
            "softmax_scale": {"kind": "float", "optional": True},
            "max_seqlen_q": {"kind": "int", "allowed": [1], "remedy": "QSA requires max_seqlen_q=1."},
        },
        "callable": _SHAPES,
        "dispatched": _SHAPES,
        "fallback": {"kind": "raise"},
        "state": {
            "scratch_bytes": SCRATCH_BYTES,
            "concurrency": "one workspace a device: launches of several streams or graphs must not overlap",
            "reset": "zero the arrival counters after an aborted launch",
        },
        "kernels_per_call": 1,
        "compile_units": [],
        "sources": [{"path": "kernel.py", "sha256": SOURCE_SHA256, "language": "triton", "license": "Apache-2.0"}],
        "provenance": {"task": THREAD, "author": THREAD, "commit": "unknown", "run": "none", "kda_lab": __version__},
        "architectures": [
            {"capability": CAPABILITY, "status": "compiled", "note": "The thread ran it on a GB10; it never ran here."}
        ],
        "tolerances": [],
        "gate_power": {"killed": 0, "total": 0, "mutants": []},
        "benchmarks": [],
        "headline": [],
    })  # fmt: skip
