"""The gates of Kimi Delta Attention: how much of each key channel a token keeps, and how strongly it writes.

Both take raw projections. Every float argument of `log_decay` has one dtype, which the caller chose by casting:
FP32 for the op's own arithmetic, FP64 for the arbiter.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import softplus

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.kda.geometry import LOWER_BOUND, ROOM
from kda_lab.ops.protocol import Call

SOFTPLUS_LINEAR_ABOVE = 20.0
"""Beyond it softplus(x) is taken as x: the difference is below FP32's last bit."""


def bound_of(call: Call) -> float | None:
    """The lower bound of a call's gate; None, given or for want of the scalar, for the softplus gate."""
    given = call.scalars.get("lower_bound")
    return None if given is None else float(given)


def log_decay(
    a: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor, lower_bound: float | None = None
) -> torch.Tensor:
    """Natural logarithm of the decay, at most 0: -exp(A_log)·softplus(x), or lower_bound·sigmoid(exp(A_log)·x).

    Args:
        a: [..., HV·K] raw gate; x = a + dt_bias.
        A_log: [HV].
        dt_bias: [HV·K].
        lower_bound: the safe gate's bound, -5 <= lower_bound < 0; None takes the softplus gate.

    Returns:
        [..., HV, K] in the dtype of `A_log`.

    Raises:
        ParameterError: a bound outside of that range.
    """
    if lower_bound is not None and not (math.isfinite(lower_bound) and LOWER_BOUND <= lower_bound < 0):
        raise ParameterError(
            ROOM, [Reason("lower_bound", repr(lower_bound), f"None, or {LOWER_BOUND} <= lower_bound < 0")]
        )
    x = (a + dt_bias).to(A_log.dtype).unflatten(-1, (A_log.shape[0], -1))
    rate = A_log.exp()[:, None]
    if lower_bound is None:
        return -rate * softplus(x, threshold=SOFTPLUS_LINEAR_ABOVE)
    return lower_bound * torch.sigmoid(rate * x)


def beta(b: torch.Tensor, round_to: torch.dtype | None = None) -> torch.Tensor:
    """Write strength sigmoid(b) in the dtype of `b`.

    Args:
        b: raw, already cast to the dtype of the computation.
        round_to: round the result to this dtype and back, as paths do that keep it there; None keeps it.
    """
    strength = torch.sigmoid(b)
    return strength if round_to is None else strength.to(round_to).to(b.dtype)
