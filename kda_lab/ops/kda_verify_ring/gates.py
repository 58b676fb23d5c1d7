"""Tolerances of `kda.verify_ring`: the table of both verify ops, `kda_lab/ops/kda/verify_gates.py`, and its limits."""

from __future__ import annotations

from kda_lab.ops.gate import Rising
from kda_lab.ops.kda.verify_gates import ERROR, FLOOR_FACTOR, TOLERANCES

__all__ = ("ERROR", "FLOOR_FACTOR", "ROOM", "TOLERANCES", "limits")

ROOM = "kda.verify_ring"

limits = Rising(ROOM, ERROR, FLOOR_FACTOR).limits
