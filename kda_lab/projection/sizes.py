"""Sizes of the projections of one layer on one rank: rows of every weight, their splits and bytes.

All of them follow from the size of the attention's tensor-parallel group, never from that of the whole model's: the two
are equal in many deployments, and a split by the wrong one then goes unseen.
"""

from __future__ import annotations

from dataclasses import dataclass

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.kda.geometry import HEAD_DIM, K3_HEADS

ROOM = "projection"
ROW_MULTIPLE = 8
"""Rows of the merged small weight are padded to it, so that its GEMM has aligned output rows."""
BF16_BYTES = 2


@dataclass(frozen=True)
class Model:
    """One layer before it is cut over ranks."""

    hidden: int
    """Width of x."""
    heads: int
    head_dim: int
    rank: int
    """Width between the two weights of the decay gate."""


K3 = Model(hidden=7168, heads=K3_HEADS, head_dim=HEAD_DIM, rank=128)
SMALL = Model(hidden=64, heads=32, head_dim=8, rank=16)
"""For machines without a GPU: every split and padding, a thousandth of the bytes."""


@dataclass(frozen=True)
class Splits:
    """Rows of the weights of one rank. Every quantity is a number of output features unless it says bytes."""

    model: Model
    attn_tp_size: int
    heads: int

    @property
    def projection(self) -> int:
        """P: q, k, v, a and the gate have as many features each."""
        return self.heads * self.model.head_dim

    @property
    def qkv(self) -> int:
        return 3 * self.projection

    @property
    def qkvg(self) -> int:
        """Of the large fused weight: q, k, v, then the gate."""
        return 4 * self.projection

    @property
    def bfa(self) -> int:
        """Of the small fused weight before padding: the first weight of the decay gate, then b."""
        return self.model.rank + self.heads

    @property
    def padded_bfa(self) -> int:
        return -(-self.bfa // ROW_MULTIPLE) * ROW_MULTIPLE

    @property
    def weight_bytes(self) -> int:
        """Of the three fused weights, padding left out: what any arm has to read once."""
        return BF16_BYTES * (self.model.hidden * (self.qkvg + self.bfa) + self.projection * self.model.rank)

    def least_bytes(self, tokens: int) -> int:
        """Weights and x read once, all four results written once."""
        return self.weight_bytes + BF16_BYTES * tokens * (self.model.hidden + self.qkvg + self.projection + self.heads)


def splits(attn_tp_size: int, model: Model = K3) -> Splits:
    """Sizes on one of `attn_tp_size` ranks.

    Raises:
        ParameterError: the heads cannot be shared evenly.
    """
    if attn_tp_size < 1 or model.heads % attn_tp_size:
        allowed = f"a divisor of {model.heads}, the heads of a layer"
        raise ParameterError(ROOM, [Reason("attn_tp_size", repr(attn_tp_size), allowed)])
    return Splits(model, attn_tp_size, model.heads // attn_tp_size)
