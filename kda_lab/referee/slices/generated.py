"""Made-up traces of a decode step with KDA, MLA and expert layers, drawn from a seed: fixtures, never measurements.

The pair has the shape of the projection fusion of sglang PR 36206: five projections of a KDA layer become three, of
which two move to a side stream. The totals of its representative slice are those that the thread prints for four layers
(`BASELINE`, `CANDIDATE`): wall, summed durations, kernels, and the three KDA prologues. Everything else is made up: which kernels
there are, how long each takes, the gaps, the side stream of the shared expert, and so union, overlap and idle. The
thread says that nodes fall by three a layer though only two projections go; here the third is a split-K reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from kda_lab.referee.slices.kernel_list import Kernel

MAIN, SIDE, DEVICE = 7, 23, 0
BLOCKS, BLOCK_LAYERS = 3, 4
"""Of a made-up step; a block holds the experts of four layers and the attention after each: three times KDA, once MLA."""
PER_STEP, FIRST, LAST = BLOCKS * BLOCK_LAYERS, 4, 8
"""Markers of a step, and those that bound the slice: the second block."""
MARKER = "void moe_fused_gate_kernel<float, 8>(float const*, int*, int)"
SEED = 2026
LEAST_GAP_NS, MOST_GAP_NS = 600, 1100
FORK_NS, STEP_GAP_NS = 900, 40_000
EXPERTS_NS, SHARED_NS = 210_000, 76_000
"""Of one layer: its experts on the main stream, and the sum of its shared expert on the side stream."""


@dataclass(frozen=True)
class Targets:
    """Totals of the representative slice, as the thread prints them, in nanoseconds."""

    wall_ns: int
    summed_ns: int
    prologues_ns: int
    """Of its three KDA layers together, from first start to last end."""
    fused: bool


BASELINE = Targets(1_977_695, 2_190_766, 420_304, fused=False)
CANDIDATE = Targets(1_951_731, 2_363_971, 351_697, fused=True)

_REDUCE = "void cublasLt::splitKreduce_kernel<32, 16, int, float>(float const*)"


def _nvjet(tile: str) -> str:
    return f"nvjet_tst_{tile}_64x4_2x1_v_bz_TNT"


Weights = Sequence[tuple[str, int]]
"""Kernels of a chain with their shares of its time."""
_UNFUSED: Weights = (
    (_nvjet("128x64"), 70), (_nvjet("64x8"), 12), (_REDUCE, 4), (_nvjet("64x8"), 12), (_REDUCE, 4), (_nvjet("64x16"), 14),
    (_nvjet("64x64"), 24),
)  # fmt: skip
_FUSED: Weights = ((_nvjet("192x64"), 1),)
_FUSED_SIDE: Weights = ((_nvjet("64x24"), 34), (_REDUCE, 4), (_nvjet("64x16"), 24))
_KDA: Weights = (
    ("causal_conv1d_update_kernel", 18), ("kda_gate_kernel", 9), ("kda_recurrent_decode_kernel", 96),
    ("kda_gated_rmsnorm_kernel", 10), (_nvjet("64x32"), 48), (_REDUCE, 5), ("attn_res_combine_kernel", 14),
)  # fmt: skip
_MLA: Weights = (
    (_nvjet("64x16"), 30), (_REDUCE, 5), ("mla_rmsnorm_kernel", 6), (_nvjet("64x64"), 28), ("mla_rope_concat_kernel", 7),
    ("mla_set_kv_kernel", 6), (_nvjet("64x48"), 22), ("mla_splitkv_decode_kernel", 120), ("mla_combine_kernel", 12),
    (_nvjet("64x48"), 22), (_nvjet("64x64"), 24), ("mla_output_gate_kernel", 6), (_nvjet("64x32"), 48), (_REDUCE, 5),
    ("attn_res_scores_kernel", 12), ("attn_res_combine_kernel", 14),
)  # fmt: skip
_EXPERTS: Weights = (
    (MARKER, 8), ("per_token_group_quant_kernel", 6), ("moe_permute_kernel", 9), (_nvjet("64x32"), 16),
    ("moe_grouped_gemm_up_kernel", 74), ("moe_situ_and_mul_kernel", 8), ("moe_grouped_gemm_down_kernel", 62),
    ("moe_finalize_kernel", 12), ("attn_res_scores_kernel", 12), ("attn_res_combine_kernel", 14), (_nvjet("64x8"), 13),
)  # fmt: skip
_SHARED: Weights = ((_nvjet("64x40"), 40), ("moe_shared_situ_kernel", 5), (_nvjet("64x56"), 31))


def made_up_kernels(targets: Targets, steps: int = 5, seed: int = SEED) -> list[Kernel]:
    """Kernels of some decode steps, in order of start; the median wall of the slice is exactly that of the targets.

    Args:
        targets: totals of the slice between `FIRST` and `LAST`.
        steps: an odd number, at least 1.
        seed: of the gaps between kernels and of the spread over steps, at most 0.4 % either way.
    """
    random = Random(seed)  # noqa: S311
    half = steps // 2
    spread = [
        0.0,
        *(-random.uniform(0.001, 0.004) for _ in range(half)),
        *(random.uniform(0.001, 0.004) for _ in range(half)),
    ]
    random.shuffle(spread)
    kernels: list[Kernel] = []
    start_ns = 1_000_000
    for change in spread:
        for _ in range(BLOCKS):
            kernels += _block(targets, change, start_ns, random)
            start_ns += _scaled(targets.wall_ns, change)
        start_ns += STEP_GAP_NS
    return sorted(kernels, key=lambda k: (k.start_ns, k.stream))


def _block(targets: Targets, change: float, start_ns: int, random: Random) -> list[Kernel]:
    """Four layers whose wall, summed durations and prologues are the targets, scaled."""
    main, shared_at, prologue_at = _main_stream(targets, change, start_ns, random)
    left_ns = _scaled(targets.summed_ns, change) - sum(k.duration_ns for k in main)
    side: list[Kernel] = []
    if targets.fused:
        prologues_ns = left_ns - BLOCK_LAYERS * SHARED_NS
        for place, at in enumerate(prologue_at):
            side += _chain(_FUSED_SIDE, SIDE, at + FORK_NS, _share(prologues_ns, len(prologue_at), place), random)
        left_ns -= prologues_ns
    for place, at in enumerate(shared_at):
        side += _chain(_SHARED, SIDE, at + FORK_NS, _share(left_ns, BLOCK_LAYERS, place), random)
    return [*main, *side]


def _main_stream(
    targets: Targets, change: float, start_ns: int, random: Random
) -> tuple[list[Kernel], list[int], list[int]]:
    """Kernels of the main stream, and when the experts and the prologues of its layers begin."""
    prologues_ns = _scaled(targets.prologues_ns, change)
    rest_ns = _scaled(targets.wall_ns, change) - prologues_ns - BLOCK_LAYERS * EXPERTS_NS
    mla_ns = rest_ns * sum(w for _, w in _MLA) // (sum(w for _, w in _MLA) + 3 * sum(w for _, w in _KDA))
    kernels: list[Kernel] = []
    shared_at: list[int] = []
    prologue_at: list[int] = []
    at = start_ns
    for layer in range(BLOCK_LAYERS):
        shared_at.append(at)
        kernels += _filled(_EXPERTS, at, EXPERTS_NS, random)
        at += EXPERTS_NS
        if layer == BLOCK_LAYERS - 1:
            return [*kernels, *_filled(_MLA, at, mla_ns, random)], shared_at, prologue_at
        prologue_at.append(at)
        prologue_ns = _share(prologues_ns, BLOCK_LAYERS - 1, layer)
        kernels += _filled(_FUSED if targets.fused else _UNFUSED, at, prologue_ns, random, gap_after_ns=0)
        gap_ns = random.randint(LEAST_GAP_NS, MOST_GAP_NS)
        span_ns = _share(rest_ns - mla_ns, BLOCK_LAYERS - 1, layer)
        kernels += _filled(_KDA, at + prologue_ns + gap_ns, span_ns - gap_ns, random)
        at += prologue_ns + span_ns
    raise AssertionError("a block ends with its MLA layer")


def _filled(
    weights: Weights, start_ns: int, span_ns: int, random: Random, gap_after_ns: int = LEAST_GAP_NS
) -> list[Kernel]:
    """A chain on the main stream that fills a span but for the gaps between its kernels and the one after the last."""
    gaps = [random.randint(LEAST_GAP_NS, MOST_GAP_NS) for _ in weights[1:]]
    return _placed(weights, MAIN, start_ns, span_ns - sum(gaps) - gap_after_ns, gaps)


def _chain(weights: Weights, stream: int, start_ns: int, summed_ns: int, random: Random) -> list[Kernel]:
    """A chain whose durations sum to a given time, with gaps between."""
    gaps = [random.randint(LEAST_GAP_NS, MOST_GAP_NS) for _ in weights[1:]]
    return _placed(weights, stream, start_ns, summed_ns, gaps)


def _placed(weights: Weights, stream: int, start_ns: int, summed_ns: int, gaps: Sequence[int]) -> list[Kernel]:
    total = sum(w for _, w in weights)
    durations = [summed_ns * w // total for _, w in weights]
    # What the rounding left goes to the first kernel, so that the sum is exact.
    durations[0] += summed_ns - sum(durations)
    kernels = []
    for (name, _), duration, gap in zip(weights, durations, [*gaps, 0], strict=True):
        kernels.append(Kernel(name, DEVICE, stream, start_ns, duration))
        start_ns += duration + gap
    return kernels


def _scaled(value_ns: int, change: float) -> int:
    return round(value_ns * (1 + change))


def _share(total: int, parts: int, place: int) -> int:
    """One of `parts` whole shares; the first takes what does not divide evenly."""
    return total // parts + (total % parts if place == 0 else 0)
