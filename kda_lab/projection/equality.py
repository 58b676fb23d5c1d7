"""Do the arms compute the same? Errors against FP64, bits as found, and laws of the weights, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from kda_lab.projection import arms, fp8
from kda_lab.projection.arms import CONTROL, FIVE, OUTPUTS, SideRule
from kda_lab.projection.inputs import DRAWN, RANDOM, Extent, Rows, extent_of
from kda_lab.projection.measure import ERROR_LIMIT, error_of, launches
from kda_lab.projection.plan import ARMS
from kda_lab.projection.sizes import Splits
from kda_lab.projection.weights import FusedWeights, draw, fuse_low_rank
from kda_lab.verify.metrics import rel_l2, worst


@dataclass(frozen=True)
class EqualityRow:
    """One arm on one kind of rows at one number of tokens."""

    x: Rows
    extent: Extent
    """Of the rows that were taken."""
    arm: str
    tokens: int
    error: float
    """Worst rel-L2 of its results against FP64."""
    bits: dict[str, bool]
    """Result to whether it is the unfused arm's, bit by bit: found, never demanded."""
    row_strides: dict[str, int]

    def record(self) -> dict[str, Any]:
        """A line of equality.jsonl."""
        x = {**self.x.record(), **asdict(self.extent)}
        own = {"arm": self.arm, "tokens": self.tokens, "error": self.error, "limit": ERROR_LIMIT, "bits": self.bits}
        return {"kind": "equality", "x": x, "weights": RANDOM, **own, "row_strides": self.row_strides}


def compare_arms(
    size: Splits,
    tokens: Sequence[int],
    rule: SideRule,
    device: torch.device,
    seed: int,
    inputs: Sequence[Rows] = (DRAWN,),
) -> list[EqualityRow]:
    """Every arm on every kind of rows, on one set of weights, launched eagerly.

    Args:
        inputs: what gives x.

    Raises:
        ParameterError: rows lack so many tokens, or are of another width than the weights.
    """
    fused = draw(size, seed, device)
    found = []
    for rows in inputs:
        for count in tokens:
            x = rows.take(count, seed, size.model.hidden, device)
            right, extent = arms.exact(x, fused.five), extent_of(x)
            results = {arm: launches(arm, x, [fused], rule)[0].run() for arm in ARMS}
            for arm, given in results.items():
                bits = {n: torch.equal(getattr(given, n), getattr(results[FIVE], n)) for n in OUTPUTS}
                strides = {n: getattr(given, n).stride(0) for n in OUTPUTS}
                found.append(EqualityRow(rows, extent, arm, count, error_of(given, right), bits, strides))
    return found


def equality_faults(rows: Sequence[EqualityRow]) -> list[str]:
    """Which arms are wrong, one sentence each. Other bits are no fault: another tile may be chosen for another width."""
    return [
        f"{row.arm} at {row.tokens} tokens of {row.x.label} x: error {row.error:.3g}, limit {ERROR_LIMIT:g}"
        for row in rows
        if not row.error <= ERROR_LIMIT
    ]


def missing_faults(rows: Sequence[EqualityRow], inputs: Sequence[Rows]) -> list[str]:
    """Kinds of rows on which an arm was not compared, one sentence each."""
    seen = {(row.x.label, row.arm) for row in rows}
    wanted = [(x.label, arm) for x in inputs for arm in ARMS]
    return [f"{arm} was not compared on {label} x" for label, arm in wanted if (label, arm) not in seen]


def worst_of(rows: Sequence[EqualityRow], source: str) -> tuple[float, float]:
    """Largest error of any arm, and largest |x| over its root mean square, on the rows of one source; NaN where one is."""
    chosen = [row for row in rows if row.x.record()["source"] == source]
    return worst([row.error for row in chosen]), worst([row.extent.peak for row in chosen])


def law_faults(size: Splits, device: torch.device, seed: int) -> list[str]:
    """Laws of the builders that do not hold, one sentence each.

    The merged weight shares the memory of its parts and pads with zeros; unfused weights are views of the fused ones;
    the low-rank form gives what its four products give; a dequantised weight is within half a BF16 step of exact.
    """
    fused = draw(size, seed, device)
    found = []
    storage = fused.bfa.buffer.untyped_storage().data_ptr()
    if any(part.untyped_storage().data_ptr() != storage for part in (fused.bfa.b, fused.bfa.f_a)):
        found.append("f_a or b does not share the memory of the merged weight")
    if int(torch.count_nonzero(fused.bfa.buffer[sum(fused.bfa.rows[:2]) :])):
        found.append("the padding of the merged weight is not zero")
    five = fused.five
    if not torch.equal(torch.cat([five.qkv, five.gate]), fused.qkvg):
        found.append("the unfused weights are not the rows of the fused one")
    return [*found, *_low_rank_faults(fused, size, device, seed), *_dequantise_faults(device, seed)]


def _low_rank_faults(fused: FusedWeights, size: Splits, device: torch.device, seed: int) -> list[str]:
    other = draw(size, seed + 1, device)
    generator = torch.Generator(device).manual_seed(seed + 2)
    x = torch.randn(5, size.model.hidden, generator=generator, device=device).bfloat16()
    q, k, v = fused.five.qkv.chunk(3)
    weights = fuse_low_rank((q, k, v, fused.bfa.b), (fused.bfa.f_a, other.bfa.f_a), (fused.f_b, other.f_b))
    given, right = arms.low_rank(x, weights), arms.exact(x, fused.five)
    gate = arms.exact(x, other.five).a
    pairs = [(getattr(given, n), getattr(right, n), n) for n in ("qkv", "b", "a")] + [(given.gate, gate, "gate")]
    return [f"low-rank {n}: error {rel_l2(a, b):.3g}" for a, b, n in pairs if not rel_l2(a, b) <= ERROR_LIMIT]


def _dequantise_faults(device: torch.device, seed: int) -> list[str]:
    generator = torch.Generator(device).manual_seed(seed)
    codes = torch.randn(140, 260, generator=generator, device=device).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 3, generator=generator, device=device) + 0.5
    given = fp8.dequantise("b", codes, scales, partial_rows=True)
    rows, columns = (torch.arange(n, device=device) // fp8.BLOCK for n in codes.shape)
    right = codes.double() * scales.double()[rows[:, None], columns[None, :]]
    wrong = int(((given.double() - right).abs() > right.abs() * 2.0**-8).sum())
    return [f"{wrong} dequantised weights are not rounded from code times scale"] if wrong else []


def control_repeats(rows: Sequence[EqualityRow]) -> bool:
    """Whether the unfused arm, run again, gives its own bits: without it no equality means anything."""
    return all(all(row.bits.values()) for row in rows if row.arm == CONTROL)
