"""KDA verification of T draft tokens on SM90: CUDA C++ that works out the tokens once, then reads each state once.

The kernel and the ideas behind it stand in the .cu file beside this one; this file picks how many value rows a CTA has
and launches it. One launch a call, no scratch memory, the same bits every launch, any launches may overlap. The launch
is programmatic: it begins while the stream's earlier kernel ends, and waits for it before it reads. CPU tensors run a
torch twin of the same unrolled sums, which serves checks on machines without a GPU.

`kda.verify_ring/staged.cu` is the same device code but for one line: outputs and windows have the same bits.
Imports torch and cuda.core only (and its driver bindings, for one attribute). Idea: source thread (sglang PR 36821);
code written here.
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

NAME = "kda_verify_snapshots_staged"
RING = False
"""As the .cu file says it."""
LEAST_BOUND = -5.0
MAX_TOKENS = 16
MAX_BATCH = 4096
WIDTHS = (16, 32, 48, 64, 80, 96, 100, 128)
THREADS = 128
STANDARD = "c++17"
ROWS = ((48, 32), (256, 64))
"""(Most heads x requests, value rows a CTA); 128 for more. Fewer rows work the tokens out oftener, on more SMs."""
SHORT_DRAFT = 4
"""Most tokens at which a CTA keeps 128 rows while it stores snapshots: for eight of them two fit an SM, not three."""
POSITIONS = ("mixed_qkv", "a", "b")
"""Inputs whose rows and tokens may lie apart."""
POOLS = ("conv_state", "state")
FP32 = ("a_log", "dt_bias", "state")


class Variant(NamedTuple):
    """One compiled kernel."""

    tokens: int
    keys: int
    values: int
    rows: int
    safe: bool
    wide: bool
    """Rows of mixed_qkv, a and the pools begin where four channels can be loaded at once."""
    bf16_weight: bool

    @property
    def name(self) -> str:
        gate, wide = str(self.safe).lower(), str(self.wide).lower()
        weight = "unsigned short" if self.bf16_weight else "float"
        return f"kda_verify<{self.tokens}, {self.keys}, {self.values}, {self.rows}, {gate}, {wide}, {weight}>"

    @property
    def shared_bytes(self) -> int:
        """The state's rows, what they are multiplied by, products of pairs, strengths, barriers; keys, decays and v."""
        pitch = -(-self.tokens // 4) * 4
        beside = (self.rows + 2 * self.tokens) * self.keys + 2 * self.tokens * pitch + pitch + 8
        drafted = self.tokens * (2 * self.keys + self.rows)
        # With a ring, tokens 5 to 8 lie where the last rows come later, if these have room for them.
        late = RING and self.rows == 128 and 4 < self.tokens <= 8 and drafted <= self.rows // 4 * self.keys
        return 4 * (beside + (0 if late else drafted))


def rows_for(slots: int, tokens: int, values: int) -> int:
    """Value rows of a CTA where `slots` = requests x value heads; no more than the values need."""
    rows = next((rows for most, rows in ROWS if slots <= most), 128 if RING or tokens <= SHORT_DRAFT else 64)
    return min(rows, next(enough for enough in (32, 64, 128) if values <= enough))


def _compile_unit(variant: Variant) -> dict[str, Any]:
    return {
        "function": variant.name,
        "signature": {},
        "constants": {"T": variant.tokens, "K": variant.keys, "V": variant.values, "ROWS": variant.rows},
        "num_warps": THREADS // 32,
        "num_stages": 1,
        "options": (f"-std={STANDARD}",),
        "dynamic_shared_bytes": variant.shared_bytes,
        "capabilities": ((9, 0),),
    }


_UNITS = itertools.product((4, 8), (128,), (128,), (32, 64, 128), (True,), (True,), (True, False))
_BF16 = {"dtypes": ("bfloat16",), "contiguous": True, "alignment_bytes": 16}
_ROWS = {**_BF16, "free_leading": 2}
_FP32 = {"dtypes": ("float32",), "contiguous": True, "alignment_bytes": 16}
_OUT = {"optional": True}
CONTRACT = {
    "op": "kda.verify_snapshots",
    "kernel": "kda_verify_snapshots_staged",
    "entry": "verify_snapshots",
    "language": "cuda",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "KDA verification of draft tokens with a snapshot of the state after each token on SM90 (BF16, FP32 state)",
    "tensors": {
        "mixed_qkv": {**_ROWS, "shape": ("B", "T", "C")},
        "conv_state": {**_BF16, "free_leading": 1, "shape": ("S", 3, "C")},
        "conv_weight": {**_FP32, "dtypes": ("bfloat16", "float32"), "shape": (4, "C")},
        "a": {**_ROWS, "shape": ("B", "T", "G")},
        "b": {**_ROWS, "shape": ("B", "T", "HV"), "alignment_bytes": 2},
        "a_log": {**_FP32, "shape": ("HV",), "alignment_bytes": 4},
        "dt_bias": {**_FP32, "shape": ("G",)},
        "state": {**_FP32, "free_leading": 1, "shape": ("S", "HV", "V", "K")},
        "state_indices": {"dtypes": ("int32",), "contiguous": True, "shape": ("B",), "alignment_bytes": 4},
        "out": {**_BF16, **_OUT, "shape": ("B", "T", "HV", "V")},
        "windows": {**_BF16, **_OUT, "shape": ("B", "T", 3, "C")},
        "snapshots": {**_FP32, **_OUT, "shape": ("B", "T", "HV", "V", "K")},
    },
    "scalars": {"lower_bound": {"kind": "float", "minimum": LEAST_BOUND, "maximum": -1e-6, "optional": True}},
    "callable": (
        {
            "axes": {
                "B": {"minimum": 1, "maximum": MAX_BATCH},
                "T": {"minimum": 1, "maximum": MAX_TOKENS},
                "K": WIDTHS,
                "V": WIDTHS,
            },
            "basis": "widths of the source thread; C is 2·H·K + HV·V, G is HV·K, with HV a multiple of H",
        },
    ),
    "range_axis": "B",
    "fallback": {"kind": "chain", "chain": ("kda_verify_snapshots_torch",)},
    "state": {"scratch_bytes": 0, "concurrency": "any launches may overlap", "reset": "none to reset"},
    "kernels_per_call": 1,
    "compile_units": tuple(_compile_unit(Variant(*unit)) for unit in _UNITS),
}


def verify_snapshots(
    mixed_qkv: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    *,
    lower_bound: float | None,
    out: torch.Tensor | None = None,
    windows: torch.Tensor | None = None,
    snapshots: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Run T draft tokens a request from its state, which stays as it is; keep the state after each.

    Args:
        mixed_qkv: [B, T, C] bf16, raw: q, k and v heads; row and token strides free.
        conv_state: [slots, 3, C] bf16, the tokens before, oldest first; slot stride free.
        conv_weight: [4, C] bf16 or fp32.
        a: [B, T, HV·K] bf16, raw gate; row and token strides free.
        b: [B, T, HV] bf16, raw write strength; row and token strides free.
        a_log, dt_bias: [HV] and [HV·K] fp32.
        state: [slots, HV, V, K] fp32; slot stride free. Strides that are no multiple of four elements are slower.
        state_indices: [B] int32; -1 is padding, whose outputs are zero.
        lower_bound: of the safe gate, -5 <= lower_bound < 0; None takes the softplus gate.
        out: [B, T, HV, V] bf16.
        windows: [B, T, 3, C] bf16, the convolution's window after each token.
        snapshots: [B, T, HV, V, K] fp32, the state after each token.

    Returns:
        out, windows and snapshots; each is allocated when None.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
        RuntimeError: first call of a variant inside a graph capture.
    """
    tensors = {"mixed_qkv": mixed_qkv, "conv_state": conv_state, "conv_weight": conv_weight, "a": a, "b": b}
    tensors |= {"a_log": a_log, "dt_bias": dt_bias, "state": state, "state_indices": state_indices}
    return _run(tensors, lower_bound, {"out": out, "windows": windows, "snapshots": snapshots})


def _extents(tensors: dict[str, torch.Tensor]) -> tuple[int, int, int, int, int, int]:
    """B, T, H, HV, K, V; H is what is left of a row of mixed_qkv."""
    batch, tokens, width = tensors["mixed_qkv"].shape
    _, value_heads, values, keys = tensors["state"].shape
    return batch, tokens, (width - value_heads * values) // (2 * keys), value_heads, keys, values


def _expected(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of each output."""
    batch, tokens, heads, value_heads, keys, values = _extents(tensors)
    front, bf16, fp32 = (batch, tokens), torch.bfloat16, torch.float32
    both = {
        "out": ((*front, value_heads, values), bf16),
        "windows": ((*front, 3, tensors["mixed_qkv"].shape[2]), bf16),
    }
    if not RING:
        return {**both, "snapshots": ((*front, value_heads, values, keys), fp32)}
    return {
        **both,
        "ring_k": ((*front, heads, keys), bf16),
        "ring_v": ((*front, value_heads, values), bf16),
        "ring_g": ((*front, value_heads, keys), fp32),
        "ring_beta": ((*front, value_heads), fp32),
    }


def _run(
    tensors: dict[str, torch.Tensor], lower_bound: float | None, outputs: dict[str, torch.Tensor | None]
) -> tuple[torch.Tensor, ...]:
    """Check, allocate what is None, and launch, or run the twin of CPU tensors."""
    problems = _problems(tensors, lower_bound)
    if not problems:
        expected, device = _expected(tensors), tensors["state"].device
        problems = [p for n, t in outputs.items() if t is not None for p in _misfits(n, t, *expected[n], device)]
    if problems:
        raise ValueError(f"{NAME}: " + "; ".join(problems) + ".")
    given = {
        n: torch.empty(s, dtype=d, device=device) if (t := outputs[n]) is None else t for n, (s, d) in expected.items()
    }
    if device.type == "cpu":
        for name, value in _twin(tensors, lower_bound).items():
            if name in given:
                given[name].copy_(value)
    else:
        _launch(tensors, lower_bound, given)
    return tuple(given.values())


def _misfits(
    name: str, out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> list[str]:
    """What is wrong with an output that was given."""
    if not isinstance(out, torch.Tensor):
        return [f"{name} is {type(out).__name__}; allowed: a tensor, or None"]
    if out.device != device:
        return [f"{name} is on {out.device}; allowed: {device}, as the inputs"]
    fits = out.shape == shape and out.dtype == dtype and out.is_contiguous()
    fits = fits and not (out.data_ptr() % (4 if name == "ring_beta" else 16))
    return [] if fits else [f"{name} is {tuple(out.shape)} {out.dtype}; allowed: {shape} {dtype}, contiguous, aligned"]


def _problems(tensors: dict[str, torch.Tensor], lower_bound: float | None) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json."""
    strangers = [n for n, t in tensors.items() if not isinstance(t, torch.Tensor)]
    if strangers:
        return [f"{n} is {type(tensors[n]).__name__}; allowed: a tensor" for n in strangers]
    found = []
    if lower_bound is not None and not LEAST_BOUND <= lower_bound < 0:
        found.append(f"lower_bound is {lower_bound}; allowed: None, or {LEAST_BOUND} <= lower_bound < 0")
    qkv, state = tensors["mixed_qkv"], tensors["state"]
    if qkv.dim() != 3 or state.dim() != 4:
        return [*found, "mixed_qkv must be [B, T, C] and state [slots, HV, V, K]"]
    return found + _extent_problems(tensors) + _layout_problems(tensors)


def _extent_problems(tensors: dict[str, torch.Tensor]) -> list[str]:
    """What extents and shapes have against a launch."""
    width, (slots, value_heads, values, keys) = tensors["mixed_qkv"].shape[2], tensors["state"].shape
    if keys not in WIDTHS or values not in WIDTHS:
        return [f"K and V are {keys} and {values}; allowed: {', '.join(map(str, WIDTHS))}"]
    if value_heads < 1:
        return [f"HV is {value_heads}; allowed: at least 1"]
    batch, tokens, heads, *_ = _extents(tensors)
    if heads < 1 or 2 * heads * keys + value_heads * values != width or value_heads % heads:
        return [
            f"C is {width} with HV {value_heads}, V {values}, K {keys}; allowed: 2·H·K + HV·V with HV a multiple of H"
        ]
    wanted = {
        "conv_state": (slots, 3, width),
        "conv_weight": (4, width),
        "a": (batch, tokens, value_heads * keys),
        "b": (batch, tokens, value_heads),
        "a_log": (value_heads,),
        "dt_bias": (value_heads * keys,),
        "state_indices": (batch,),
    }
    found = [f"{n} is {tuple(tensors[n].shape)}; allowed: {s}" for n, s in wanted.items() if tensors[n].shape != s]
    if not (1 <= tokens <= MAX_TOKENS and 1 <= batch <= MAX_BATCH):
        found.append(f"B and T are {batch} and {tokens}; allowed: 1 to {MAX_BATCH} and 1 to {MAX_TOKENS}")
    return found


def _layout_problems(tensors: dict[str, torch.Tensor]) -> list[str]:
    """What dtypes, strides, addresses and devices have against a launch."""
    found = []
    for name, t in tensors.items():
        dtype = torch.float32 if name in FP32 else torch.int32 if name == "state_indices" else torch.bfloat16
        if t.dtype != dtype and not (name == "conv_weight" and t.dtype == torch.float32):
            found.append(f"{name} is {t.dtype}; allowed: {dtype}")
        if name in POSITIONS and t.stride(-1) != 1 and t.shape[-1] > 1:
            found.append(f"the last axis of {name} must be contiguous")
        if name not in (*POSITIONS, *POOLS) and not t.is_contiguous():
            found.append(f"{name} must be contiguous")
    if not all(tensors[n][:1].is_contiguous() for n in POOLS):
        found.append("state and conv_state must be contiguous within a slot")
    if any(tensors[n].data_ptr() % 16 for n in ("conv_weight", "dt_bias")):
        found.append("conv_weight and dt_bias must be 16-byte aligned")
    if len({t.device for t in tensors.values()}) != 1:
        found.append("all tensors must be on one device")
    return found


def _wide(tensors: dict[str, torch.Tensor]) -> bool:
    """Whether four channels of every row that may lie apart can be loaded at once, and states copied in bulk."""
    free = [(tensors[n], 2) for n in ("mixed_qkv", "a")] + [(tensors[n], 1) for n in POOLS]
    return all(
        t.data_ptr() % (4 * t.element_size()) == 0 and all(t.shape[i] == 1 or t.stride(i) % 4 == 0 for i in range(axes))
        for t, axes in free
    )


def _launch(tensors: dict[str, torch.Tensor], lower_bound: float | None, given: dict[str, torch.Tensor]) -> None:
    qkv, conv, a, b, state = (tensors[n] for n in ("mixed_qkv", "conv_state", "a", "b", "state"))
    batch, tokens, heads, value_heads, keys, values = _extents(tensors)
    rows = rows_for(batch * value_heads, tokens, values)
    bf16_weight = tensors["conv_weight"].dtype == torch.bfloat16
    variant = Variant(tokens, keys, values, rows, lower_bound is not None, _wide(tensors), bf16_weight)
    pointers = [t.data_ptr() for t in tensors.values()]
    for name in ("out", "windows", "snapshots", "ring_k", "ring_v", "ring_g", "ring_beta"):
        pointers.append(given[name].data_ptr() if name in given else 0)
    strides = (*qkv.stride()[:2], conv.stride(0), *a.stride()[:2], *b.stride()[:2], state.stride(0))
    numbers = (0.0 if lower_bound is None else float(lower_bound), keys**-0.5)
    device = state.device.index
    stream = _stream(device, torch.cuda.current_stream(device).cuda_stream)
    # A launch goes to the current device, whatever the stream's own is.
    with torch.cuda.device(device):
        kernel = _kernel(device, variant)
        config = _config((-(-values // rows), value_heads, batch), variant.shared_bytes)
        # cuda.core passes a Python float as a double, and an int in 64 bits: an `int` parameter takes the lower half.
        _core().launch(stream, config, kernel, *pointers, *strides, *numbers, heads, value_heads)


def _core() -> Any:
    import cuda.core  # lazy: needed on a GPU only

    return cuda.core


@functools.lru_cache(maxsize=256)
def _stream(device: int, handle: int) -> Any:
    return _core().Stream.from_handle(handle)


@functools.lru_cache(maxsize=1024)
def _config(grid: tuple[int, int, int], shared_bytes: int) -> Any:
    # Programmatic: the launch overlaps the end of the kernel before it.
    shape = {"grid": grid, "block": THREADS, "shmem_size": shared_bytes}
    return _core().LaunchConfig(**shape, programmatic_stream_serialization=True)


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


def _drafted(tensors: dict[str, torch.Tensor], lower_bound: float | None) -> dict[str, torch.Tensor]:
    """What the recurrence reads, by name, and windows; zero for requests without a slot."""
    _, tokens, heads, value_heads, keys, values = _extents(tensors)
    live = tensors["state_indices"] >= 0
    past = tensors["conv_state"][tensors["state_indices"].clamp(min=0).long()]
    raw = torch.cat([past, tensors["mixed_qkv"]], 1)
    windows = torch.stack([raw[:, 1 + j : 1 + j + tokens] for j in range(3)], 2)
    weight = tensors["conv_weight"].float()
    total = weight[0] * raw[:, :tokens].float()
    for j in range(1, 4):
        total = total + weight[j] * raw[:, j : j + tokens].float()
    y = (total * torch.sigmoid(total)).bfloat16()
    q, k, v = y.split([heads * keys, heads * keys, value_heads * values], -1)
    x = (tensors["a"].float() + tensors["dt_bias"]).unflatten(-1, (value_heads, keys))
    rate = tensors["a_log"].exp()[:, None]
    soft = torch.where(x > 20, x, torch.log(1 + torch.exp(x)))
    g = -rate * soft if lower_bound is None else lower_bound * torch.sigmoid(rate * x)
    found = {"windows": windows, "ring_k": k.unflatten(-1, (heads, keys)), "ring_g": g}
    found |= {"ring_v": v.unflatten(-1, (value_heads, values)), "ring_beta": torch.sigmoid(tensors["b"].float())}
    found["q"] = q.unflatten(-1, (heads, keys))
    return {n: torch.where(live.view(-1, *[1] * (t.dim() - 1)), t, torch.zeros_like(t)) for n, t in found.items()}


def _twin(tensors: dict[str, torch.Tensor], lower_bound: float | None) -> dict[str, torch.Tensor]:
    """What the kernel computes, in torch: every output of both ops by name, FP32 sums over the state before them."""
    batch, tokens, heads, value_heads, keys, _ = _extents(tensors)
    drafted = _drafted(tensors, lower_bound)
    index = tensors["state_indices"]
    state = tensors["state"][index.clamp(min=0).long()].where((index >= 0).view(-1, 1, 1, 1), torch.zeros(()))
    q, k = (drafted[n].float().repeat_interleave(value_heads // heads, 2) for n in ("q", "ring_k"))
    q = q * (keys**-0.5 * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6))
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    decay, v, beta = drafted["ring_g"].exp(), drafted["ring_v"].float(), drafted["ring_beta"]
    outs, snapshots, d, now = [], [], list[torch.Tensor](), state
    for t in range(tokens):
        since, value, out = torch.ones(batch, value_heads, keys), v[:, t], 0.0
        for s in range(t, -1, -1):
            before = k[:, s] * since
            if s < t:
                value = value - (k[:, t] * before).sum(-1, keepdim=True) * d[s]
                out = out + (q[:, t] * before).sum(-1, keepdim=True) * d[s]
            since = since * decay[:, s]
        d.append(beta[:, t, :, None] * (value - (state * (k[:, t] * since)[..., None, :]).sum(-1)))
        out = out + (q[:, t] * k[:, t]).sum(-1, keepdim=True) * d[t]
        outs.append(out + (state * (q[:, t] * since)[..., None, :]).sum(-1))
        now = now * decay[:, t, :, None, :] + d[t][..., None] * k[:, t, :, None, :]
        snapshots.append(now)
    return {**drafted, "out": torch.stack(outs, 1), "snapshots": torch.stack(snapshots, 1)}
