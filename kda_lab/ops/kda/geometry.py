"""Sizes of Kimi Delta Attention as Kimi K3 has them, and which query head a value head reads.

Axes: H query and key heads, HV value heads (a multiple of H), K key channels, V value channels.
"""

from __future__ import annotations

import torch

from kda_lab.errors import ParameterError, Reason

ROOM = "kda"
HEAD_DIM = 128
"""K and V of one head."""
CONV_WIDTH = 4
"""Tokens that the short convolution reads: the last three and the present one."""
CONV_STATE = CONV_WIDTH - 1
L2_EPSILON = 1e-6
"""Added to a sum of squares inside the root."""
LOWER_BOUND = -5.0
"""Least log-decay of a token where the gate has a bound."""
K3_HEADS = 96
"""Heads of one layer before they are shared among ranks; H = HV."""


def local_heads(attn_tp: int) -> int:
    """Heads of one rank when attention is cut over `attn_tp` ranks.

    Raises:
        ParameterError: the heads cannot be shared evenly.
    """
    if attn_tp < 1 or K3_HEADS % attn_tp:
        raise ParameterError(ROOM, [Reason("attn_tp", repr(attn_tp), f"a divisor of {K3_HEADS}, the heads of a layer")])
    return K3_HEADS // attn_tp


def query_head(value_head_count: int, query_head_count: int) -> torch.Tensor:
    """[HV] int64: the query and key head of each value head; neighbours share one.

    Raises:
        ParameterError: the counts do not divide.
    """
    if query_head_count < 1 or value_head_count < 1 or value_head_count % query_head_count:
        raise ParameterError(
            ROOM,
            [Reason("value_head_count", repr(value_head_count), f"a multiple of the query heads, {query_head_count}")],
        )
    return torch.arange(value_head_count) // (value_head_count // query_head_count)
