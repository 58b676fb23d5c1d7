"""Kimi Delta Attention in chunks: the recurrence as matrix products, plain or with every operand rounded.

Within a chunk, G being the decays summed from its start, rows i and j tokens,

    Akk = sum_c k_ic k_jc exp(G_ic - G_jc)  (i > j)        Aqk likewise with q_i  (i >= j)
    M = (I + Diag(β) Akk)^-1 Diag(β)        W = M (e^G ⊙ k)        U = M v        Vn = U - W Sᵀ
    O = (q ⊙ e^G) Sᵀ + Aqk Vn               S <- S ⊙ e^(G_last) + Vnᵀ (e^(G_last - G) ⊙ k)

No factor exp(-G) is ever formed, which overflows after 18 tokens at the gate's bound: the tokens of a chunk are halved
down to single ones, and the scores between two halves take both sides' decay to the boundary between them. The inverse
is put together from the inverses of the halves in the same way. So it is finite for any gate, in any precision.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.kda.geometry import ROOM

CHUNK = 64
Narrow = Callable[[torch.Tensor], torch.Tensor]


def chunked(
    state: torch.Tensor,
    tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    *,
    chunk: int = CHUNK,
    operand: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `recurrence.recurrent` computes, in chunks.

    Args:
        state: [HV, V, K].
        tokens: q [T, HV, K] normalised and scaled, k [T, HV, K] normalised, v [T, HV, V], g [T, HV, K] log-decay and
            beta [T, HV], all in the dtype of `state`.
        chunk: tokens a chunk, a power of two; the last one may be shorter.
        operand: dtype that every operand of a matrix product is rounded to, as tensor cores take them; None keeps them.

    Returns:
        Outputs [T, HV, V] and the state after the last token.

    Raises:
        ParameterError: `chunk` is not a power of two.
    """
    if chunk < 1 or chunk & (chunk - 1):
        raise ParameterError(ROOM, [Reason("chunk", repr(chunk), "a power of two")])
    q, k, v, g, beta = tokens

    def narrow(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if operand is None else tensor.to(operand).to(tensor.dtype)

    outputs = torch.zeros_like(v)
    for at in range(0, len(v), chunk):
        piece = tuple(_padded(x[at : at + chunk], chunk) for x in (q, k, v, g, beta[..., None]))
        out, state = _chunk(state, piece, narrow)
        outputs[at : at + chunk] = out.transpose(0, 1)[: len(v) - at]
    return outputs, state


def halves(chunk: int, half: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """[chunk, chunk] bool: row in the second half and column in the first half of one pair of blocks of `half` tokens."""
    at = torch.arange(chunk, device=device)
    pair, second = at // (2 * half), at // half % 2 == 1
    return (pair[:, None] == pair) & second[:, None] & ~second


def scores(x: torch.Tensor, k: torch.Tensor, total: torch.Tensor, narrow: Narrow) -> torch.Tensor:
    """[..., n, n]: sum_c x_ic k_jc exp(G_ic - G_jc) for i > j, zero elsewhere; `total` is G, n a power of two."""
    n = x.shape[-2]
    found = x.new_zeros(*x.shape[:-1], n)
    half = n // 2
    while half:
        boundary = torch.arange(n, device=x.device) // (2 * half) * (2 * half) + half - 1
        decay = (-(total - total[..., boundary, :]).abs()).exp()
        product = narrow(x * decay) @ narrow(k * decay).transpose(-1, -2)
        found = torch.where(halves(n, half, x.device), product, found)
        half //= 2
    return found


def unit_inverse(lower: torch.Tensor, narrow: Narrow) -> torch.Tensor:
    """Inverse of I + `lower` [..., n, n], which is strictly lower triangular: blocks of 1, 2, 4, … tokens."""
    n = lower.shape[-1]
    inverse = torch.eye(n, dtype=lower.dtype, device=lower.device).expand(lower.shape)
    half = 1
    while half < n:
        between = torch.where(halves(n, half, lower.device), lower, 0.0)
        left = between if half == 1 else narrow(narrow(inverse) @ narrow(between)) @ narrow(inverse)
        inverse, half = inverse - left, 2 * half
    return inverse


def _padded(piece: torch.Tensor, chunk: int) -> torch.Tensor:
    """[HV, chunk, ...]: heads first, and zeros for the tokens that are not there: they neither decay nor add."""
    missing = piece.new_zeros(chunk - len(piece), *piece.shape[1:])
    return torch.cat([piece, missing]).transpose(0, 1)


def _chunk(state: torch.Tensor, piece: tuple[torch.Tensor, ...], narrow: Narrow) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs [HV, chunk, V] and the next state; the piece is q, k, v, g and beta, heads first."""
    q, k, v, g, beta = piece
    total = g.cumsum(-2)
    last = total[..., -1:, :]
    inverse = narrow(unit_inverse(beta * scores(k, k, total, narrow), narrow))
    attend = scores(q, k, total, narrow) + torch.diag_embed((q * k).sum(-1))
    w = narrow(inverse @ narrow(beta * k * total.exp()))
    known = narrow(state).transpose(-1, -2)
    new = narrow(narrow(inverse @ narrow(beta * v)) - w @ known)
    out = narrow(q * total.exp()) @ known + narrow(attend) @ new
    return out, state * last.exp() + new.transpose(-1, -2) @ narrow(k * (last - total).exp())
