"""NVFP4 W4A4 GEMM for up to 16 tokens on SM90: CUDA C++ that streams the weights once and decodes them in registers.

The kernel and the ideas behind it stand in the .cu file beside this one; this file plans and launches it. One launch a
call, no scratch memory, no atomics, the same bits every launch. CPU tensors run a torch twin with the same decoding,
which serves checks on machines without a GPU.

Imports torch and cuda.core only (and its driver bindings, for one attribute). Layouts and allow-list: source thread
(sglang PR 36865, KDA NVFP4 GEMM for Qwen3.x on SM120); code written here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

CUDA_SOURCE = Path(__file__).with_suffix(".cu").read_text()
CPU_TWIN = True
"""CPU tensors are served by `_twin`."""

WARPS = 16
DEPTH = 2
"""Units that a warp has in flight. Three were slower on every shape measured on one H200."""
STEP_K = 256
UNIT_BYTES = 2304
BLOCK_ROWS = 128
TILES_PER_BLOCK = 8
MAX_M = 16
MAX_N = 1 << 18
MAX_K = 32768
MAX_SHARED_BYTES = 227 * 1024
STANDARD = "c++17"
POLICIES = ("stream", "persist")
SCALE_DTYPES = (torch.uint8, torch.float8_e4m3fn)
H200_CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 15}
"""Cluster size to the clusters that one H200 (132 SMs) held at once, one CTA an SM."""

WAVES = tuple(1 << i for i in range(9))
"""Large N in many rows needs more CTAs than run at once: each then leaves fewer partial tiles."""

# Microseconds on one H200, fitted to six shapes: a launch, a unit, a step of activations, a cluster's barriers.
START_US, UNIT_US, STEP_US, CLUSTER_US, RANK_US = 3.0, 0.075, 0.05, 1.4, 0.05


def _compile_unit(token_tiles: int) -> dict[str, Any]:
    return {
        "function": _name(token_tiles),
        "signature": {},
        "constants": {"TOKEN_TILES": token_tiles, "WARPS": WARPS, "DEPTH": DEPTH},
        "num_warps": WARPS,
        "num_stages": DEPTH,
        "options": (f"-std={STANDARD}",),
        "dynamic_shared_bytes": MAX_SHARED_BYTES,
        "capabilities": ((9, 0),),
    }


def _name(token_tiles: int) -> str:
    return f"nvfp4_gemm<{token_tiles}, {WARPS}, {DEPTH}>"


_CODES = {"dtypes": ("uint8",), "alignment_bytes": 16}
_SCALES = {"dtypes": ("uint8", "float8_e4m3fn"), "alignment_bytes": 16}
CONTRACT = {
    "op": "nvfp4.gemm",
    "kernel": "nvfp4_gemm_streamed",
    "entry": "gemm",
    "language": "cuda",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "NVFP4 GEMM of decode steps on SM90, contract of sglang PR 36865 (source thread: SM120)",
    "tensors": {
        "x_fp4": {**_CODES, "shape": ("M", "K/2")},
        "weight": {**_CODES, "shape": ("K/2", "N"), "transposed": True},
        "x_sf": {**_SCALES, "shape": ("ceil128(M)", "ceil4(K/16)")},
        "weight_sf": {**_SCALES, "shape": ("ceil4(K/16)", "ceil128(N)"), "transposed": True},
        "alpha": {"dtypes": ("float32",), "shape": (1,), "alignment_bytes": 4},
        "out": {"dtypes": ("bfloat16", "float32"), "shape": ("M", "N"), "alignment_bytes": 4, "optional": True},
    },
    "scalars": {"out_dtype": {"kind": "dtype", "allowed": ("bfloat16", "float32")}},
    "callable": (
        {
            "axes": {
                "M": {"minimum": 1, "maximum": MAX_M},
                "N": {"minimum": 1, "maximum": MAX_N},
                "K": {"minimum": 64, "maximum": MAX_K, "multiple_of": 64},
            },
            "basis": "whole atoms of scales; x of one CTA's share of K fits into shared memory",
        },
    ),
    "fallback": {"kind": "chain", "chain": ("flashinfer_mm_fp4", "nvfp4_gemm_portable")},
    "state": {"scratch_bytes": 0, "concurrency": "any launches may overlap", "reset": "none to reset"},
    "kernels_per_call": 1,
    "compile_units": tuple(_compile_unit(token_tiles) for token_tiles in (1, 2)),
}


@dataclass(frozen=True)
class Plan:
    """How one launch is cut."""

    ranks: int
    """CTAs of a cluster; they share K."""
    clusters: int
    slots: int
    """Partial tiles that a warp may leave behind before its last one."""
    splits: tuple[int, int]
    """Tiles a cluster, and steps of K a rank, each as the kernel's `Split`."""
    shared_bytes: int
    cost_us: float


def plan(M: int, N: int, K: int, capacity: Mapping[int, int] = H200_CLUSTERS) -> Plan:
    """The cheapest cut of a shape.

    Args:
        M, N, K: extents.
        capacity: cluster size to the clusters that the device holds at once.

    Raises:
        ValueError: no cut fits into shared memory.
    """
    token_tiles, tiles, steps = -(-M // 8), -(-N // BLOCK_ROWS) * TILES_PER_BLOCK, -(-K // STEP_K)
    cuts = [
        _cut(token_tiles, tiles, steps, Grid(ranks, most, waves))
        for ranks, most in capacity.items()
        for waves in WAVES
        if most and ranks <= steps
    ]
    fitting = [cut for cut in cuts if cut.shared_bytes <= MAX_SHARED_BYTES]
    if not fitting:
        raise _refusal("(M, N, K)", (M, N, K), "a shape whose x fits into the shared memory of 8 CTAs")
    return min(fitting, key=lambda cut: cut.cost_us)


class Grid(NamedTuple):
    """Cluster size, clusters at once, and how many times that many are launched."""

    ranks: int
    at_once: int
    waves: int


def _cut(token_tiles: int, tiles: int, steps: int, grid: Grid) -> Plan:
    ranks, clusters = grid.ranks, min(grid.at_once * grid.waves, tiles)
    most_tiles, most_steps = -(-tiles // clusters), -(-steps // ranks)
    units = most_tiles * most_steps
    # Alone in K, a warp stores at once the tiles that it has whole.
    slots = 1 if ranks == 1 else (-(-units // WARPS) - 1) // (steps // ranks) + 1
    staged_bytes = max(most_steps * 4096, most_tiles * 512 if ranks > 1 else 0)
    shared_bytes = token_tiles * (staged_bytes + WARPS * slots * 512) + WARPS * DEPTH * UNIT_BYTES
    barriers_us = CLUSTER_US + RANK_US * ranks if ranks > 1 else 0.0
    wave_us = START_US + UNIT_US * units + STEP_US * token_tiles * most_steps + barriers_us
    splits = (_split(tiles, clusters), _split(steps, ranks))
    return Plan(ranks, clusters, slots, splits, shared_bytes, wave_us * grid.waves)


def _split(total: int, count: int) -> int:
    """A `Split` of the kernel: two 32-bit ints, items a span in the lower half, longer spans in the upper one."""
    each, longer = divmod(total, count)
    return each | longer << 32


def gemm(
    x_fp4: torch.Tensor,
    weight: torch.Tensor,
    x_sf: torch.Tensor,
    weight_sf: torch.Tensor,
    alpha: torch.Tensor,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """y[m, n] = alpha · sum_k a(m, k) · sfa(m, k // 16) · w(n, k) · sfw(n, k // 16), rounded once at the store.

    Args:
        x_fp4:     [M, K/2] uint8, row-major, M 1 to 16, K a multiple of 64; low nibble = even k.
        weight:    [K/2, N] uint8, strides (1, K/2).
        x_sf:      [ceil128(M), ceil4(K/16)] uint8 or float8_e4m3fn, bytes in the 128x4 swizzle.
        weight_sf: [ceil4(K/16), ceil128(N)], transposed view, likewise.
        alpha:     [1] float32.
        out_dtype: bfloat16 or float32.
        out:       [M, N] out_dtype, row-major; allocated when None.
    Returns:   out.
    Raises:    ValueError for arguments that the kernel does not serve.
    """
    return gemm_with_policy(x_fp4, weight, x_sf, weight_sf, alpha, out_dtype=out_dtype, out=out)


def gemm_with_policy(
    x_fp4: torch.Tensor,
    weight: torch.Tensor,
    x_sf: torch.Tensor,
    weight_sf: torch.Tensor,
    alpha: torch.Tensor,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
    weight_policy: str = "stream",
    scale_policy: str = "stream",
) -> torch.Tensor:
    """`gemm` with the L2 hints of the weight and scale copies: `stream` (evict first) or `persist` (evict last)."""
    operands = (x_fp4, weight, x_sf, weight_sf, alpha)
    M, N, K = _checked_shape(*operands)
    if weight_policy not in POLICIES or scale_policy not in POLICIES:
        raise _refusal("policies", (weight_policy, scale_policy), POLICIES)
    if out_dtype not in (torch.bfloat16, torch.float32):
        raise _refusal("out_dtype", out_dtype, "bfloat16, float32")
    if out is None:
        out = torch.empty(M, N, dtype=out_dtype, device=x_fp4.device)
    if out.shape != (M, N) or out.dtype != out_dtype or not out.is_contiguous() or out.device != x_fp4.device:
        raise _refusal("out", f"{tuple(out.shape)} {out.dtype} on {out.device}", f"{(M, N)} {out_dtype}, row-major")
    if x_fp4.device.type == "cpu":
        return out.copy_(_twin(*operands))
    persist = (weight_policy == "persist") + 2 * (scale_policy == "persist")
    _launch(operands, out, (M, N, K), persist)
    return out


def _refusal(field: str, given: Any, allowed: Any) -> ValueError:
    return ValueError(f"nvfp4_gemm_streamed: {field} is {given}; allowed: {allowed}")


def _checked_shape(*operands: torch.Tensor) -> tuple[int, int, int]:
    """(M, N, K) of the operands, all of whose dtypes, layouts and devices fit together."""
    x_fp4, weight = operands[:2]
    if x_fp4.dim() != 2 or weight.dim() != 2:
        raise _refusal("x_fp4 and weight", f"{x_fp4.dim()}-D and {weight.dim()}-D", "2-D tensors")
    M, K, N = x_fp4.shape[0], 2 * x_fp4.shape[1], weight.shape[1]
    if not (1 <= M <= MAX_M and 1 <= N <= MAX_N and 64 <= K <= MAX_K and K % 64 == 0):
        raise _refusal("(M, N, K)", (M, N, K), f"M 1 to {MAX_M}, N 1 to {MAX_N}, K 64 to {MAX_K} in multiples of 64")
    rows, columns, padded = -(-M // BLOCK_ROWS) * BLOCK_ROWS, -(-K // 64) * 4, -(-N // BLOCK_ROWS) * BLOCK_ROWS
    shapes = ((M, K // 2), (K // 2, N), (rows, columns), (columns, padded), (1,))
    for name, tensor, shape in zip(("x_fp4", "weight", "x_sf", "weight_sf", "alpha"), operands, shapes, strict=True):
        # Of a weight [K/2, N] the rows lie behind one another: it is the transposed view that is contiguous.
        layout = tensor.t() if name.startswith("weight") and tensor.dim() == 2 else tensor
        dtypes = (torch.float32,) if name == "alpha" else SCALE_DTYPES if name.endswith("_sf") else (torch.uint8,)
        fits = tuple(tensor.shape) == shape and layout.is_contiguous() and tensor.dtype in dtypes
        if not fits or tensor.device != x_fp4.device or tensor.data_ptr() % (4 if name == "alpha" else 16):
            given = f"{tuple(tensor.shape)} {tensor.dtype}, strides {tensor.stride()}, on {tensor.device}"
            order = "column-major" if name.startswith("weight") else "row-major"
            raise _refusal(name, given, f"{shape}, {dtypes}, {order}, 16-byte aligned, on {x_fp4.device}")
    return M, N, K


def _launch(operands: tuple[torch.Tensor, ...], out: torch.Tensor, shape: tuple[int, int, int], persist: int) -> None:
    device = operands[0].device.index
    config, cut = _config(device, shape)
    numbers = (*shape, int(out.dtype is torch.float32), cut.ranks, cut.slots, persist, *cut.splits)
    stream = _stream(device, torch.cuda.current_stream(device).cuda_stream)
    pointers = (tensor.data_ptr() for tensor in (*operands, out))
    # A launch goes to the current device, whatever the stream's own is.
    with torch.cuda.device(device):
        # cuda.core passes a Python int in 64 bits; an `int` parameter takes the lower half, which comes first.
        _core().launch(stream, config, _kernel(device, -(-shape[0] // 8)), *pointers, *numbers)


def _core() -> Any:
    import cuda.core  # lazy: needed on a GPU only

    return cuda.core


@functools.lru_cache(maxsize=256)
def _stream(device: int, handle: int) -> Any:
    return _core().Stream.from_handle(handle)


@functools.lru_cache(maxsize=4096)
def _config(device: int, shape: tuple[int, int, int]) -> tuple[Any, Plan]:
    cut = plan(*shape, _capacity(device, -(-shape[0] // 8)))
    return _launch_config(cut.ranks, cut.clusters, cut.shared_bytes), cut


def _launch_config(ranks: int, clusters: int, shared_bytes: int) -> Any:
    cluster = {"cluster": ranks} if ranks > 1 else {}
    return _core().LaunchConfig(grid=clusters, block=WARPS * 32, shmem_size=shared_bytes, **cluster)


@functools.cache
def _capacity(device: int, token_tiles: int) -> Mapping[int, int]:
    """Cluster size to the clusters that the device holds at once: which of its SMs are fused off differs by card."""
    occupancy = _kernel(device, token_tiles).occupancy
    stream = _stream(device, torch.cuda.current_stream(device).cuda_stream)
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    found = {1: sms}
    with torch.cuda.device(device):
        for ranks in (2, 4, 8):
            config = _launch_config(ranks, sms // ranks, MAX_SHARED_BYTES)
            found[ranks] = occupancy.max_active_clusters(config, stream=stream)
    return found


@functools.cache
def _kernel(device: int, token_tiles: int) -> Any:
    """Compile for a device and allow the kernel all of an SM's shared memory; about a second, once a process."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"nvfp4_gemm_streamed: the first call with {8 * token_tiles - 7} to {8 * token_tiles} tokens is inside a graph "
            "capture; allowed: after one such call outside it, which compiles the kernel"
        )
    core = _core()
    name = _name(token_tiles)
    with torch.cuda.device(device):
        major, minor = torch.cuda.get_device_capability(device)
        core.Device(device).set_current()
        options = core.ProgramOptions(arch=f"sm_{major}{minor}", std=STANDARD)
        kernel = core.Program(CUDA_SOURCE, "c++", options).compile("cubin", name_expressions=[name]).get_kernel(name)
        _allow_all_shared_memory(kernel, device)
    return kernel


def _allow_all_shared_memory(kernel: Any, device: int) -> None:
    from cuda.bindings import driver  # lazy: needed on a GPU only

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (status,) = driver.cuKernelSetAttribute(attribute, MAX_SHARED_BYTES, kernel.handle, device)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"nvfp4_gemm_streamed: cuKernelSetAttribute returned {status}; allowed: a device of SM90")


def _twin(*operands: torch.Tensor) -> torch.Tensor:
    """What the kernel computes, in torch: the same decoding to FP16, products and sums in FP32. [M, N] float32."""
    x_fp4, weight, x_sf, weight_sf, alpha = operands
    x = _decoded(x_fp4, x_sf.view(torch.uint8))
    w = _decoded(weight.t(), weight_sf.view(torch.uint8).t())
    # 2^28: each decoded operand is worth 2^-14 of its value.
    return (x @ w.t()) * 268435456.0 * alpha


def _decoded(packed: torch.Tensor, container: torch.Tensor) -> torch.Tensor:
    """Codes times scales times 2^-14, as FP16 holds them exactly; returned as float32 [rows, K]."""
    rows, K = packed.shape[0], 2 * packed.shape[1]
    codes = torch.stack((packed & 0xF, packed >> 4), dim=-1).view(rows, K).to(torch.int32)
    bits = ((codes & 7) << 9) | ((codes & 8) << 12)
    halves = torch.where(bits < 0x8000, bits, bits - 0x10000).to(torch.int16).view(torch.float16)
    blocks, columns = container.shape[0] // BLOCK_ROWS, container.shape[1]
    scales = container.reshape(blocks, columns // 4, 32, 4, 4).permute(0, 3, 2, 1, 4).reshape(-1, columns)
    scales = scales[:rows, : -(-K // 16)].contiguous().view(torch.float8_e4m3fn).to(torch.float16)
    return (halves * scales.repeat_interleave(16, dim=1)).to(torch.float32)
