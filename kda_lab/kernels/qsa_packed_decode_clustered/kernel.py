"""QSA packed decode on SM90: CUDA C++ in which a cluster of CTAs attends one row and merges in distributed shared memory.

The kernel and the ideas behind it stand in the .cu file beside this one; this file picks a schedule and launches it. One
launch a call, no scratch memory, no counters, the same bits every launch, any launches may overlap. The launch is
programmatic: it begins while the stream's earlier kernel ends, and waits for it before it reads. CPU tensors run a torch twin with the same rounding, which serves checks on machines without a GPU.

Imports torch and cuda.core only (and its driver bindings, for two attributes). Contract: source thread sglang PR 36845;
code written here.
"""

from __future__ import annotations

import functools
import itertools
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch

CUDA_SOURCE = Path(__file__).with_suffix(".cu").read_text()
CPU_TWIN = True
"""CPU tensors are served by `_twin`."""

HEAD_DIM = 256
GROUP = 12
PITCH = 2 * HEAD_DIM + 16
MAX_SEQLEN_K = 2055
LOG2_E = 1.4426950408889634
STANDARD = "c++17"
TOPOLOGIES = ((24, 2), (12, 1))


class Schedule(NamedTuple):
    """How one launch is cut."""

    ranks: int
    """CTAs of a cluster, which share a row's keys: 1, 2, 4, 8 or 16 (which needs an attribute of the kernel)."""
    warps: int
    """Of a CTA; each scores its share of a tile's keys and has its share of the output's dimensions."""
    keys: int
    """Of a tile; a multiple of 8 x warps."""
    stages: int
    """Tiles that a CTA has in flight."""
    ctas: int
    """CTAs that one SM shall hold, which bounds the registers."""

    @property
    def shared_bytes(self) -> int:
        """The ring, a tile's probabilities, a number a row and warp, and in a cluster what the ranks hand over."""
        handed = GROUP * HEAD_DIM * 4 + 16 * GROUP * 8 + 8 if self.ranks > 1 else 0
        return self.stages * 2 * self.keys * PITCH + self.keys * 32 + self.warps * 64 + handed

    @property
    def name(self) -> str:
        return f"qsa_packed_decode<{self.warps}, {self.keys}, {self.stages}, {self.ctas}>"


# (most rows x KV heads, schedule); the first entry that fits is used. Of about ten schedules for each size the fastest on
# most length classes, one H200. Clusters that fit at once decide: 30 of four with one CTA an SM, so 32 rows need two an SM.
SCHEDULES = (
    (8, Schedule(16, 4, 32, 2, 2)),
    (16, Schedule(8, 4, 32, 2, 2)),
    (32, Schedule(4, 4, 32, 2, 2)),
    (64, Schedule(2, 4, 64, 3, 1)),
)
MAX_SLOTS = SCHEDULES[-1][0]


def schedule_for(slots: int) -> Schedule:
    """The schedule of a launch with `slots` = rows x KV heads; host-visible facts only."""
    return next(schedule for most, schedule in SCHEDULES if slots <= most)


def _compile_unit(schedule: Schedule) -> dict[str, Any]:
    return {
        "function": schedule.name,
        "signature": {},
        "constants": {"WARPS": schedule.warps, "KEYS": schedule.keys, "STAGES": schedule.stages, "CTAS": schedule.ctas},
        "num_warps": schedule.warps,
        "num_stages": schedule.stages,
        "options": (f"-std={STANDARD}",),
        "dynamic_shared_bytes": schedule.shared_bytes,
        "capabilities": ((9, 0),),
    }


_ROWS = {"dtypes": ("bfloat16",), "contiguous": True, "alignment_bytes": 16}
_ENDS = {"dtypes": ("int32",), "shape": ("B+1",), "contiguous": True, "alignment_bytes": 4}
CONTRACT = {
    "op": "qsa.packed_decode",
    "kernel": "qsa_packed_decode_clustered",
    "entry": "packed_decode",
    "language": "cuda",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "QSA packed decode on SM90, contract of sglang PR 36845 (BF16, D 256, 12 query heads a KV head)",
    "tensors": {
        "q": {**_ROWS, "shape": ("B", "HQ", HEAD_DIM)},
        "k": {**_ROWS, "shape": ("N", "HKV", HEAD_DIM)},
        "v": {**_ROWS, "shape": ("N", "HKV", HEAD_DIM)},
        "cu_seqlens_q": _ENDS,
        "cu_seqlens_k": _ENDS,
        "out": {**_ROWS, "shape": ("B", "HQ", HEAD_DIM), "optional": True},
    },
    "scalars": {
        "max_seqlen_k": {"kind": "int", "minimum": 1, "maximum": MAX_SEQLEN_K},
        "softmax_scale": {"kind": "float", "optional": True},
        "max_seqlen_q": {"kind": "int", "allowed": (1,), "remedy": "QSA requires max_seqlen_q=1."},
    },
    "callable": tuple(
        {
            "axes": {"B": {"minimum": 1, "maximum": MAX_SLOTS // kv_heads}, "HQ": heads, "HKV": kv_heads},
            "basis": "source thread, which allows 128 rows; with more rows one CTA a row is faster",
        }
        for heads, kv_heads in TOPOLOGIES
    ),
    "fallback": {"kind": "raise"},
    "state": {"scratch_bytes": 0, "concurrency": "any launches may overlap", "reset": "none to reset"},
    "kernels_per_call": 1,
    "compile_units": tuple(_compile_unit(schedule) for schedule in {s.name: s for _, s in SCHEDULES}.values()),
}


def packed_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    max_seqlen_q: int = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of one query row a sequence over its packed KV rows.

    Args:
        q: [B, HQ, 256] bf16, contiguous.
        k: [N, HKV, 256] bf16, contiguous, N >= cu_seqlens_k[B]; rows behind the live end are not read.
        v: as k.
        cu_seqlens_q: [B+1] int32, must be 0, 1, …, B; not read.
        cu_seqlens_k: [B+1] int32, read on the device.
        max_seqlen_k: capacity of a row, 1 to 2055.
        softmax_scale: multiplies q·k; 1/16 when None.
        max_seqlen_q: must be 1.
        out: [B, HQ, 256] bf16, contiguous; allocated when None.

    Returns:
        out. A row without keys is exactly zero.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
        RuntimeError: first call of a schedule inside a graph capture.
    """
    problems = _problems(q, k, v, cu_seqlens_k, max_seqlen_k, max_seqlen_q)
    if out is not None and (out.shape != q.shape or out.dtype != q.dtype or not out.is_contiguous()):
        problems.append(f"out is {tuple(out.shape)} {out.dtype}; allowed: {tuple(q.shape)} bfloat16, contiguous")
    if problems:
        raise ValueError("qsa_packed_decode_clustered: " + "; ".join(problems) + ".")
    if out is None:
        out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(HEAD_DIM) if softmax_scale is None else softmax_scale
    if q.device.type == "cpu":
        return out.copy_(_twin(q, k, v, cu_seqlens_k, scale))
    device, kv_heads = q.device.index, k.shape[1]
    slots = q.shape[0] * kv_heads
    schedule = schedule_for(slots)
    stream = _stream(device, torch.cuda.current_stream(device).cuda_stream)
    pointers = (tensor.data_ptr() for tensor in (q, k, v, cu_seqlens_k, out))
    # A launch goes to the current device, whatever the stream's own is.
    with torch.cuda.device(device):
        kernel, config = _kernel(device, schedule), _config(schedule, slots)
        # cuda.core passes a Python float as a double, and an int in 64 bits: an `int` parameter takes the lower half.
        _core().launch(stream, config, kernel, *pointers, scale * LOG2_E, kv_heads)
    return out


def _problems(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_k: torch.Tensor, max_seqlen_k: int, max_seqlen_q: int
) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json."""
    found = []
    if q.dim() != 3 or k.dim() != 3 or k.shape != v.shape:
        return ["q must be [B, HQ, 256], k and v [N, HKV, 256] of one shape"]
    if (q.shape[1], k.shape[1]) not in TOPOLOGIES or q.shape[2] != HEAD_DIM or k.shape[2] != HEAD_DIM:
        found.append(
            f"heads and width are {tuple(q.shape[1:])} and {tuple(k.shape[1:])}; allowed: (24, 2) or (12, 1) x 256"
        )
    if not 1 <= q.shape[0] * k.shape[1] <= MAX_SLOTS:
        found.append(f"B is {q.shape[0]}; allowed: 1 to {MAX_SLOTS // k.shape[1]} with {k.shape[1]} KV heads")
    if any(t.dtype != torch.bfloat16 or not t.is_contiguous() or t.data_ptr() % 16 for t in (q, k, v)):
        found.append("q, k and v must be contiguous bfloat16, 16-byte aligned")
    if cu_seqlens_k.dtype != torch.int32 or cu_seqlens_k.numel() != q.shape[0] + 1:
        found.append("cu_seqlens_k must be int32 with B+1 elements")
    if len({t.device for t in (q, k, v, cu_seqlens_k)}) != 1:
        found.append("q, k, v and cu_seqlens_k must be on one device")
    if not 0 < max_seqlen_k <= MAX_SEQLEN_K:
        found.append(f"max_seqlen_k is {max_seqlen_k}; allowed: 1 to {MAX_SEQLEN_K}")
    if max_seqlen_q != 1:
        found.append(f"max_seqlen_q is {max_seqlen_q}; QSA requires max_seqlen_q=1")
    return found


def _core() -> Any:
    import cuda.core  # lazy: needed on a GPU only

    return cuda.core


@functools.lru_cache(maxsize=256)
def _stream(device: int, handle: int) -> Any:
    return _core().Stream.from_handle(handle)


@functools.lru_cache(maxsize=1024)
def _config(schedule: Schedule, slots: int) -> Any:
    threads = schedule.warps * 32
    cluster = {"cluster": schedule.ranks} if schedule.ranks > 1 else {}
    # With clusters, cuda.core counts the grid in them. Programmatic: the launch overlaps the end of the kernel before it.
    shape = {"grid": slots, "block": threads, "shmem_size": schedule.shared_bytes}
    return _core().LaunchConfig(**shape, **cluster, programmatic_stream_serialization=True)


@functools.cache
def _kernel(device: int, schedule: Schedule) -> Any:
    """Compile for a device and allow the kernel its shared memory and clusters of 16; a second or two, once a process."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "qsa_packed_decode_clustered: the first call with this many rows is inside a graph capture; allowed: after one "
            "such call outside it, which compiles the kernel"
        )
    core = _core()
    with torch.cuda.device(device):
        major, minor = torch.cuda.get_device_capability(device)
        core.Device(device).set_current()
        options = core.ProgramOptions(arch=f"sm_{major}{minor}", std=STANDARD)
        module = core.Program(CUDA_SOURCE, "c++", options).compile("cubin", name_expressions=[schedule.name])
        kernel = module.get_kernel(schedule.name)
        _allow(kernel, device, schedule.shared_bytes)
    return kernel


def _allow(kernel: Any, device: int, shared_bytes: int) -> None:
    from cuda.bindings import driver  # lazy: needed on a GPU only

    names = driver.CUfunction_attribute
    wanted = {
        names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: shared_bytes,
        names.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: 1,
    }
    for attribute, value in wanted.items():
        (status,) = driver.cuKernelSetAttribute(attribute, value, kernel.handle, device)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(
                f"qsa_packed_decode_clustered: cuKernelSetAttribute({attribute.name}, {value}) returned {status}; "
                "allowed: a device of SM90"
            )


def _twin(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_k: torch.Tensor, scale: float) -> torch.Tensor:
    """What the kernel computes, in torch: FP32 scores and sums, P rounded to BF16 for its product. [B, HQ, 256] float32."""
    out = torch.zeros(q.shape, dtype=torch.float32)
    ends = cu_seqlens_k.tolist()
    kv_heads = k.shape[1]
    for b, (start, end) in enumerate(itertools.pairwise(ends)):
        if end == start:
            continue
        queries = q[b].float().view(kv_heads, GROUP, HEAD_DIM)
        keys, values = (t[start:end].float().transpose(0, 1) for t in (k, v))
        scores = queries @ keys.transpose(1, 2) * (scale * LOG2_E)
        p = torch.exp2(scores - scores.amax(dim=-1, keepdim=True))
        rows = p.to(torch.bfloat16).float() @ values / p.sum(dim=-1, keepdim=True)
        out[b] = rows.reshape(-1, HEAD_DIM)
    return out
