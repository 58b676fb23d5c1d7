"""QSA paged decode on SM90: CUDA C++ in which a cluster of CTAs attends one row, straight from the pool through the slot table.

The kernel and the ideas behind it stand in the .cu file beside this one; this file picks a schedule and launches it. One
launch a call, no scratch memory, no counters, the same bits every launch, any launches may overlap. The launch is
programmatic: it begins while the stream's earlier kernel ends, and waits for it before it reads. CPU tensors run a torch twin
with the same rounding, which serves checks on machines without a GPU.

Imports torch and cuda.core only (and its driver bindings, for two attributes). Idea: source threads sglang 36787
(direct-paged decode) and PR 36845; code written here.
"""

from __future__ import annotations

import functools
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
MAX_BATCH = 128
WIDTHS = (2051, 2055)
MAX_WIDTH = WIDTHS[-1]
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
        """The ring, a tile's probabilities, a number a row and warp, what ranks hand over, and the slots of this rank."""
        handed = GROUP * HEAD_DIM * 4 + 16 * GROUP * 8 + 16 if self.ranks > 1 else 0
        tiles = -(-MAX_WIDTH // (self.keys * self.ranks))
        ring = self.stages * 2 * self.keys * PITCH
        return ring + self.keys * 32 + self.warps * 64 + handed + tiles * self.keys * 4

    @property
    def name(self) -> str:
        return f"qsa_paged_decode<{self.warps}, {self.keys}, {self.stages}, {self.ctas}>"


# (most rows x KV heads, schedule); the first entry that fits is used: of six for each size the fastest on most length
# classes, one H200. Clusters that fit at once decide: 30 of four with one CTA an SM, so 32 rows need two an SM.
SCHEDULES = (
    (8, Schedule(16, 4, 32, 2, 2)),
    (16, Schedule(8, 4, 32, 2, 2)),
    (48, Schedule(4, 4, 32, 2, 2)),
    (64, Schedule(2, 4, 32, 3, 2)),
    (132, Schedule(2, 4, 32, 2, 2)),
    (256, Schedule(1, 4, 32, 2, 2)),
)


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
_INDICES = {"dtypes": ("int32",), "contiguous": True, "alignment_bytes": 4}
CONTRACT = {
    "op": "qsa.paged_decode",
    "kernel": "qsa_paged_decode_clustered",
    "entry": "paged_decode",
    "language": "cuda",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "QSA decode straight from the paged pool on SM90 (BF16, D 256, 12 query heads a KV head), no compaction",
    "tensors": {
        "q": {**_ROWS, "shape": ("B", "HQ", HEAD_DIM)},
        "k_pool": {**_ROWS, "shape": ("S", "HKV", HEAD_DIM)},
        "v_pool": {**_ROWS, "shape": ("S", "HKV", HEAD_DIM)},
        "tokens": {**_INDICES, "shape": ("B", "W")},
        "lengths": {**_INDICES, "shape": ("B",)},
        "requests": {**_INDICES, "shape": ("B",)},
        "req_to_slot": {**_INDICES, "shape": ("R", "L")},
        "out": {**_ROWS, "shape": ("B", "HQ", HEAD_DIM), "optional": True},
    },
    "scalars": {"softmax_scale": {"kind": "float", "optional": True}},
    "callable": tuple(
        {
            "axes": {"B": {"minimum": 1, "maximum": MAX_BATCH}, "HQ": heads, "HKV": kv_heads, "W": width},
            "basis": "source thread: a target row has 2051 columns, a draft row 2055",
        }
        for heads, kv_heads in TOPOLOGIES
        for width in WIDTHS
    ),
    "fallback": {"kind": "chain", "chain": ("qsa_paged_decode_torch",)},
    "state": {"scratch_bytes": 0, "concurrency": "any launches may overlap", "reset": "none to reset"},
    "kernels_per_call": 1,
    "compile_units": tuple(_compile_unit(schedule) for schedule in {s.name: s for _, s in SCHEDULES}.values()),
}


def paged_decode(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    requests: torch.Tensor,
    req_to_slot: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of one query row a sequence over its selected tokens, read from the pool through the slot table.

    Args:
        q: [B, HQ, 256] bf16, contiguous.
        k_pool: [S, HKV, 256] bf16, contiguous; only slots of valid tokens are read.
        v_pool: as k_pool.
        tokens: [B, W] int32, W at most 2055; valid where 0 <= token < length, anything else is a hole.
        lengths: [B] int32, tokens of each row's sequence.
        requests: [B] int32, each row's row of req_to_slot; not checked.
        req_to_slot: [R, L] int32, slot of each token; not checked.
        softmax_scale: multiplies q·k; 1/16 when None.
        out: [B, HQ, 256] bf16, contiguous; allocated when None.

    Returns:
        out. A row without a valid token is exactly zero.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
        RuntimeError: first call of a schedule inside a graph capture.
    """
    problems = _problems((q, k_pool, v_pool), (tokens, lengths, requests, req_to_slot))
    if out is not None and (out.shape != q.shape or out.dtype != q.dtype or not out.is_contiguous()):
        problems.append(f"out is {tuple(out.shape)} {out.dtype}; allowed: {tuple(q.shape)} bfloat16, contiguous")
    if problems:
        raise ValueError("qsa_paged_decode_clustered: " + "; ".join(problems) + ".")
    out = torch.empty_like(q) if out is None else out
    scale = 1.0 / math.sqrt(HEAD_DIM) if softmax_scale is None else softmax_scale
    if q.device.type == "cpu":
        return out.copy_(_twin((q, k_pool, v_pool), (tokens, lengths, requests, req_to_slot), scale))
    device, kv_heads = q.device.index, k_pool.shape[1]
    slots = q.shape[0] * kv_heads
    schedule = schedule_for(slots)
    stream = _stream(device, torch.cuda.current_stream(device).cuda_stream)
    pointers = (t.data_ptr() for t in (q, k_pool, v_pool, tokens, lengths, requests, req_to_slot, out))
    # A launch goes to the current device, whatever the stream's own is.
    with torch.cuda.device(device):
        kernel, config = _kernel(device, schedule), _config(schedule, slots)
        # cuda.core passes a Python float as a double, and an int in 64 bits: an `int` parameter takes the lower half.
        _core().launch(
            stream, config, kernel, *pointers, scale * LOG2_E, kv_heads, tokens.shape[1], req_to_slot.shape[1]
        )
    return out


def _problems(rows: tuple[torch.Tensor, ...], indices: tuple[torch.Tensor, ...]) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json."""
    q, k_pool, v_pool = rows
    tokens, lengths, requests, req_to_slot = indices
    found = []
    if q.dim() != 3 or k_pool.dim() != 3 or k_pool.shape != v_pool.shape:
        return ["q must be [B, HQ, 256], k_pool and v_pool [S, HKV, 256] of one shape"]
    if (q.shape[1], k_pool.shape[1]) not in TOPOLOGIES or q.shape[2] != HEAD_DIM or k_pool.shape[2] != HEAD_DIM:
        found.append(
            f"heads and width are {tuple(q.shape[1:])} and {tuple(k_pool.shape[1:])}; allowed: (24, 2) or (12, 1) x 256"
        )
    if not 1 <= q.shape[0] <= MAX_BATCH:
        found.append(f"B is {q.shape[0]}; allowed: 1 to {MAX_BATCH}")
    if any(t.dtype != torch.bfloat16 or not t.is_contiguous() or t.data_ptr() % 16 for t in rows):
        found.append("q, k_pool and v_pool must be contiguous bfloat16, 16-byte aligned")
    if any(t.dtype != torch.int32 or not t.is_contiguous() for t in indices):
        found.append("tokens, lengths, requests and req_to_slot must be contiguous int32")
    batch = q.shape[0]
    if tokens.dim() != 2 or tokens.shape[0] != batch or not 1 <= tokens.shape[1] <= MAX_WIDTH:
        found.append(f"tokens is {tuple(tokens.shape)}; allowed: ({batch}, 1 to {MAX_WIDTH})")
    if (lengths.numel(), requests.numel()) != (batch, batch) or req_to_slot.dim() != 2:
        found.append("lengths and requests must have B elements, req_to_slot two dimensions")
    if len({t.device for t in (*rows, *indices)}) != 1:
        found.append("all tensors must be on one device")
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
            "qsa_paged_decode_clustered: the first call with this many rows is inside a graph capture; allowed: after one "
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
                f"qsa_paged_decode_clustered: cuKernelSetAttribute({attribute.name}, {value}) returned {status}; "
                "allowed: a device of SM90"
            )


def _twin(rows: tuple[torch.Tensor, ...], indices: tuple[torch.Tensor, ...], scale: float) -> torch.Tensor:
    """What the kernel computes, in torch: FP32 scores and sums, P rounded to BF16 for its product. [B, HQ, 256] float32."""
    q, k_pool, v_pool = rows
    tokens, lengths, requests, req_to_slot = indices
    out = torch.zeros(q.shape, dtype=torch.float32)
    for b in range(q.shape[0]):
        mine = tokens[b].long()
        mine = mine[(mine >= 0) & (mine < lengths[b])]
        if not len(mine):
            continue
        slots = req_to_slot[requests[b].long(), mine].long()
        queries = q[b].float().view(k_pool.shape[1], GROUP, HEAD_DIM)
        keys, values = (pool[slots].float().transpose(0, 1) for pool in (k_pool, v_pool))
        scores = queries @ keys.transpose(1, 2) * (scale * LOG2_E)
        p = torch.exp2(scores - scores.amax(dim=-1, keepdim=True))
        attended = p.to(torch.bfloat16).float() @ values / p.sum(dim=-1, keepdim=True)
        out[b] = attended.reshape(-1, HEAD_DIM)
    return out
