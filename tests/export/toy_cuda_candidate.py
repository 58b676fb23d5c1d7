"""A candidate in CUDA C++ of the exporter's tests: host code beside `toy_cuda_candidate.cu`, with a torch twin."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, Stream, launch

SOURCE = Path(__file__).with_suffix(".cu").read_text()
CPU_TWIN = True

CONTRACT = {
    "op": "qsa.packed_decode",
    "kernel": "toy_cuda_decode",
    "entry": "packed_decode",
    "language": "cuda",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "a toy for tests",
    "tensors": {
        "q": {"dtypes": ["bfloat16"], "shape": ["B", "HQ", 256]},
        "k": {"dtypes": ["bfloat16"], "shape": ["N", "HKV", 256]},
        "v": {"dtypes": ["bfloat16"], "shape": ["N", "HKV", 256]},
        "cu_seqlens_q": {"dtypes": ["int32"], "shape": ["B+1"]},
        "cu_seqlens_k": {"dtypes": ["int32"], "shape": ["B+1"]},
    },
    "scalars": {
        "max_seqlen_k": {"kind": "int", "minimum": 1, "maximum": 2055},
        "softmax_scale": {"kind": "float", "optional": True},
        "max_seqlen_q": {"kind": "int", "allowed": [1]},
    },
    "callable": [{"axes": {"B": {"minimum": 1, "maximum": 128}, "HQ": 12, "HKV": 1}}],
    "fallback": {"kind": "raise"},
    "state": {"scratch_bytes": 0, "concurrency": "any", "reset": "none needed"},
    "kernels_per_call": 1,
    "compile_units": [
        {
            "function": "toy_decode<12, 256>",
            "signature": {},
            "constants": {"GROUP": 12, "D": 256},
            "num_warps": 8,
            "options": ["-std=c++17"],
            "dynamic_shared_bytes": 1024,
            "capabilities": [[9, 0], [12, 0]],
        }
    ],
}

(UNIT,) = CONTRACT["compile_units"]


@functools.cache
def _kernel(index: int):
    major, minor = torch.cuda.get_device_capability(index)
    Device(index).set_current()
    program = Program(SOURCE, "c++", ProgramOptions(arch=f"sm_{major}{minor}", std="c++17"))
    return program.compile("cubin", name_expressions=(UNIT["function"],)).get_kernel(UNIT["function"])


def _twin(q, k, v, ends, scale, out):
    for row, (start, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
        heads = [t[start:end].float().repeat_interleave(12, 1).transpose(0, 1) for t in (k, v)]  # [HQ, L, D]
        weights = torch.softmax((heads[0] @ q[row].float()[:, :, None]) * scale, 1)
        out[row] = (weights * heads[1]).sum(1).to(out.dtype)


def packed_decode(q, k, v, cu_seqlens_q, cu_seqlens_k, *, max_seqlen_k, softmax_scale=None, max_seqlen_q=1, out=None):
    out = torch.empty_like(q) if out is None else out
    scale = 0.0625 if softmax_scale is None else softmax_scale
    if q.device.type == "cpu":
        _twin(q, k, v, cu_seqlens_k, scale, out)
        return out
    config = LaunchConfig(grid=(q.shape[0], q.shape[1]), block=256, shmem_size=UNIT["dynamic_shared_bytes"])
    stream = Stream.from_handle(torch.cuda.current_stream(q.device).cuda_stream)
    pointers = [t.data_ptr() for t in (q, k, v, cu_seqlens_k, out)]
    launch(stream, config, _kernel(q.device.index or 0), *pointers, float(scale), k.shape[1])
    return out
