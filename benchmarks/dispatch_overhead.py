"""Measure what dispatch adds to one call: a no-op kernel through the dispatcher, against the same kernel called directly.

    python benchmarks/dispatch_overhead.py

Runs without a GPU: the tensors are on the CPU, and their facts are read as if they were on an SM90
device. Two cases: `qsa.packed_decode` at four rows, and `nvfp4.gemm` at eight, whose transposed operands
and dtype scalar make its key longer. Prints the median and the 90th percentile in microseconds a call,
over batches of calls.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kda_lab.contracts.facts import CallFacts, call_facts
from kda_lab.dispatch.dispatcher import Dispatcher
from kda_lab.ops.nvfp4_gemm.spec import SPEC as GEMM
from kda_lab.ops.protocol import OpSpec
from kda_lab.ops.qsa_packed_decode.spec import SPEC as QSA

CALLS_PER_BATCH = 1000
BF16 = {"dtypes": ["bfloat16"], "alignment_bytes": 16}
INT32 = {"dtypes": ["int32"], "shape": ["B+1"]}
CODES = {"dtypes": ["uint8"], "alignment_bytes": 16}
GATES: dict[str, dict[str, Any]] = {
    QSA.name: {
        "tensors": {
            "q": {**BF16, "shape": ["B", "HQ", "D"]},
            "k": {**BF16, "shape": ["N", "HKV", "D"]},
            "v": {**BF16, "shape": ["N", "HKV", "D"]},
            "cu_seqlens_q": INT32,
            "cu_seqlens_k": INT32,
            "out": {**BF16, "shape": ["B", "HQ", "D"], "optional": True},
        },
        "scalars": {
            "max_seqlen_k": {"kind": "int", "minimum": 1, "maximum": 2055},
            "softmax_scale": {"kind": "float", "optional": True},
            "max_seqlen_q": {"kind": "int", "allowed": [1]},
        },
        "rule": {"axes": {"D": 256, "B": {"minimum": 1, "maximum": 128}}},
    },
    GEMM.name: {
        "tensors": {
            "x_fp4": {**CODES, "shape": ["M", "K/2"]},
            "weight": {**CODES, "shape": ["K/2", "N"], "transposed": True},
            "x_sf": {**CODES, "shape": ["ceil128(M)", "ceil4(K/16)"]},
            "weight_sf": {**CODES, "shape": ["ceil4(K/16)", "ceil128(N)"], "transposed": True},
            "alpha": {"dtypes": ["float32"], "shape": [1]},
            "out": {"dtypes": ["bfloat16"], "shape": ["M", "N"], "optional": True},
        },
        "scalars": {"out_dtype": {"kind": "dtype", "allowed": ["bfloat16"]}},
        "rule": {"axes": {"M": {"minimum": 1, "maximum": 16}, "K": 2560, "N": 18432}},
    },
}
CONTRACT: dict[str, Any] = {
    "contract_version": 1,
    "version": 1,
    "kernel": "noop",
    "entry": "noop",
    "language": "triton",
    "license": "none",
    "author": "benchmark",
    "task": "none",
    "fallback": {"kind": "raise"},
    "state": {"scratch_bytes": 0, "concurrency": "any", "reset": "none"},
    "kernels_per_call": 1,
    "compile_units": [],
    "provenance": {"task": "none", "author": "benchmark", "commit": "none", "run": "none", "kda_lab": "none"},
    "architectures": [
        {"capability": [9, 0], "status": "qualified", "evidence": {"path": "none/sm90.json", "sha256": "0" * 64}}
    ],
    "tolerances": [],
    "gate_power": {"killed": 0, "total": 0, "mutants": []},
    "benchmarks": [],
    "headline": [],
}


@dataclass(frozen=True)
class Case:
    """One call of an op."""

    spec: OpSpec
    tensors: tuple[torch.Tensor, ...]
    scalars: dict[str, Any]
    out: torch.Tensor


def cases() -> list[Case]:
    """The calls that are measured, on the CPU."""
    q = torch.zeros(4, 24, 256, dtype=torch.bfloat16)
    kv = torch.zeros(2, 8204, 2, 256, dtype=torch.bfloat16)
    cu = torch.zeros(2, 5, dtype=torch.int32)
    scalars = {"max_seqlen_k": 2051, "softmax_scale": None, "max_seqlen_q": 1}
    qsa = Case(QSA, (q, kv[0], kv[1], cu[0].clone(), cu[1].clone()), scalars, torch.zeros_like(q))
    x, w = (torch.zeros(rows, 1280, dtype=torch.uint8) for rows in (8, 18432))
    x_sf, w_sf = (torch.zeros(rows, 160, dtype=torch.uint8) for rows in (128, 18432))
    out = torch.zeros(8, 18432, dtype=torch.bfloat16)
    gemm = Case(GEMM, (x, w.t(), x_sf, w_sf.t(), torch.ones(1)), {"out_dtype": torch.bfloat16}, out)
    return [qsa, gemm]


def write_noop_kernel(kernels_dir: Path, spec: OpSpec) -> None:
    """Write a kernel folder whose contract serves the benchmark's call of an op on SM90."""
    arguments = ", ".join([*spec.tensors, "*", *spec.scalars, *spec.outputs])
    code = f'"""A kernel that does nothing."""\n\n\ndef noop({arguments}):\n    return out\n'.encode()
    source = {"path": "kernel.py", "sha256": hashlib.sha256(code).hexdigest(), "language": "python", "license": "none"}
    gates = dict(GATES[spec.name])
    rule = gates.pop("rule")
    contract = {**CONTRACT, **gates, "op": spec.name, "callable": [rule], "dispatched": [rule], "sources": [source]}
    folder = kernels_dir / "noop"
    folder.mkdir(parents=True)
    (folder / "kernel.py").write_bytes(code)
    (folder / "contract.json").write_text(json.dumps(contract))


def facts_as_on_sm90(
    spec: OpSpec, tensors: Mapping[str, Any], scalars: Mapping[str, Any], outputs: Mapping[str, Any]
) -> CallFacts:
    """Facts of CPU tensors with the device replaced; used on the first call only, which is not timed."""
    facts = call_facts(spec, tensors, scalars, outputs)
    moved = {name: replace(t, device_type="cuda", device_index=0) for name, t in facts.tensors.items()}
    return CallFacts(moved, facts.scalars, (9, 0), facts.foreign)


def batch_us(call: Callable[[], Any]) -> float:
    """Microseconds a call over one batch."""
    start = time.perf_counter_ns()
    for _ in range(CALLS_PER_BATCH):
        call()
    return (time.perf_counter_ns() - start) / CALLS_PER_BATCH / 1000.0


def measure(batches: int, case: Case) -> dict[str, float]:
    """Median and 90th percentile of what dispatch adds, direct and dispatched batches in turn."""
    outputs = {"out": case.out}
    with tempfile.TemporaryDirectory() as folder:
        write_noop_kernel(Path(folder), case.spec)
        dispatcher = Dispatcher(folder, read_facts=facts_as_on_sm90)
        direct = dispatcher._load(dispatcher.folders()[0], case.spec).entry
        added = []
        for _ in range(batches):
            through = batch_us(lambda: dispatcher.call(case.spec, case.tensors, case.scalars, outputs))
            added.append(through - batch_us(lambda: direct(*case.tensors, **case.scalars, **outputs)))
        calls = sum(dispatcher.statistics().hits.values())
    return {"median_us": statistics.median(added), "p90_us": statistics.quantiles(added, n=10)[-1], "calls": calls}


def main() -> int:
    """Print the results; exit code 1 when a median is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=50, help="batches of 1000 calls")
    parser.add_argument("--limit-us", type=float, default=10.0, help="most that a median may be")
    arguments = parser.parse_args()
    passed = True
    for case in cases():
        result = measure(arguments.batches, case)
        within = result["median_us"] <= arguments.limit_us
        passed = passed and within
        sys.stdout.write(
            f"{case.spec.name}: dispatch adds {result['median_us']:.2f} us a call (median), {result['p90_us']:.2f} us "
            f"(p90), {result['calls']:.0f} calls; limit {arguments.limit_us:g} us: {'pass' if within else 'FAIL'}\n"
        )
    sys.stdout.write(
        f"machine: {platform.machine()} {platform.processor() or 'unknown CPU'}, Python {platform.python_version()}, "
        f"torch {torch.__version__}\n"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
