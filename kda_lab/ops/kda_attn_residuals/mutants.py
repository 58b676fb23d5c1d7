"""Deliberately wrong attention residuals, one mistake each: what the gates must reject before they count.

Every mutant reads and writes what the call updates in place, computes in FP32 on any device and would be right without
its mistake. Not here: a sum of prefix and delta that is mixed before it is rounded, which moves `out` by less than
its own rounding; the rounded sum that is stored shows what such a kernel keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kda_lab.ops.kda_attn_residuals.oracle import epsilon_of, rms_norm, rows_of, stream, valid_of
from kda_lab.ops.protocol import Call, Mutant
from kda_lab.ops.wrong import all_zero, baked, plain, untouched

Step = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


def _rows(bank: torch.Tensor, prefix: torch.Tensor, call: Call) -> torch.Tensor:
    return rows_of(bank, prefix, valid_of(call))


def _scores(rows: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return rms_norm(rows, weight, epsilon).sum(-1)


def _softmax(scores: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores, -1)


def _added(prefix: torch.Tensor, call: Call) -> torch.Tensor:
    return (prefix.float() + call.inputs["delta"].float()).bfloat16() if call.scalars["add_delta"] else prefix


@dataclass(frozen=True)
class _Residual:
    """The op with replaceable steps; the defaults are right."""

    added: Callable[[torch.Tensor, Call], torch.Tensor] = _added
    """Stored prefix to the one that is mixed."""
    rows: Callable[[torch.Tensor, torch.Tensor, Call], torch.Tensor] = _rows
    """Bank, prefix and call to the rows that are mixed, [T, R, D]."""
    score: Step = _scores
    weigh: Callable[[torch.Tensor], torch.Tensor] = _softmax
    norm: Step = rms_norm
    kept: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda before, after: after
    """Prefix before and after the addition to the one that is stored."""
    snapshot: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda before, after: after
    """The same for the one that is written into the bank."""
    slot: Callable[[int, int], int] = lambda valid, slots: valid
    """Where the snapshot goes: (valid, NB)."""
    writes: Callable[[bool], bool] = lambda wanted: wanted
    writes_first: bool = False
    """Whether the snapshot stands in the bank, and counts, before the rows are mixed."""

    def __call__(self, call: Call) -> None:
        bank, prefix = call.outputs["bank"], call.outputs["prefix"]
        valid, epsilon, before = valid_of(call), epsilon_of(call), prefix.clone()
        after = self.added(before, call)
        slot, written = self.slot(valid, bank.shape[1]), self.snapshot(before, after)
        writes = self.writes(bool(call.scalars["write_prefix"])) and 0 <= slot < bank.shape[1]
        if writes and self.writes_first:
            bank[:, slot] = written
        rows = self.rows(bank, after, call).float()
        weights = self.weigh(self.score(rows, call.inputs["score_weight"], epsilon))
        mix = (weights[..., None] * rows).sum(1)
        call.outputs["out"].copy_(self.norm(mix, call.inputs["out_weight"], epsilon))
        if writes:
            bank[:, slot] = written
        prefix.copy_(self.kept(before, after))


def _one_more(bank: torch.Tensor, prefix: torch.Tensor, call: Call) -> torch.Tensor:
    return rows_of(bank, prefix, min(valid_of(call) + 1, bank.shape[1]))


def _stale_rows(bank: torch.Tensor, prefix: torch.Tensor, call: Call) -> torch.Tensor:
    return rows_of(bank, call.outputs["prefix"], valid_of(call))


def _slot_major(bank: torch.Tensor, prefix: torch.Tensor, call: Call) -> torch.Tensor:
    """Rows of a bank that is taken to lie as [NB, T, D]."""
    T, NB, D = bank.shape
    return rows_of(bank.reshape(NB, T, D).transpose(0, 1), prefix, valid_of(call))


def _unnormed(rows: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return (rows * weight).sum(-1)


def _by_sum(values: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return values * torch.rsqrt(values.square().sum(-1, keepdim=True) + epsilon) * weight


def _epsilon_outside(values: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return values / (values.square().mean(-1, keepdim=True).sqrt() + epsilon) * weight


def _valid(least: int) -> Callable[[Call], bool]:
    return lambda call: valid_of(call) >= least and call.inputs["prefix"].numel() > 0


def _asked(name: str) -> Callable[[Call], bool]:
    return lambda call: bool(call.scalars[name]) and call.inputs["prefix"].numel() > 0


def _epsilon_counts(call: Call) -> bool:
    size = stream(call).float().square().mean(-1)
    return bool(((size > 0) & (size < 10 * epsilon_of(call))).any())


def _room(call: Call) -> bool:
    return valid_of(call) < call.inputs["bank"].shape[1]


_SOME = (_valid(1), "no snapshot counts, so the prefix alone is the mix")
_ADD = (_asked("add_delta"), "no delta is pending")
_WRITE = (_asked("write_prefix"), "no snapshot is wanted")
_TINY = (_epsilon_counts, "the mean square of every row is far above epsilon, so epsilon does not count")
_TWO = "there is one token or one slot, so both layouts agree, or no snapshot counts"

MUTANTS: tuple[Mutant, ...] = (
    plain("all_zero", "Writes zeros.", all_zero),
    plain("untouched", "Writes nothing.", untouched),
    plain(
        "last_dropped",
        "The last valid snapshot is left out.",
        _Residual(rows=lambda bank, prefix, call: rows_of(bank, prefix, max(0, valid_of(call) - 1))),
        *_SOME,
    ),
    plain(
        "one_too_many",
        "The first snapshot that does not count is read too.",
        _Residual(rows=_one_more),
        _room,
        "all snapshots of the bank count",
    ),
    plain("prefix_left_out", "The snapshots alone are mixed.", _Residual(rows=lambda b, p, c: b[:, : valid_of(c)]), *_SOME),
    plain(
        "slot_major",
        "The bank is read as if it lay as [NB, T, D].",
        _Residual(rows=_slot_major),
        lambda call: min(call.inputs["bank"].shape[:2]) > 1 and valid_of(call) > 0,
        _TWO,
    ),
    plain("delta_ignored", "The pending delta is not added.", _Residual(added=lambda prefix, call: prefix), *_ADD),
    plain("delta_after", "The rows are mixed before the delta is added.", _Residual(rows=_stale_rows), *_ADD),
    plain(
        "delta_always",
        "A delta is added though none is pending.",
        _Residual(added=lambda prefix, call: (prefix.float() + call.inputs["delta"].float()).bfloat16()),
        lambda call: not call.scalars["add_delta"],
        "a delta is pending, so adding it is right",
    ),
    plain("sum_not_kept", "The sum is mixed and not stored.", _Residual(kept=lambda before, after: before), *_ADD),
    plain(
        "snapshot_before_add",
        "The snapshot is the prefix before the addition.",
        _Residual(snapshot=lambda before, after: before),
        lambda call: bool(call.scalars["write_prefix"] and call.scalars["add_delta"]),
        "no delta is pending, or no snapshot is wanted",
    ),
    plain("snapshot_missing", "The snapshot is not written.", _Residual(writes=lambda wanted: False), *_WRITE),
    plain(
        "snapshot_always",
        "A snapshot is written though none is wanted.",
        _Residual(writes=lambda wanted: True),
        lambda call: _room(call) and not call.scalars["write_prefix"],
        "a snapshot is wanted, or the bank has no slot for one",
    ),
    plain(
        "snapshot_over_last",
        "The snapshot overwrites the last one that counts.",
        _Residual(slot=lambda valid, slots: valid - 1),
        lambda call: bool(call.scalars["write_prefix"]) and valid_of(call) > 0,
        "no snapshot is wanted, or none is there to be overwritten",
    ),
    plain(
        "prefix_twice",
        "The snapshot is written first and counts as a row.",
        _Residual(rows=_one_more, writes_first=True),
        lambda call: bool(call.scalars["write_prefix"]) and valid_of(call) > 0,
        "no snapshot is wanted, or two equal rows are all there is",
    ),
    plain("score_without_norm", "Scores are products of raw rows.", _Residual(score=_unnormed), *_SOME),
    plain(
        "score_without_weight",
        "Scores leave the weight out.",
        _Residual(score=lambda rows, weight, eps: _scores(rows, torch.ones_like(weight), eps)),
        *_SOME,
    ),
    plain("score_by_sum", "Scores divide by the root of a sum in the place of a mean.", _Residual(score=lambda r, w, e: _by_sum(r, w, e).sum(-1)), *_SOME),
    plain("base_two", "Base-2 exponentials without log2(e).", _Residual(weigh=lambda s: _softmax(s * math.log(2))), *_SOME),
    plain("equal_weights", "Every row weighs the same.", _Residual(weigh=lambda s: torch.full_like(s, 1 / s.shape[-1])), *_SOME),
    plain("exponentials_kept", "Weights are not divided by their sum, which the norm takes back but for epsilon.", _Residual(weigh=lambda s: torch.exp(s) * 1e3), *_TINY),
    plain("norm_by_sum", "The result divides by the root of a sum in the place of a mean.", _Residual(norm=_by_sum)),
    plain("norm_missing", "The mix is weighted and not normalised.", _Residual(norm=lambda x, w, e: x * w)),
    plain("norm_without_weight", "The result leaves its weight out.", _Residual(norm=lambda x, w, e: rms_norm(x, torch.ones_like(w), e))),
    plain("epsilon_outside", "Epsilon is added to the root.", _Residual(norm=_epsilon_outside), *_TINY),
    plain("epsilon_missing", "The result is normalised without epsilon.", _Residual(norm=lambda x, w, e: rms_norm(x, w, 1e-30)), *_TINY),
    Mutant("score_weight_baked", "The score weight is copied when the call is bound.", lambda: baked("score_weight_baked", ("score_weight",), _Residual()), *_SOME),
    Mutant("out_weight_baked", "The result's weight is copied when the call is bound.", lambda: baked("out_weight_baked", ("out_weight",), _Residual())),
    Mutant("delta_baked", "The delta is copied when the call is bound.", lambda: baked("delta_baked", ("delta",), _Residual()), *_ADD),
)  # fmt: skip
