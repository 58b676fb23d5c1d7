"""Attention residuals in one launch: many tokens stream through a few programs, few tokens have a program each.

Many tokens: every row is read once, and an online softmax holds the mix in registers. A fixed number of programs walks through the tokens. The rows of all tokens of a program form one long sequence of
steps (the valid snapshots of a token, then its prefix), so that the loads of the next token are in flight while a token
ends: they go through shared memory, several steps ahead. Each step scores its row and adds it to the running mix;
the last step of a token normalises the mix, stores it, and stores the new prefix and the snapshot where they are wanted.

Few tokens leave most of the card idle, and a step waits for the one before: there a program takes all rows of its token
at once, scores them in one reduction and reads them again, from the first-level cache, for the mix. Registers do not
hold a token's rows of the model's width. The two add in another order, so a token's last bits depend on which serves it.

Either way a token is read and written by one program only, so nothing waits for another program and updates in place
are safe.

FP32 arithmetic, base-2 exponentials; the sum of prefix and delta is rounded to BF16 before it is used, as the definition
says; one rounding at the store. Offsets have 64 bits: a bank may hold more than 2^31 elements.
Imports torch and triton only. Definition and idea of one launch: source thread sglang PR 32890; code written here.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

WIDTHS = (256, 576, 640, 7168)
"""Kimi K3's, and those of small models whose hidden states are to be had."""
MAX_TOKENS = 1 << 20
MAX_SNAPSHOTS = 64
LOG2_E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True)
class Schedule:
    """How one launch is cut."""

    programs_per_sm: int
    """At most this many programs an SM walk through the tokens; 0: one program a token."""
    num_warps: int
    num_stages: int
    """Rows are loaded num_stages - 1 steps ahead; of width 7168 a row takes 16 KB of shared memory, a delta as much."""
    registers: int | None = None
    """Most registers of a thread; None leaves it to the compiler, which takes 200 of them where 128 spill nothing."""


NARROW = Schedule(programs_per_sm=16, num_warps=1, num_stages=4)
# By (width, whether a delta is pending). Shared memory of an SM: 228 KB on SM90, 100 KB on SM120 and SM121.
SCHEDULES_SM90 = {
    (7168, False): Schedule(programs_per_sm=2, num_warps=8, num_stages=6, registers=128),
    (7168, True): Schedule(programs_per_sm=2, num_warps=8, num_stages=4, registers=128),
    **dict.fromkeys(itertools.product((256, 576, 640), (False, True)), NARROW),
}
# Compiled, never measured.
SCHEDULES_99_KB = {
    (7168, False): Schedule(programs_per_sm=1, num_warps=8, num_stages=5),
    (7168, True): Schedule(programs_per_sm=1, num_warps=8, num_stages=3),
    **dict.fromkeys(itertools.product((256, 576, 640), (False, True)), NARROW),
}
SMALL_SHARED_MEMORY = ((12, 0), (12, 1))

FEW_TOKENS = 128
"""Up to so many tokens of FEW_WIDTH a program takes all rows of its token at once."""
FEW_WIDTH = 7168
FEW_ROWS = 8
"""Snapshots of a token at most; Kimi K3 saves 8."""
FEW_WARPS = 16


def schedules_for(capability: tuple[int, int]) -> dict[tuple[int, bool], Schedule]:
    """The schedule table of an architecture."""
    return SCHEDULES_99_KB if capability in SMALL_SHARED_MEMORY else SCHEDULES_SM90


@triton.jit(do_not_specialize=("T", "valid", "slots", "write"))
def _residual_kernel(
    p_bank,
    p_prefix,
    p_delta,
    p_score_weight,
    p_out_weight,
    p_out,
    epsilon,
    T,
    valid,
    slots,
    write,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ADD: tl.constexpr,
    STAGES: tl.constexpr,
):
    i_p = tl.program_id(0)
    programs = tl.num_programs(0)
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D
    b_score_weight = tl.load(p_score_weight + o_d, mask=m_d, other=0.0)
    rows = valid + 1
    steps = ((T - i_p + programs - 1) // programs) * rows
    b_mix = tl.zeros([BLOCK_D], dtype=tl.float32)
    top = -float("inf")
    total = 0.0
    for step in tl.range(0, steps, num_stages=STAGES):
        i_r = step % rows
        i_t = (i_p + (step // rows) * programs).to(tl.int64)
        is_last = i_r == valid
        p_row = tl.where(is_last, p_prefix + i_t * D, p_bank + (i_t * slots + i_r) * D)
        b_row = tl.load(p_row + o_d, mask=m_d, other=0.0)
        if ADD:
            b_delta = tl.load(p_delta + i_t * D + o_d, mask=m_d & is_last, other=0.0)
            b_row = (b_row.to(tl.float32) + b_delta.to(tl.float32)).to(tl.bfloat16)
        b_x = b_row.to(tl.float32)
        # Both sums in one reduction, which costs its barriers once.
        square, product = tl.split(tl.sum(tl.join(b_x * b_x, b_x * b_score_weight), axis=0))
        score = product * (LOG2_E / tl.sqrt(square * (1.0 / D) + epsilon))
        new_top = tl.maximum(top, score)
        decay = tl.exp2(top - new_top)
        weight = tl.exp2(score - new_top)
        b_mix = b_mix * decay + b_x * weight
        total = total * decay + weight
        top = new_top
        if is_last:
            b_mean = b_mix * (1.0 / total)
            scale = 1.0 / tl.sqrt(tl.sum(b_mean * b_mean, axis=0) * (1.0 / D) + epsilon)
            b_out = b_mean * scale * tl.load(p_out_weight + o_d, mask=m_d, other=0.0)
            tl.store(p_out + i_t * D + o_d, b_out.to(p_out.dtype.element_ty), mask=m_d)
            if ADD:
                tl.store(p_prefix + i_t * D + o_d, b_row, mask=m_d)
            if write != 0:
                tl.store(p_bank + (i_t * slots + valid) * D + o_d, b_row, mask=m_d)
            # A token that holds NaN must not reach the next one.
            b_mix = tl.zeros([BLOCK_D], dtype=tl.float32)
            top = -float("inf")
            total = 0.0


@triton.jit(do_not_specialize=("valid", "slots", "write"))
def _few_kernel(
    p_bank,
    p_prefix,
    p_delta,
    p_score_weight,
    p_out_weight,
    p_out,
    epsilon,
    valid,
    slots,
    write,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    ADD: tl.constexpr,
):
    i_t = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D
    is_row = tl.arange(0, ROWS) < valid
    p_rows = p_bank + (i_t * slots + tl.arange(0, ROWS)[:, None]) * D + o_d[None, :]
    m_rows = is_row[:, None] & m_d[None, :]
    b_x = tl.load(p_rows, mask=m_rows, other=0.0).to(tl.float32)
    b_prefix = tl.load(p_prefix + i_t * D + o_d, mask=m_d, other=0.0)
    b_score_weight = tl.load(p_score_weight + o_d, mask=m_d, other=0.0)
    # Wanted last, and asked for with the others: nothing else would hide its way from memory.
    b_out_weight = tl.load(p_out_weight + o_d, mask=m_d, other=0.0)
    if ADD:
        b_delta = tl.load(p_delta + i_t * D + o_d, mask=m_d, other=0.0)
        b_prefix = (b_prefix.to(tl.float32) + b_delta.to(tl.float32)).to(tl.bfloat16)
    b_y = b_prefix.to(tl.float32)
    squares, products = tl.split(tl.sum(tl.join(b_x * b_x, b_x * b_score_weight[None, :]), axis=1))
    square, product = tl.split(tl.sum(tl.join(b_y * b_y, b_y * b_score_weight), axis=0))
    scores = tl.where(is_row, products * (LOG2_E / tl.sqrt(squares * (1.0 / D) + epsilon)), -float("inf"))
    score = product * (LOG2_E / tl.sqrt(square * (1.0 / D) + epsilon))
    top = tl.maximum(tl.max(scores, axis=0), score)
    weights = tl.exp2(scores - top)
    weight = tl.exp2(score - top)
    total = tl.sum(weights, axis=0) + weight
    # The modifier makes this another load to the compiler, which else would keep b_x and spill it (392 bytes a thread).
    b_again = tl.load(p_rows, mask=m_rows, other=0.0, cache_modifier=".ca").to(tl.float32)
    b_mean = (tl.sum(b_again * weights[:, None], axis=0) + b_y * weight) * (1.0 / total)
    scale = 1.0 / tl.sqrt(tl.sum(b_mean * b_mean, axis=0) * (1.0 / D) + epsilon)
    b_out = b_mean * scale * b_out_weight
    tl.store(p_out + i_t * D + o_d, b_out.to(p_out.dtype.element_ty), mask=m_d)
    if ADD:
        tl.store(p_prefix + i_t * D + o_d, b_prefix, mask=m_d)
    if write != 0:
        tl.store(p_bank + (i_t * slots + valid) * D + o_d, b_prefix, mask=m_d)


POINTERS = {
    **dict.fromkeys(("p_bank", "p_prefix", "p_delta"), "*bf16"),
    **dict.fromkeys(("p_score_weight", "p_out_weight"), "*fp32"),
    "p_out": "*bf16",
}


def _constants(width: int, add: bool, schedule: Schedule) -> dict[str, int | bool]:
    return {
        "D": width,
        "BLOCK_D": triton.next_power_of_2(width),
        "ADD": add,
        "STAGES": schedule.num_stages,
    }


def _few_constants(width: int, add: bool) -> dict[str, int | bool]:
    return {"D": width, "BLOCK_D": triton.next_power_of_2(width), "ROWS": FEW_ROWS, "ADD": add}


def _few_unit(add: bool) -> dict[str, object]:
    constants = _few_constants(FEW_WIDTH, add)
    numbers = {"epsilon": "fp32", **dict.fromkeys(("valid", "slots", "write"), "i32")}
    return {
        "function": "_few_kernel",
        "signature": {**POINTERS, **numbers, **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": tuple(POINTERS),
        "num_warps": FEW_WARPS,
        "num_stages": 1,
        "capabilities": ((9, 0), *SMALL_SHARED_MEMORY),
    }


def _compile_unit(
    width: int, add: bool, schedule: Schedule, capabilities: tuple[tuple[int, int], ...]
) -> dict[str, object]:
    constants = _constants(width, add, schedule)
    numbers = {"epsilon": "fp32", **dict.fromkeys(("T", "valid", "slots", "write"), "i32")}
    return {
        "function": "_residual_kernel",
        "signature": {**POINTERS, **numbers, **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": tuple(POINTERS),
        "num_warps": schedule.num_warps,
        "num_stages": schedule.num_stages,
        "maxnreg": schedule.registers,
        "capabilities": capabilities,
    }


_BF16 = {"dtypes": ("bfloat16",), "contiguous": True, "alignment_bytes": 16}
_WEIGHT = {"dtypes": ("float32",), "shape": ("D",), "contiguous": True, "alignment_bytes": 16}
CONTRACT = {
    "op": "kda.attn_residuals",
    "kernel": "kda_attn_residuals_single_pass",
    "entry": "attn_residuals",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "Kimi K3 attention residuals in one pass over the snapshots (BF16, width 7168)",
    "tensors": {
        "bank": {**_BF16, "shape": ("T", "NB", "D")},
        "prefix": {**_BF16, "shape": ("T", "D")},
        "delta": {**_BF16, "shape": ("T", "D")},
        "score_weight": _WEIGHT,
        "out_weight": _WEIGHT,
        "out": {**_BF16, "shape": ("T", "D"), "optional": True},
    },
    "scalars": {
        "valid": {"kind": "int", "minimum": 0, "maximum": MAX_SNAPSHOTS},
        "write_prefix": {"kind": "bool"},
        "add_delta": {"kind": "bool"},
        "epsilon": {"kind": "float", "minimum": 0.0},
    },
    "callable": (
        {
            "axes": {
                "T": {"minimum": 1, "maximum": MAX_TOKENS},
                "NB": {"minimum": 1, "maximum": MAX_SNAPSHOTS},
                "D": WIDTHS,
            },
            "basis": "any step; widths that were compiled",
        },
    ),
    "range_axis": "T",
    "fallback": {"kind": "chain", "chain": ("kda_attn_residuals_torch",)},
    "state": {"scratch_bytes": 0, "concurrency": "any: launches share nothing", "reset": "none"},
    "kernels_per_call": 1,
    "compile_units": (
        *(
            _compile_unit(width, add, schedule, capabilities)
            for table, capabilities in ((SCHEDULES_SM90, ((9, 0),)), (SCHEDULES_99_KB, SMALL_SHARED_MEMORY))
            for (width, add), schedule in table.items()
        ),
        *(_few_unit(add) for add in (False, True)),
    ),
}
_PROCESSORS: dict[torch.device, int] = {}
_INTERPRETED_PROCESSORS = 1


def _programs(device: torch.device, tokens: int, schedule: Schedule) -> int:
    """Programs of a launch: every SM has the same number of them, or there is one a token."""
    if schedule.programs_per_sm == 0:
        return tokens
    if device not in _PROCESSORS:
        cuda = device.type == "cuda"
        _PROCESSORS[device] = (
            torch.cuda.get_device_properties(device).multi_processor_count if cuda else _INTERPRETED_PROCESSORS
        )
    return min(tokens, _PROCESSORS[device] * schedule.programs_per_sm)


def _problems(
    bank: torch.Tensor, lines: tuple[torch.Tensor, ...], weights: tuple[torch.Tensor, ...], valid: int, write: bool
) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json."""
    if bank.dim() != 3 or any(line.dim() != 2 for line in lines):
        return ["bank must be [T, NB, D], prefix, delta and out [T, D]"]
    found = []
    T, NB, D = bank.shape
    if D not in WIDTHS:
        found.append(f"D is {D}; allowed: {', '.join(map(str, WIDTHS))}")
    if T > MAX_TOKENS or not 1 <= NB <= MAX_SNAPSHOTS:
        found.append(f"T and NB are {T} and {NB}; allowed: up to {MAX_TOKENS} and 1 to {MAX_SNAPSHOTS}")
    if not 0 <= valid <= NB - write:
        found.append(f"valid is {valid}; allowed: 0 to {NB - write}")
    if any(line.shape != (T, D) for line in lines) or any(weight.shape != (D,) for weight in weights):
        found.append(f"prefix, delta and out must be [{T}, {D}], the weights [{D}]")
    if any(t.dtype != torch.bfloat16 for t in (bank, *lines)) or any(t.dtype != torch.float32 for t in weights):
        found.append("bank, prefix, delta and out must be bfloat16, the weights float32")
    if any(not t.is_contiguous() or t.data_ptr() % 16 for t in (bank, *lines, *weights)):
        found.append("every tensor must be contiguous and start on a multiple of 16 bytes")
    return found


def attn_residuals(
    bank: torch.Tensor,
    prefix: torch.Tensor,
    delta: torch.Tensor,
    score_weight: torch.Tensor,
    out_weight: torch.Tensor,
    *,
    valid: int,
    write_prefix: bool,
    add_delta: bool,
    epsilon: float = 1e-6,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mix each token's valid snapshots and its prefix by their scores, then normalise the mix.

    Args:
        bank: [T, NB, D] bf16, contiguous; `bank[:, valid]` is written where `write_prefix`.
        prefix: [T, D] bf16; becomes bf16(prefix + delta) first, where `add_delta`.
        delta: [T, D] bf16; read only where `add_delta`.
        score_weight, out_weight: [D] fp32.
        valid: snapshots of each token that count, 0 to NB, below NB where `write_prefix`.
        epsilon: added to mean squares, of every row and of the mix.
        out: [T, D] bf16, overlaps nothing; allocated when None.

    Returns:
        out. T = 0 launches nothing.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
    """
    out = torch.empty_like(prefix) if out is None else out
    problems = _problems(bank, (prefix, delta, out), (score_weight, out_weight), valid, bool(write_prefix))
    if problems:
        raise ValueError("kda_attn_residuals_single_pass: " + "; ".join(problems) + ".")
    T, NB, D = bank.shape
    if T == 0:
        return out
    tensors = (bank, prefix, delta, score_weight, out_weight, out)
    if D == FEW_WIDTH and T <= FEW_TOKENS and valid <= FEW_ROWS:
        constants = _few_constants(D, bool(add_delta))
        numbers = (epsilon, valid, NB, int(write_prefix))
        _few_kernel[(T,)](*tensors, *numbers, **constants, num_warps=FEW_WARPS, num_stages=1)
        return out
    capability = torch.cuda.get_device_capability(bank.device) if bank.device.type == "cuda" else (9, 0)
    schedule = schedules_for(capability)[D, bool(add_delta)]
    limits = {} if schedule.registers is None or bank.device.type != "cuda" else {"maxnreg": schedule.registers}
    _residual_kernel[(_programs(bank.device, T, schedule),)](
        *tensors,
        epsilon,
        T,
        valid,
        NB,
        int(write_prefix),
        **_constants(D, bool(add_delta), schedule),
        num_warps=schedule.num_warps,
        num_stages=schedule.num_stages,
        **limits,
    )
    return out
