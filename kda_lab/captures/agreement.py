"""How far two recordings of the same calls agree: selection, inputs and pinned outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kda_lab.captures.store import Capture, CaptureSet
from kda_lab.errors import CaptureError, Reason


@dataclass(frozen=True)
class Agreement:
    """One capture of two sets. Errors are relative L2, ‖a − b‖ / ‖b‖, in FP64; 0 means the same values."""

    name: str
    selection_overlap: float
    """Smallest share of common KV rows over the call's rows and KV heads; 1 where nothing is gathered."""
    q: float
    k: float
    """Over the KV rows that both selected."""
    v: float
    out: float
    same_bits: bool
    """Whether both sets give the call the same hash (`CaptureSet.sha256_of`)."""


def relative_l2(a: torch.Tensor, b: torch.Tensor) -> float:
    """‖a − b‖ / ‖b‖ in FP64; infinity when b is zero and a is not."""
    difference, norm = (a.double() - b.double()).norm(), b.double().norm()
    if float(norm) == 0.0:
        return 0.0 if float(difference) == 0.0 else float("inf")
    return float(difference / norm)


def agreement(left: CaptureSet, right: CaptureSet) -> list[Agreement]:
    """Compare the captures that both sets hold; `right` is what errors are relative to.

    Raises:
        CaptureError: the sets are of different ops, share no name, or a shared capture has other lengths.
    """
    return [_compare(name, left, right) for name in shared_names(left, right)]


def shared_names(left: CaptureSet, right: CaptureSet) -> list[str]:
    """Names of the captures that both sets hold, in the order of `left`.

    Raises:
        CaptureError: the sets are of different ops, or share no name.
    """
    if left.op != right.op:
        raise CaptureError("captures", [Reason("op", repr(left.op), repr(right.op))])
    names = [name for name in left.names() if name in right.names()]
    if not names:
        raise CaptureError("captures", [Reason("names", repr(left.names()), f"at least one of {right.names()}")])
    return names


def _compare(name: str, left: CaptureSet, right: CaptureSet) -> Agreement:
    a, b = left.load(name), right.load(name)
    if a.call.facts.get("lengths") != b.call.facts.get("lengths"):
        given, allowed = repr(a.call.facts.get("lengths")), repr(b.call.facts.get("lengths"))
        raise CaptureError("captures", [Reason(f"{name}: lengths", given, allowed)])
    overlap, pairs = _common_rows(name, left, right, a)
    k, v = (_relative_rows(a.call.inputs[n], b.call.inputs[n], pairs) for n in ("k", "v"))
    q = relative_l2(a.call.inputs["q"], b.call.inputs["q"])
    out = relative_l2(a.pinned["out"], b.pinned["out"]) if a.pinned and b.pinned else float("nan")
    return Agreement(name, overlap, q, k, v, out, a.sha256 == b.sha256)


def _common_rows(
    name: str, left: CaptureSet, right: CaptureSet, capture: Capture
) -> tuple[float, list[tuple[int, torch.Tensor, torch.Tensor]] | None]:
    """Smallest overlap, and per KV head the packed rows of both sides that hold the same pool row."""
    first, second = left.gather_index(name, "k"), right.gather_index(name, "k")
    if first is None or second is None:
        return 1.0, None
    overlap, pairs, start = 1.0, [], 0
    for length in capture.call.facts["lengths"]:
        for head in range(first.shape[1]):
            a, b = first[start : start + length, head], second[start : start + length, head]
            rows_a = torch.isin(a, b).nonzero()[:, 0]
            order_b = torch.argsort(b)
            rows_b = order_b[torch.searchsorted(b[order_b].contiguous(), a[rows_a].contiguous())]
            overlap = min(overlap, len(rows_a) / length)
            pairs.append((head, rows_a + start, rows_b + start))
        start += length
    return overlap, pairs


def _relative_rows(
    a: torch.Tensor, b: torch.Tensor, pairs: list[tuple[int, torch.Tensor, torch.Tensor]] | None
) -> float:
    if pairs is None:
        return relative_l2(a, b)
    left = torch.cat([a[rows, head] for head, rows, _ in pairs])
    right = torch.cat([b[rows, head] for head, _, rows in pairs])
    return relative_l2(left, right)
