"""Suites on what `qsa.packed_decode` returns: batches, edges, symmetries, analytic answers, memory it must not touch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_packed_decode.cases import (
    PUBLISHED,
    TOPOLOGIES,
    edge_calls,
    lengths,
)
from kda_lab.suites.bench import WHOLE_LIMIT, Bench
from kda_lab.suites.suite import Case, Outcome
from kda_lab.verify import metrics
from kda_lab.verify.guarded import GuardedBuffer, copy_strided, same_bits
from kda_lab.verify.launching import run_arm

TP1, TP2 = TOPOLOGIES["tp1"], TOPOLOGIES["tp2"]
MAX_BATCH = 128
UNIT_SHAPES = (((1,), TP2), ((17, 64, 65), TP1), ((511, 2048, 2051), TP2), ((7, 127), TP1))
"""Cases of the source thread's first test file, with their heads."""
PADDED = ((1, 1, 1, 1), (11, 20, 21, 1, 1, 1, 1, 1), (10, 11, 12, 13, 1, 1, 1, 1), (1, 700, 1))
"""Lengths of batches that a CUDA graph padded with rows of one key."""
EMPTY = ((0,), (0, 0, 0), (0, 65), (65, 0), (0, 17, 0, 600, 0))
CONSTANT_TOLERANCE = 2.0**-8
"""Of an output over constant values: P is rounded and its sum is not, so the weights add up to 1 only so far."""


def every_batch(bench: Bench) -> list[Case]:
    """Each batch from 1 to 128 on both topologies, lengths 17 + 37 r mod 211."""
    return [
        _judged(bench, f"{name}-B{batch}", lengths("short", batch), heads)
        for batch in range(1, MAX_BATCH + 1)
        for name, heads in TOPOLOGIES.items()
    ]


def known_shapes(bench: Bench) -> list[Case]:
    """The lengths that the source thread recorded or tested, short ones first."""
    recorded = [(live, heads) for live in PUBLISHED.values() for heads in TOPOLOGIES.values()]
    shapes = sorted([*UNIT_SHAPES, *recorded], key=lambda shape: sum(shape[0]) * shape[1][1])
    return [_judged(bench, f"{heads[0]}/{heads[1]}: {_short(live)}", live, heads) for live, heads in shapes]


def padded_rows(bench: Bench) -> list[Case]:
    """A row of one key returns that key's value bit for bit, whatever rows stand beside it."""
    batches = [*PADDED, (1,) * MAX_BATCH]
    return [_case(_padded, bench, live, heads) for live in batches for heads in TOPOLOGIES.values()]


def empty_rows(bench: Bench) -> list[Case]:
    """A row without keys returns exactly zero: first, last, between others, or all of them."""
    return [_case(_empty, bench, live, heads) for live in EMPTY for heads in TOPOLOGIES.values()]


def guard_bands(bench: Bench) -> list[Case]:
    """Nothing is written outside the output, every element inside is, inputs stay, NaN behind the live end stays out."""
    batches = ((5,), (33, 0, 64), (700, 1, 96))
    return [_case(_guarded, bench, live, heads) for live in batches for heads in TOPOLOGIES.values()]


def permutations(bench: Bench) -> list[Case]:
    """Keys in another order give the same answer; rows in another order give their answers in that order."""
    batches = ((65, 130), (17, 300, 64, 9))
    checks = (("keys reversed", _keys_reversed), ("rows reversed", _rows_reversed))
    return [
        Case(f"{name}, {heads[0]}/{heads[1]}: {_short(live)}", partial(check, bench, live, heads))
        for live in batches
        for heads in TOPOLOGIES.values()
        for name, check in checks
    ]


def shifts(bench: Bench) -> list[Case]:
    """The same vector added to every key changes nothing; scores of a thousand do not overflow."""
    shifted = [_case(_shifted, bench, (65, 200), heads) for heads in TOPOLOGIES.values()]
    return [*shifted, Case("big scores", lambda: Outcome(bench.judged(_edge(bench, "big_scores"))))]


def analytic(bench: Bench) -> list[Case]:
    """Zero keys give the mean of V, one dominant key its value, constant values themselves."""
    return [
        Case("zero keys: mean of V", lambda: Outcome(bench.judged(_edge(bench, "zero_keys")))),
        Case("dominant key: its value", partial(_dominant, bench)),
        Case("constant values", partial(_constant, bench)),
        Case("2055 keys: the draft width", lambda: Outcome(bench.judged(_edge(bench, "draft_width")))),
    ]


def ranks_agree(bench: Bench) -> list[Case]:
    """Each half of a TP1 output is what its TP2 rank computes from its own heads and KV head."""
    batches = ((130,), (858,), (64, 700, 17))
    return [Case(f"rank {r}: {_short(live)}", partial(_rank, bench, live, r)) for live in batches for r in (0, 1)]


def _judged(bench: Bench, name: str, live: Sequence[int], heads: tuple[int, int]) -> Case:
    return Case(name, lambda: Outcome(bench.judged(bench.call(live, heads))))


def _case(check: Callable[..., Outcome], bench: Bench, live: Sequence[int], heads: tuple[int, int]) -> Case:
    return Case(f"{heads[0]}/{heads[1]}: {_short(live)}", partial(check, bench, live, heads))


def _short(live: Sequence[int]) -> str:
    return ", ".join(map(str, live)) if len(live) <= 8 else f"{len(live)} rows of {min(live)} to {max(live)}"


def _edge(bench: Bench, name: str) -> Call:
    return edge_calls(bench.seed, bench.device)[name]


def _segments(call: Call) -> Iterator[tuple[int, int]]:
    ends = call.inputs["cu_seqlens_k"].tolist()
    return itertools.pairwise(ends)


def _padded(bench: Bench, live: Sequence[int], heads: tuple[int, int]) -> Outcome:
    call = bench.call(live, heads)
    out = bench.run(call)
    fault = bench.fault(call, out)
    rows = [(b, start) for b, (start, end) in enumerate(_segments(call)) if end - start == 1]
    wanted = call.inputs["v"][[start for _, start in rows]].repeat_interleave(heads[0] // heads[1], dim=1)
    got = out[[b for b, _ in rows]]
    wrong = int((got != wanted).flatten(1).any(1).sum())
    return Outcome(fault or (f"{wrong} of {len(rows)} rows of one key are not its value; allowed: 0" if wrong else ""))


def _empty(bench: Bench, live: Sequence[int], heads: tuple[int, int]) -> Outcome:
    call = bench.call(live, heads)
    out = bench.run(call)
    mine = out[[b for b, length in enumerate(live) if not length]]
    if not same_bits(mine, torch.zeros_like(mine)):
        return Outcome(f"{int((mine != 0).sum())} elements of empty rows are not zero (or are -0); allowed: 0")
    return Outcome(bench.fault(call, out) if any(live) else "")


def _guarded(bench: Bench, live: Sequence[int], heads: tuple[int, int]) -> Outcome:
    call = bench.call(live, heads)
    before = {name: copy_strided(tensor) for name, tensor in call.inputs.items()}
    buffer = GuardedBuffer(call.outputs["out"])
    call = call.with_outputs(out=buffer.view())
    launch = bench.bind(call)
    for turn in range(2):
        buffer.poison(turn)
        run_arm("launch", launch, bench.device)
        left, broken = int(buffer.unwritten().sum()), buffer.broken_guards()
        if left or broken:
            return Outcome(f"{left} elements of the output are not written, {broken} outside of it are; allowed: 0, 0")
    changed = [name for name, tensor in call.inputs.items() if not same_bits(tensor, before[name])]
    fault = f"inputs {changed} were changed; allowed: none" if changed else ""
    return Outcome(fault or bench.fault(call, buffer.view()))


def _close(out: torch.Tensor, wanted: torch.Tensor) -> Outcome:
    """Two answers to one question: within the limit of the whole, and whether their bits agree."""
    error = metrics.rel_l2(out, wanted)
    note = "same bits" if same_bits(out, wanted) else f"rel-L2 {error:.2g}"
    bad = not metrics.within(error, WHOLE_LIMIT)
    return Outcome(f"the answers differ by {error:.3g} (rel-L2); allowed: {WHOLE_LIMIT:g}" if bad else "", note)


def _keys_reversed(bench: Bench, live: Sequence[int], heads: tuple[int, int]) -> Outcome:
    call = bench.call(live, heads)
    order = torch.arange(call.inputs["k"].shape[0], device=bench.device)
    for start, end in _segments(call):
        order[start:end] = order[start:end].flip(0)
    turned = call.with_inputs(k=call.inputs["k"][order], v=call.inputs["v"][order])
    first = bench.run(call)
    again = bench.run(turned)
    fault = bench.fault(turned, again)
    return Outcome(fault) if fault else _close(again, first)


def _rows_reversed(bench: Bench, live: Sequence[int], heads: tuple[int, int]) -> Outcome:
    call = bench.call(live, heads, guard_rows=0)
    order = [row for start, end in reversed(list(_segments(call))) for row in range(start, end)]
    ends = torch.tensor([0, *reversed(live)]).cumsum(0).to(call.inputs["cu_seqlens_k"])
    at = torch.tensor(order, device=bench.device)
    k, v = call.inputs["k"][at], call.inputs["v"][at]
    turned = call.with_inputs(q=call.inputs["q"].flip(0), k=k, v=v, cu_seqlens_k=ends)
    first = bench.run(call).flip(0)
    return _close(bench.run(turned), first)


def _shifted(bench: Bench, live: Sequence[int], heads: tuple[int, int]) -> Outcome:
    call = bench.call(live, heads)
    # Sixteenths below 4 and their sums are exact in BF16, so that only the kernel can round.
    k = (call.inputs["k"].float() * 16).round().clamp(-63, 63) / 16
    shift = (
        torch.randint(-32, 33, k.shape[1:], generator=torch.Generator().manual_seed(bench.seed)).to(bench.device) / 16
    )
    plain = call.with_inputs(k=k.bfloat16())
    moved = call.with_inputs(k=(k + shift).bfloat16())
    return _close(bench.run(moved), bench.run(plain))


def _dominant(bench: Bench) -> Outcome:
    call = _edge(bench, "dominant_key")
    v = call.inputs["v"]
    at = call.inputs["cu_seqlens_k"][:-1].long() + 5
    wanted = v[at].repeat_interleave(call.inputs["q"].shape[1] // v.shape[1], dim=1)
    return _close(bench.run(call), wanted)


def _constant(bench: Bench) -> Outcome:
    call = _edge(bench, "equal_values")
    constant = float(call.inputs["v"].flatten()[0])
    off = float(((bench.run(call).float() - constant).abs() / abs(constant)).max())
    note = f"largest deviation {off:.2g} of the constant"
    # Written so that a NaN fails.
    return Outcome("" if off <= CONSTANT_TOLERANCE else f"{note}; allowed: {CONSTANT_TOLERANCE:g}", note)


def _rank(bench: Bench, live: Sequence[int], rank: int) -> Outcome:
    whole = bench.call(live, TP1)
    half = bench.call(live, TP2)
    mine = slice(rank * TP2[0], (rank + 1) * TP2[0])
    k, v = (whole.inputs[name][:, rank : rank + 1].contiguous() for name in ("k", "v"))
    of_rank = half.with_inputs(q=whole.inputs["q"][:, mine].contiguous(), k=k, v=v)
    return _close(bench.run(of_rank), bench.run(whole)[:, mine].contiguous())
