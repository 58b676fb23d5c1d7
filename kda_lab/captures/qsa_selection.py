"""Which tokens a QSA row attends to: blocks of 4 chosen by attention mass, plus the incomplete last block."""

from __future__ import annotations

import torch

BLOCK_TOKENS = 4
BUDGET_TOKENS = 2048
FOLDED_POSITIONS = 3
"""Consecutive query positions that stand for the 12 query heads of one KV head (3 x 4 heads)."""


def folded_queries(q: torch.Tensor, position: int) -> torch.Tensor:
    """The 12 query heads of one row: 4 heads at positions `position`-2, -1 and 0, in that order.

    Args:
        q: [T, 4, D] bf16.
        position: 0-based, at least 2.
    Returns:
        [12, D], head 4·j + h is head h at position `position` - 2 + j.
    """
    return q[position - FOLDED_POSITIONS + 1 : position + 1].reshape(-1, q.shape[-1])


def block_mass(queries: torch.Tensor, keys: torch.Tensor, softmax_scale: float) -> torch.Tensor:
    """Attention mass of each complete block of 4 tokens, summed over its tokens and the 12 heads.

    Each head sees only the keys up to its own position, as in the model. Arithmetic in FP32.

    Args:
        queries: [12, D] from `folded_queries`; the last four heads stand at the last key.
        keys: [n, D] bf16, all tokens up to the row's position.
        softmax_scale: multiplies q·k.
    Returns:
        [n // 4] fp32; sums to less than 12, since the incomplete block is left out.
    """
    n, heads = keys.shape[0], queries.shape[0]
    scores = queries.float() @ keys.float().T * softmax_scale  # [12, n]
    per_position = heads // FOLDED_POSITIONS
    last_visible = n - FOLDED_POSITIONS + torch.arange(heads) // per_position
    hidden = torch.arange(n)[None, :] > last_visible[:, None]
    mass = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1).sum(dim=0)
    complete = n // BLOCK_TOKENS
    return mass[: complete * BLOCK_TOKENS].view(complete, BLOCK_TOKENS).sum(dim=1)


def selected_tokens(queries: torch.Tensor, keys: torch.Tensor, softmax_scale: float) -> torch.Tensor:
    """Token ids of one row, ascending: the 512 heaviest complete blocks and the incomplete last one.

    Args: as `block_mass`.
    Returns:
        [m] int64, m = 4·min(512, n // 4) + n % 4. Equal masses: the earlier block wins.
    """
    n = keys.shape[0]
    complete = n // BLOCK_TOKENS
    count = min(complete, BUDGET_TOKENS // BLOCK_TOKENS)
    mass = block_mass(queries, keys, softmax_scale)
    blocks = torch.sort(mass, descending=True, stable=True).indices[:count].sort().values
    tokens = (blocks[:, None] * BLOCK_TOKENS + torch.arange(BLOCK_TOKENS)).reshape(-1)
    return torch.cat([tokens, torch.arange(complete * BLOCK_TOKENS, n)])


def effective_keys(queries: torch.Tensor, keys: torch.Tensor, softmax_scale: float) -> torch.Tensor:
    """How many keys each head attends to: exp of the entropy of its softmax over the given keys, no causal limit.

    Args:
        queries: [H, D]; keys: [n, D]; softmax_scale: multiplies q·k.
    Returns:
        [H] fp32 between 1 (one key holds all) and n (all alike).
    """
    weights = torch.softmax(queries.float() @ keys.float().T * softmax_scale, dim=-1)
    return torch.exp(torch.special.entr(weights).sum(dim=-1))
