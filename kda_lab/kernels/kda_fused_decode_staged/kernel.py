"""KDA fused decode on SM90: CUDA C++ that copies a head's state in bulk while it works out the token, in one launch.

The kernel and the ideas behind it stand in the .cu file beside this one; this file picks how many CTAs share a head and
launches it. No scratch memory, the same bits every launch. The launch is programmatic: it begins while the stream's
earlier kernel ends, and waits for it before it reads. CPU tensors run a torch twin, which serves checks on machines
without a GPU.

Imports torch and cuda.core only (and its driver bindings, for one attribute). Definition: Kimi Delta Attention as
served (source threads sglang PR 32890 and PR 36304); code written here.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any, NamedTuple

import torch

CUDA_SOURCE = Path(__file__).with_suffix(".cu").read_text()
CPU_TWIN = True
"""CPU tensors are served by `_twin`."""

NAME = "kda_fused_decode_staged"
EPSILON = 1e-6
"""Of the norms of q and k."""
MAX_BATCH = 65535
WIDTHS = (16, 20, 32, 48, 64, 80, 96, 128)
HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
LEAST_BOUND = -5.0
THREADS = 128
HELD = 2
"""Rows that eight lanes hold at once, MOST_HELD of the .cu file."""
STANDARD = "c++17"
SHARED = ((33, 4), (198, 2))
"""(Most heads x requests, CTAs that share a head of 128 channels); one for more."""


class Variant(NamedTuple):
    """One compiled kernel."""

    width: int
    ranks: int
    """CTAs that share a head."""
    safe: bool
    wide: bool
    """Four channels of every tensor can be loaded at once, and states copied in bulk."""
    bf16_state: bool

    @property
    def rows(self) -> int:
        """Rows of the state that a CTA has room for."""
        return next(rows for rows in (16, 32, 64, 128) if rows * self.ranks >= self.width)

    @property
    def name(self) -> str:
        safe, wide = str(self.safe).lower(), str(self.wide).lower()
        state = "unsigned short" if self.bf16_state else "float"
        return f"kda_fused_decode<{self.width}, {self.rows}, {self.ranks}, {safe}, {wide}, {state}>"

    @property
    def shared_bytes(self) -> int:
        """The state's rows; q, k and decays; v and outputs; squares, strength and barriers."""
        passes = max(1, self.rows // (16 * HELD))
        beside = 3 * self.width + 2 * self.rows + 4 * self.ranks + 2 + 8 * passes
        return self.rows * self.width * (2 if self.bf16_state else 4) + 4 * beside


def ranks_for(heads: int, width: int) -> int:
    """CTAs that share a head where `heads` = requests x heads; host-visible facts only."""
    return next((ranks for most, ranks in SHARED if heads <= most), 1) if width == 128 else 1


def _compile_unit(variant: Variant) -> dict[str, Any]:
    return {
        "function": variant.name,
        "signature": {},
        "constants": {"V": variant.width, "ROWS": variant.rows, "RANKS": variant.ranks},
        "num_warps": THREADS // 32,
        "num_stages": 1,
        "options": (f"-std={STANDARD}",),
        "dynamic_shared_bytes": variant.shared_bytes,
        "capabilities": ((9, 0),),
    }


_UNITS = itertools.product((128,), (1, 2, 4), (True, False), (True,), (False, True))
_BF16 = {"dtypes": ("bfloat16",), "free_leading": 1, "alignment_bytes": 2}
_FP32 = {"dtypes": ("float32",), "contiguous": True, "alignment_bytes": 4}
CONTRACT = {
    "op": "kda.fused_decode",
    "kernel": "kda_fused_decode_staged",
    "entry": "fused_decode",
    "language": "cuda",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "Kimi Delta Attention on SM90, one raw token a request: convolution, recurrence, output norm and gate",
    "tensors": {
        "mixed_qkv": {**_BF16, "shape": ("B", "C")},
        "conv_state": {**_BF16, "shape": ("S", 3, "C")},
        "conv_weight": {**_FP32, "shape": (4, "C")},
        "a": {**_BF16, "shape": ("B", "P")},
        "b": {**_BF16, "shape": ("B", "HV")},
        "a_log": {**_FP32, "shape": ("HV",)},
        "dt_bias": {**_FP32, "shape": ("P",)},
        "gate": {**_BF16, "shape": ("B", "P")},
        "norm_weight": {**_FP32, "shape": ("V",)},
        "state": {
            "dtypes": ("float32", "bfloat16"),
            "shape": ("S", "HV", "V", "V"),
            "free_leading": 1,
            "alignment_bytes": 16,
        },
        "state_indices": {"dtypes": ("int32",), "shape": ("B",), "contiguous": True, "alignment_bytes": 4},
        "out": {"dtypes": ("bfloat16",), "shape": ("B", "P"), "alignment_bytes": 2, "optional": True},
    },
    "scalars": {
        "lower_bound": {"kind": "float", "minimum": LEAST_BOUND, "maximum": -1e-6, "optional": True},
        "epsilon": {"kind": "float", "minimum": 0.0, "maximum": 1.0},
    },
    "callable": (
        {
            "axes": {"B": {"minimum": 1, "maximum": MAX_BATCH}, "HV": HEADS, "V": WIDTHS},
            "basis": "heads and widths that were tried; the entry checks that P = HV·V and C = 3P",
        },
    ),
    "fallback": {"kind": "chain", "chain": ("kda_fused_decode_torch",)},
    "state": {
        "scratch_bytes": 0,
        "concurrency": "launches on distinct slots may overlap; the caller's pools are the only memory written",
        "reset": "none",
    },
    "kernels_per_call": 1,
    "compile_units": tuple(_compile_unit(Variant(*unit)) for unit in _UNITS),
}
Tensors = tuple[torch.Tensor, ...]


class Operands(NamedTuple):
    """The tensors of a call, in the order of the kernel's parameters."""

    mixed_qkv: torch.Tensor
    conv_state: torch.Tensor
    conv_weight: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    gate: torch.Tensor
    norm_weight: torch.Tensor
    state: torch.Tensor
    state_indices: torch.Tensor

    @property
    def rows(self) -> Tensors:
        return self.mixed_qkv, self.a, self.b, self.gate

    @property
    def weights(self) -> Tensors:
        return self.conv_weight, self.a_log, self.dt_bias, self.norm_weight


def fused_decode(
    mixed_qkv: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    gate: torch.Tensor,
    norm_weight: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    *,
    lower_bound: float | None = None,
    epsilon: float = 1e-5,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One raw token of Kimi Delta Attention for each request, from the projections to the output projection; P = HV·V.

    Args:
        mixed_qkv: [B, 3P] bf16, raw: q, k and v of all heads; any row stride.
        conv_state: [slots, 3, 3P] bf16, the last three raw tokens, oldest first, any slot stride; shifted in place.
        conv_weight: [4, 3P] fp32; row 3 belongs to the present token.
        a, b: [B, P] and [B, HV] bf16, raw gate and write strength; any row stride.
        a_log, dt_bias: [HV] and [P] fp32.
        gate: [B, P] bf16, raw output gate; any row stride.
        norm_weight: [V] fp32.
        state: [slots, HV, V, V] fp32 or bf16, any slot stride; updated in place. Slots, rows or weights that do not
            begin on multiples of four elements (eight for a bf16 state) are slower.
        state_indices: [B] int32, distinct; -1 gives a zero row and touches no pool.
        lower_bound: of the safe gate, -5 <= lower_bound < 0; None for the softplus gate.
        epsilon: of the output norm, 0 <= epsilon <= 1.
        out: [B, P] bf16, contiguous; allocated when None.

    Returns:
        out.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
        RuntimeError: first call of a variant inside a graph capture.
    """
    operands = Operands(
        *(mixed_qkv, conv_state, conv_weight, a, b, a_log, dt_bias, gate, norm_weight, state, state_indices)
    )
    problems = _problems(operands) or _more_problems(operands, lower_bound, epsilon, out)
    if problems:
        raise ValueError(f"{NAME}: " + "; ".join(problems) + ".")
    out = a.new_empty(a.shape) if out is None else out
    if state.device.type == "cpu":
        _twin(operands, lower_bound, epsilon, out)
    else:
        _launch(operands, lower_bound, epsilon, out)
    return out


def _problems(x: Operands) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json."""
    strangers = {n: t for n, t in x._asdict().items() if not isinstance(t, torch.Tensor)}
    if strangers:
        return [f"{n} is {type(t).__name__}; allowed: a tensor" for n, t in strangers.items()]
    window, state, indices = x.conv_state, x.state, x.state_indices
    if state.dim() != 4 or window.dim() != 3 or any(t.dim() != 2 for t in x.rows) or indices.dim() != 1:
        return ["rows must be [B, …], conv_state [slots, 3, 3P], state [slots, HV, V, V], state_indices [B]"]
    found = []
    slots, HV, V, K = state.shape
    P = HV * V
    if K != V or tuple(window.shape) != (slots, 3, 3 * P):
        found.append(f"state is {tuple(state.shape)} and conv_state {tuple(window.shape)}; allowed: K = V, 3 x 3P")
    if HV < 1:
        found.append(f"HV is {HV}; allowed: at least 1")
    if V not in WIDTHS:
        found.append(f"V is {V}; allowed: {', '.join(map(str, WIDTHS))}")
    if [t.shape[1] for t in x.rows] != [3 * P, P, HV, P]:
        found.append(f"mixed_qkv must be {3 * P} wide, a and gate {P}, b {HV}")
    if [tuple(t.shape) for t in x.weights] != [(4, 3 * P), (HV,), (P,), (V,)]:
        found.append(f"conv_weight must be [4, {3 * P}], a_log [{HV}], dt_bias [{P}], norm_weight [{V}]")
    if any(t.shape[0] != indices.shape[0] for t in x.rows) or not 1 <= indices.shape[0] <= MAX_BATCH:
        found.append(f"B is {indices.shape[0]}; allowed: 1 to {MAX_BATCH}, the same for all rows")
    return found + _layout_problems(x)


def _layout_problems(x: Operands) -> list[str]:
    """What dtypes, strides, addresses and devices have against a launch."""
    found = []
    if any(t.dtype != torch.bfloat16 for t in (*x.rows, x.conv_state)) or any(
        t.dtype != torch.float32 for t in x.weights
    ):
        found.append("rows and conv_state must be bfloat16, weights float32")
    if x.state.dtype not in (torch.float32, torch.bfloat16) or x.state_indices.dtype != torch.int32:
        found.append("state must be float32 or bfloat16, state_indices int32")
    loose = any(t.stride(1) != 1 and t.shape[1] > 1 for t in x.rows)
    if loose or not (x.state[:1].is_contiguous() and x.conv_state[:1].is_contiguous()):
        found.append("rows and slots must be contiguous; their strides are free")
    if not all(t.is_contiguous() for t in (*x.weights, x.state_indices)):
        found.append("weights and state_indices must be contiguous")
    if len({t.device for t in x}) != 1:
        found.append("all tensors must be on one device")
    return found


def _more_problems(x: Operands, lower_bound: float | None, epsilon: float, out: torch.Tensor | None) -> list[str]:
    """The same for what is no tensor of the step; `out` has the shape of the raw gate."""
    found = []
    if lower_bound is not None and not LEAST_BOUND <= lower_bound < 0:
        found.append(f"lower_bound is {lower_bound}; allowed: None, or {LEAST_BOUND} <= lower_bound < 0")
    if not 0 <= epsilon <= 1:
        found.append(f"epsilon is {epsilon}; allowed: 0 <= epsilon <= 1")
    return found if out is None else found + _misfits(x, out)


def _misfits(x: Operands, out: torch.Tensor) -> list[str]:
    """What is wrong with an output that was given."""
    if not isinstance(out, torch.Tensor):
        return [f"out is {type(out).__name__}; allowed: a tensor, or None"]
    if out.device != x.a.device:
        return ["out must be on the device of the other tensors"]
    fits = out.shape == x.a.shape and out.dtype == x.a.dtype and out.is_contiguous()
    if fits and out.data_ptr() % out.element_size() == 0:
        return []
    return [f"out is {tuple(out.shape)} {out.dtype}; allowed: {tuple(x.a.shape)} {x.a.dtype}, contiguous, aligned"]


def _wide(x: Operands) -> bool:
    """Whether four channels can be loaded and stored at once everywhere, and states copied in bulk."""
    sizes = [(t, 4 * t.element_size()) for t in (x.mixed_qkv, x.a, x.conv_state, x.conv_weight, x.dt_bias)]
    free = [(x.mixed_qkv, 8), (x.a, 8), (x.conv_state, 8), (x.state, 16)]
    return all(t.data_ptr() % size == 0 for t, size in (*sizes, (x.state, 16))) and all(
        t.shape[0] == 1 or t.stride(0) * t.element_size() % size == 0 for t, size in free
    )


def _launch(x: Operands, lower_bound: float | None, epsilon: float, out: torch.Tensor) -> None:
    batch, heads, width = x.state_indices.shape[0], *x.state.shape[1:3]
    ranks = ranks_for(batch * heads, width)
    variant = Variant(width, ranks, lower_bound is not None, _wide(x), x.state.dtype == torch.bfloat16)
    strides = [t.stride(0) for t in (x.mixed_qkv, x.conv_state, x.a, x.b, x.gate, x.state)]
    numbers = (0.0 if lower_bound is None else float(lower_bound), float(epsilon), width**-0.5)
    device = x.state.device.index
    stream = _stream(device, torch.cuda.current_stream(device).cuda_stream)
    # A launch goes to the current device, whatever the stream's own is.
    with torch.cuda.device(device):
        kernel = _kernel(device, variant)
        config = _config(heads, batch, ranks, variant.shared_bytes)
        # cuda.core passes a Python float as a double, and an int in 64 bits: an `int` parameter takes the lower half.
        pointers = [t.data_ptr() for t in (*x, out)]
        _core().launch(stream, config, kernel, *pointers, *strides, *numbers, heads)


def _core() -> Any:
    import cuda.core  # lazy: needed on a GPU only

    return cuda.core


@functools.lru_cache(maxsize=256)
def _stream(device: int, handle: int) -> Any:
    return _core().Stream.from_handle(handle)


@functools.lru_cache(maxsize=1024)
def _config(heads: int, batch: int, ranks: int, shared_bytes: int) -> Any:
    # With clusters, cuda.core counts the grid in them. Programmatic: the launch overlaps the kernel before it.
    shape = {"grid": (heads, batch), "block": THREADS, "shmem_size": shared_bytes}
    cluster = {"cluster": ranks} if ranks > 1 else {}
    return _core().LaunchConfig(**shape, **cluster, programmatic_stream_serialization=True)


@functools.cache
def _kernel(device: int, variant: Variant) -> Any:
    """Compile for a device and allow the kernel its shared memory; a second or two, once a process and variant."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{NAME}: the first call of {variant} is inside a graph capture; allowed: after one such call outside it, "
            "which compiles the kernel"
        )
    core = _core()
    with torch.cuda.device(device):
        major, minor = torch.cuda.get_device_capability(device)
        core.Device(device).set_current()
        options = core.ProgramOptions(arch=f"sm_{major}{minor}", std=STANDARD)
        module = core.Program(CUDA_SOURCE, "c++", options).compile("cubin", name_expressions=[variant.name])
        kernel = module.get_kernel(variant.name)
        _allow(kernel, device, variant.shared_bytes)
    return kernel


def _allow(kernel: Any, device: int, shared_bytes: int) -> None:
    from cuda.bindings import driver  # lazy: needed on a GPU only

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (status,) = driver.cuKernelSetAttribute(attribute, shared_bytes, kernel.handle, device)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{NAME}: {shared_bytes} bytes of shared memory gave {status}; allowed: a device of SM90")


def _decays(x: Operands, live: torch.Tensor, lower_bound: float | None) -> torch.Tensor:
    """[L, HV, V] fp32: exp of the log-decays of the live requests."""
    raw = (x.a[live].float() + x.dt_bias).unflatten(1, x.state.shape[1:3])
    rate = x.a_log.exp()[:, None]
    if lower_bound is not None:
        return torch.exp(lower_bound * torch.sigmoid(rate * raw))
    return torch.exp(-rate * torch.where(raw > 20, raw, torch.log(1 + torch.exp(raw))))


def _twin(x: Operands, lower_bound: float | None, epsilon: float, out: torch.Tensor) -> None:
    """What the kernel computes, in torch: FP32 with both sums on the decayed state; writes `out` and both pools.

    All inputs are read before anything is written: `out` may be the gate.
    """
    live = (x.state_indices >= 0).nonzero()[:, 0]
    slots = x.state_indices[live].long()
    HV, V = x.state.shape[1:3]
    raw = torch.cat([x.conv_state[slots], x.mixed_qkv[live, None]], 1)
    total = x.conv_weight[0] * raw[:, 0].float()
    for j in range(1, 4):
        total = total + x.conv_weight[j] * raw[:, j].float()
    y = (total * torch.sigmoid(total)).bfloat16().float()
    q, k, v = y.unflatten(1, (3, HV, V)).unbind(1)
    q = q * (torch.rsqrt(q.square().sum(-1, keepdim=True) + EPSILON) * V**-0.5)
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + EPSILON)
    state = x.state[slots].float() * _decays(x, live, lower_bound)[..., None, :]
    strength = torch.sigmoid(x.b[live].float())[..., None]
    d = strength * (v - (state * k[..., None, :]).sum(-1))
    o = (state * q[..., None, :]).sum(-1) + d * (k * q).sum(-1, keepdim=True)
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + epsilon) * x.norm_weight
    row = (o.flatten(1) * torch.sigmoid(x.gate[live].float())).bfloat16()
    x.state[slots] = (state + d[..., None] * k[..., None, :]).to(x.state.dtype)
    x.conv_state[slots] = raw[:, 1:]
    out.zero_()
    out[live] = row
