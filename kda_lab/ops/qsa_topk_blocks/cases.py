"""Calls of `qsa.topk_blocks`: benchmark rows, synthetic scores, guard columns, changed lengths, edge cases.

Axes: B rows, N columns, k ids a row. scores [B, N] fp32, lengths [B] int32, blocks [B, k] int32. Columns at or behind a
row's length hold -inf, as the scorer leaves them, or NaN once guards are asked for.
Synthetic tensors depend on (label, seed) and on the device type: CPU and CUDA draw different numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Call, Row
from kda_lab.ops.qsa_topk_blocks.spec import SPEC

TOPK_BLOCKS = 512
"""Blocks a row in the released model: 2048 tokens in blocks of 4."""
INDEX_HEADS = 4
COLUMNS = (512, 4096, 65536)
BATCHES = (1, 4, 16, 64)
LENGTHS = ("full", "mixed")
MINUS_INFINITY = float("-inf")


def _scores(B: int, N: int, draw: dict[str, Any]) -> torch.Tensor:
    """As the scorer makes them: a sum over the index heads of rectified products."""
    return torch.randn(INDEX_HEADS, B, N, **draw).relu_().sum(0)


def _signed(B: int, N: int, draw: dict[str, Any]) -> torch.Tensor:
    return torch.randn(B, N, **draw)


def _flat(B: int, N: int, draw: dict[str, Any]) -> torch.Tensor:
    """Low contrast: 64 neighbouring numbers of FP32, so every row has many ties."""
    return 1 + torch.randint(0, 64, (B, N), **draw) * 2.0**-23


def _equal(B: int, N: int, draw: dict[str, Any]) -> torch.Tensor:
    return torch.full((B, N), 0.75, device=draw["device"])


def _two(B: int, N: int, draw: dict[str, Any]) -> torch.Tensor:
    """Two values, the larger one rarer than k where N is large, so that the smaller one is cut inside its ties."""
    return (torch.rand(B, N, **draw) < 0.03).float() + 0.25


def _bucket(B: int, N: int, draw: dict[str, Any]) -> torch.Tensor:
    """All keys in one bucket of 8 leading bits, rising with the id: what is wanted stands behind all the others."""
    return 1 + torch.arange(N, device=draw["device"]).float().expand(B, N) * 2.0**-23 + torch.zeros(B, N, **_on(draw))


def _infinite(B: int, N: int, draw: dict[str, Any]) -> torch.Tensor:
    """Live scores of -inf, more than the finite ones, and +inf at one in fifty."""
    drawn, scores = torch.rand(B, N, **draw), _signed(B, N, draw)
    return scores.masked_fill(drawn < 0.95, MINUS_INFINITY).masked_fill(drawn > 0.98, float("inf"))


def _nan(B: int, N: int, draw: dict[str, Any]) -> torch.Tensor:
    """NaN at a tenth of the live scores: they count as -inf."""
    drawn = torch.rand(B, N, **draw)
    return _signed(B, N, draw).masked_fill(drawn < 0.1, float("nan"))


def _zeros(B: int, N: int, draw: dict[str, Any]) -> torch.Tensor:
    """Mostly zeros of either sign, which are equal."""
    drawn = torch.rand(B, N, **draw)
    scores = torch.where(drawn < 0.5, -0.0, 0.0)
    return torch.where(drawn > 0.99, _signed(B, N, draw), scores)


def _on(draw: dict[str, Any]) -> dict[str, Any]:
    return {"device": draw["device"]}


_DRAW: dict[str, Callable[[int, int, dict[str, Any]], torch.Tensor]] = {
    "scores": _scores,
    "signed": _signed,
    "flat": _flat,
    "equal": _equal,
    "two": _two,
    "bucket": _bucket,
    "infinite": _infinite,
    "nan": _nan,
    "zeros": _zeros,
}
KINDS = tuple(_DRAW)


def lengths(kind: str, B: int, N: int, k: int) -> tuple[int, ...]:
    """Live columns of each row: `full` is N each; `mixed` cycles through N, 0, 1, k - 1, k, k + 1, N / 2 and N - 1.

    Raises:
        ParameterError: unknown kind.
    """
    if kind == "full":
        return (N,) * B
    if kind == "mixed":
        cycle = [min(max(n, 0), N) for n in (N, k + 1, 0, 1, k - 1, k, N // 2, N - 1)]
        return tuple(cycle[b % len(cycle)] for b in range(B))
    raise _refusal("lengths", kind, ", ".join(map(repr, LENGTHS)))


def make_row(B: int, N: int, kind: str = "scores", live: str = "full", k: int = TOPK_BLOCKS) -> Row:
    """One row: `n4096-B4-scores`, with `-mixed` and `-k8` where those are not the defaults.

    Raises:
        ParameterError: an unknown kind, or an extent below 1.
    """
    if kind not in KINDS:
        raise _refusal("kind", kind, ", ".join(map(repr, KINDS)))
    if min(B, N, k) < 1:
        raise _refusal("B, N and k", (B, N, k), "1 or more")
    lengths(live, B, N, k)
    label = f"n{N}-B{B}-{kind}" + ("" if live == "full" else f"-{live}") + ("" if k == TOPK_BLOCKS else f"-k{k}")
    return Row(SPEC.name, label, {"B": B, "N": N, "k": k, "kind": kind, "lengths": live})


def rows(
    columns: Sequence[int] = COLUMNS,
    batches: Sequence[int] = BATCHES,
    kinds: Sequence[str] = ("scores", "flat", "equal"),
    live: Sequence[str] = ("full", "mixed"),
) -> list[Row]:
    """Benchmark rows, one for each N, B, kind and class of lengths, in that order."""
    return [make_row(B, N, kind, which) for N in columns for B in batches for kind in kinds for which in live]


def synthesise(row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
    """A call of a row; columns behind a row's length hold -inf."""
    axes = row.parameters
    live = lengths(axes["lengths"], axes["B"], axes["N"], axes["k"])
    scores = _drawn(row.label, axes["kind"], axes["B"], axes["N"], seed, device)
    return make_call(scores, live, axes["k"], row.label, axes["kind"])


def make_call(scores: torch.Tensor, live: Sequence[int], k: int, label: str = "", kind: str = "given") -> Call:
    """A call of given scores [B, N] fp32 and lengths; -inf is put behind the lengths."""
    B, N = scores.shape
    n = torch.tensor(live, dtype=torch.int32, device=scores.device)
    inputs = {"scores": _behind(scores, n, MINUS_INFINITY), "lengths": n}
    out = torch.empty(B, k, dtype=torch.int32, device=scores.device)
    facts = {"B": B, "N": N, "k": k, "kind": kind, "lengths": list(live)}
    return Call(SPEC.name, inputs, {"k": k}, {"blocks": out}, label, facts)


def make_sets(row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
    """`count` distinct calls of one row for cold timing; lengths and geometry are those of the row."""
    return [synthesise(row, seed + 7919 * i, device) for i in range(count)]


def with_guard_rows(call: Call, count: int) -> Call:
    """The call with `count` more columns; every column at or behind its row's length holds NaN."""
    scores = call.inputs["scores"]
    room = scores.new_full((scores.shape[0], count), float("nan"))
    grown = torch.cat([scores, room], 1)
    return call.with_inputs(scores=_behind(grown, call.inputs["lengths"], float("nan")))


def changed(call: Call, which: str, seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    """New contents for the same buffers, with other live lengths: copy them into `call.inputs` in place.

    Args:
        which: `shorter` (two fifths), or `longer` (half of the free columns more).
        source: a call whose scores are reused in another order; None draws new ones of the call's kind.

    Returns:
        scores, NaN behind the new lengths, and lengths.

    Raises:
        ParameterError: an unknown change, or `longer` where no row can grow.
    """
    scores, old = call.inputs["scores"], call.inputs["lengths"]
    B, N = scores.shape
    if which == "shorter":
        new = old * 2 // 5
    elif which == "longer":
        new = old + (N - old + 1) // 2
    else:
        raise _refusal("which", which, "'shorter', 'longer'")
    if which == "longer" and bool((new == old).all()):
        raise _refusal("which", which, f"'shorter', since every row is as long as the {N} columns")
    if source is None:
        fresh = _drawn(f"{call.label}-{which}", call.facts.get("kind", "scores"), B, N, seed, call.device)
    else:
        fresh = _reordered(source, B, N, seed)
    return {"scores": _behind(fresh, new, float("nan")), "lengths": new}


def shuffled(call: Call, seed: int) -> dict[str, torch.Tensor]:
    """The call's live scores in another order, lengths unchanged: contents for a timing copy of a capture."""
    B, N = call.inputs["scores"].shape
    return {"scores": _behind(_reordered(call, B, N, seed), call.inputs["lengths"], MINUS_INFINITY)}


def edge_calls(seed: int, device: torch.device | str = "cpu") -> dict[str, Call]:
    """Small calls at the edges of the definition, by name, k = 8: every kind with mixed lengths, and empty rows."""
    found = {kind: synthesise(make_row(8, 40, kind, "mixed", 8), seed, device) for kind in KINDS}
    found["empty_rows"] = make_call(torch.ones(2, 5, device=device), (0, 0), 8, "edge-empty_rows")
    found["one_column"] = make_call(torch.ones(2, 1, device=device), (1, 0), 8, "edge-one_column")
    found["k_is_one"] = synthesise(make_row(3, 40, "signed", "mixed", 1), seed, device)
    return found


def _drawn(label: str, kind: str, B: int, N: int, seed: int, device: torch.device | str) -> torch.Tensor:
    digest = hashlib.sha256(f"{SPEC.name} {label} {seed}".encode()).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))
    draw = _DRAW[kind if kind in _DRAW else "scores"]
    return draw(B, N, {"generator": generator, "device": device})


def _reordered(source: Call, B: int, N: int, seed: int) -> torch.Tensor:
    """[B, N] scores taken from the source's live ones, in an order that depends on the seed."""
    scores, n = source.inputs["scores"], source.inputs["lengths"]
    live = scores[torch.arange(scores.shape[1], device=scores.device) < n[:, None]]
    if not live.numel():
        return torch.zeros(B, N, device=scores.device)
    order = torch.randperm(live.numel(), generator=torch.Generator("cpu").manual_seed(seed)).to(scores.device)
    return live[order][torch.arange(B * N, device=scores.device) % live.numel()].view(B, N)


def _behind(scores: torch.Tensor, n: torch.Tensor, value: float) -> torch.Tensor:
    column = torch.arange(scores.shape[1], device=scores.device)
    return torch.where(column < n[:, None], scores, value).contiguous()


def _refusal(field: str, given: object, allowed: str) -> ParameterError:
    return ParameterError(SPEC.name, [Reason(field, repr(given), allowed)])
