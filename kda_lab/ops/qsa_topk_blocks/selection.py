"""Whether a selection is right, whatever its order and however it breaks ties: set and threshold.

For implementations that are not written here (torch.topk, a library's radix select): they promise a set, not its
order. Rows: m = min(k, n) ids, each once, each below n, -1 elsewhere; no id left out scores above a chosen one.
"""

from __future__ import annotations

import torch

from kda_lab.errors import ParameterError, Reason

ROOM = "qsa.topk_blocks"


def selection_faults(
    blocks: torch.Tensor, scores: torch.Tensor, lengths: torch.Tensor, tolerance: float = 0.0
) -> list[str]:
    """Everything that is wrong with a selection, a sentence a (row, fault); empty where it is right.

    Args:
        blocks: [B, k] int32 or int64, any order; -1 is no block.
        scores: [B, N] fp32; a NaN counts as -inf.
        lengths: [B] int32.
        tolerance: how far a score left out may lie above a chosen one, absolute; 0 for exact scores.

    Raises:
        ParameterError: the shapes do not fit, or the tolerance is negative.
    """
    rows, columns = scores.shape
    if blocks.dim() != 2 or blocks.shape[0] != rows or lengths.shape != (rows,):
        given = f"{tuple(blocks.shape)} and {tuple(lengths.shape)}"
        raise ParameterError(ROOM, [Reason("shapes of blocks and lengths", given, f"[{rows}, k] and [{rows}]")])
    if not tolerance >= 0:
        raise ParameterError(ROOM, [Reason("tolerance", repr(tolerance), "0 or more")])
    ranked = torch.where(scores.isnan(), float("-inf"), scores)
    faults = []
    for b, n in enumerate(lengths.clamp(0, columns).tolist()):
        faults += [f"row {b}: {fault}" for fault in _row_faults(blocks[b].long(), ranked[b, :n], tolerance)]
    return faults


def is_valid_selection(
    blocks: torch.Tensor, scores: torch.Tensor, lengths: torch.Tensor, tolerance: float = 0.0
) -> bool:
    """Whether `selection_faults` finds nothing."""
    return not selection_faults(blocks, scores, lengths, tolerance)


def _row_faults(ids: torch.Tensor, scores: torch.Tensor, tolerance: float) -> list[str]:
    count, n = min(ids.numel(), scores.numel()), scores.numel()
    chosen = ids[ids != -1]
    if bool(((chosen < 0) | (chosen >= n)).any()):
        return [f"an id lies outside 0 to {n - 1}"]
    faults = []
    if chosen.unique().numel() != chosen.numel():
        faults.append("an id is named twice")
    if chosen.numel() != count:
        faults.append(f"{chosen.numel()} ids; allowed: {count}")
    left = torch.ones(n, dtype=torch.bool, device=scores.device)
    left[chosen] = False
    if chosen.numel() and bool(left.any()):
        least, most = float(scores[chosen].min()), float(scores[left].max())
        if least < most - tolerance:
            faults.append(f"{most:.9g} was left out, {least:.9g} was chosen")
    return faults
