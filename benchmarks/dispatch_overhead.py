"""Measure what dispatch adds to one call: a no-op kernel through the dispatcher, against the same kernel called directly.

    python benchmarks/dispatch_overhead.py

Runs without a GPU: the tensors are on the CPU, and their facts are read as if they were on an SM90
device. The tensors have the shapes of `qsa.packed_decode` at four rows. Prints the median and the
90th percentile in microseconds a call, over batches of calls.
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
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kda_lab.contracts.facts import CallFacts, call_facts
from kda_lab.dispatch.dispatcher import Dispatcher
from kda_lab.ops.protocol import OpSpec
from kda_lab.ops.qsa_packed_decode.spec import SPEC

SOURCE = b'"""A kernel that does nothing."""\n\n\ndef noop(q, k, v, cu_q, cu_k, *, max_seqlen_k, softmax_scale, max_seqlen_q, out):\n    return out\n'
CALLS_PER_BATCH = 1000


BF16 = {"dtypes": ["bfloat16"], "alignment_bytes": 16}
INT32 = {"dtypes": ["int32"], "shape": ["B+1"]}
EVERY: dict[str, Any] = {"axes": {"D": 256, "B": {"minimum": 1, "maximum": 128}}}
CONTRACT: dict[str, Any] = {
    "contract_version": 1,
    "version": 1,
    "op": SPEC.name,
    "kernel": "noop",
    "entry": "noop",
    "language": "triton",
    "license": "none",
    "author": "benchmark",
    "task": "none",
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
    "callable": [EVERY],
    "dispatched": [EVERY],
    "fallback": {"kind": "raise"},
    "state": {"scratch_bytes": 0, "concurrency": "any", "reset": "none"},
    "kernels_per_call": 0,
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


def write_noop_kernel(kernels_dir: Path) -> None:
    """Write a kernel folder whose contract serves the benchmark's call on SM90."""
    digest = hashlib.sha256(SOURCE).hexdigest()
    source = {"path": "kernel.py", "sha256": digest, "language": "python", "license": "none"}
    folder = kernels_dir / "noop"
    folder.mkdir(parents=True)
    (folder / "kernel.py").write_bytes(SOURCE)
    (folder / "contract.json").write_text(json.dumps({**CONTRACT, "sources": [source]}))


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


def measure(batches: int) -> dict[str, float]:
    """Median and 90th percentile of what dispatch adds, direct and dispatched batches in turn."""
    q = torch.zeros(4, 24, 256, dtype=torch.bfloat16)
    kv = torch.zeros(2, 8204, 2, 256, dtype=torch.bfloat16)
    cu = torch.zeros(2, 5, dtype=torch.int32)
    tensors = (q, kv[0], kv[1], cu[0].clone(), cu[1].clone())
    scalars = {"max_seqlen_k": 2051, "softmax_scale": None, "max_seqlen_q": 1}
    outputs = {"out": torch.zeros_like(q)}
    with tempfile.TemporaryDirectory() as folder:
        write_noop_kernel(Path(folder))
        dispatcher = Dispatcher(folder, read_facts=facts_as_on_sm90)
        direct = dispatcher._load(dispatcher.folders()[0]).entry
        added = []
        for _ in range(batches):
            through = batch_us(lambda: dispatcher.call(SPEC, tensors, scalars, outputs))
            added.append(through - batch_us(lambda: direct(*tensors, **scalars, **outputs)))
        calls = sum(dispatcher.statistics().hits.values())
    return {"median_us": statistics.median(added), "p90_us": statistics.quantiles(added, n=10)[-1], "calls": calls}


def main() -> int:
    """Print the result; exit code 1 when the median is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=50, help="batches of 1000 calls")
    parser.add_argument("--limit-us", type=float, default=10.0, help="most that the median may be")
    arguments = parser.parse_args()
    result = measure(arguments.batches)
    passed = result["median_us"] <= arguments.limit_us
    sys.stdout.write(
        f"dispatch adds {result['median_us']:.2f} us a call (median), {result['p90_us']:.2f} us (p90), "
        f"{result['calls']:.0f} calls; limit {arguments.limit_us:g} us: {'pass' if passed else 'FAIL'}\n"
        f"machine: {platform.machine()} {platform.processor() or 'unknown CPU'}, Python {platform.python_version()}, "
        f"torch {torch.__version__}\n"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
