"""What `qsa.topk_blocks` must give: two references by different roads, and a radix select in torch.

Axes: B rows, N columns, n = lengths[b] live ones, m = min(k, n) ids to choose. All outputs are exact integers in
ascending order with ties to the lower id, so that the oracles, the emulation and a kernel have the same bits.
Lengths are read on the host: none of these may run inside graph capture.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kda_lab.ops.protocol import Call

DIGIT_BITS = 8


def oracle_fp32(call: Call) -> dict[str, torch.Tensor]:
    """By threshold: `torch.topk` finds the m-th score; all above it are chosen, then those equal to it by id.

    `{"blocks": [B, k] int32}` on the call's device.
    """
    return _by_row(call, _by_threshold)


def oracle_fp64(call: Call) -> dict[str, torch.Tensor]:
    """By order: a stable sort of the scores in FP64, cut at m. `{"blocks": [B, k] int32}`."""
    return _by_row(call, _by_order)


def emulate(call: Call) -> dict[str, torch.Tensor]:
    """By digits: a radix select on the ordered-integer image of FP32. `{"blocks": [B, k] int32}`."""
    return _by_row(call, by_digits)


def live_lengths(call: Call) -> list[int]:
    """Lengths on the host, within 0 to N."""
    return [int(n) for n in call.inputs["lengths"].clamp(0, call.inputs["scores"].shape[1]).tolist()]


def ordered_integers(scores: torch.Tensor) -> torch.Tensor:
    """int64 images in 0 to 2^32 - 1 that order as the scores do: -0 as 0, NaN as -inf."""
    plain = torch.where(scores == 0, 0.0, torch.where(scores.isnan(), float("-inf"), scores)).float()
    bits = plain.contiguous().view(torch.int32).long()
    return torch.where(bits < 0, ~bits, bits + 2**31)


def by_digits(scores: torch.Tensor, m: int) -> torch.Tensor:
    """The m largest of one row, 1 <= m <= n: 8 bits a pass fix the threshold, then ids are taken in order."""
    keys = ordered_integers(scores)
    threshold, need = threshold_of(keys, m)
    equal = keys == threshold
    return ((keys > threshold) | (equal & (equal.cumsum(0) <= need))).nonzero()[:, 0]


def threshold_of(keys: torch.Tensor, m: int, passes: int = 4) -> tuple[int, int]:
    """The m-th largest key, and how many of the keys equal to it are wanted; after fewer passes its leading digits."""
    prefix, need = 0, m
    for step in range(passes):
        shift = 32 - DIGIT_BITS * (step + 1)
        digits = keys[(keys >> (shift + DIGIT_BITS)) == prefix] >> shift & 255
        above = torch.bincount(digits, minlength=257).flip(0).cumsum(0).flip(0)  # [257]: keys with this digit or more
        digit = int((above >= need).nonzero()[-1])
        need -= int(above[digit + 1]) if digit < 255 else 0
        prefix = prefix << DIGIT_BITS | digit
    return prefix, need


def _by_row(call: Call, choose: Callable[[torch.Tensor, int], torch.Tensor]) -> dict[str, torch.Tensor]:
    scores = call.inputs["scores"]
    k = call.outputs["blocks"].shape[1]
    blocks = torch.full((scores.shape[0], k), -1, dtype=torch.int32, device=scores.device)
    for b, n in enumerate(live_lengths(call)):
        m = min(k, n)
        if m:
            blocks[b, :m] = choose(scores[b, :n], m).to(torch.int32)
    return {"blocks": blocks}


def _by_threshold(scores: torch.Tensor, m: int) -> torch.Tensor:
    ranked = torch.where(scores.isnan(), float("-inf"), scores)
    threshold = ranked.topk(m).values[-1]
    above = (ranked > threshold).nonzero()[:, 0]
    equal = (ranked == threshold).nonzero()[:, 0]
    return torch.cat([above, equal[: m - above.numel()]]).sort().values


def _by_order(scores: torch.Tensor, m: int) -> torch.Tensor:
    ranked = -torch.where(scores.isnan(), float("-inf"), scores).double()
    return ranked.argsort(stable=True)[:m].sort().values
