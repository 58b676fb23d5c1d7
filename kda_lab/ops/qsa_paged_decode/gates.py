"""Tolerances of `qsa.paged_decode`: those of `qsa.packed_decode`, since the arithmetic after the gather is the same.

Only where a row comes from differs, and that is exact: a wrong slot is a wrong row. So the table, its sources and the
rule that a limit rises with the emulated floor are taken over, not copied.
"""

from __future__ import annotations

from kda_lab.ops.qsa_packed_decode.gates import TOLERANCES, Limits, limits

__all__ = ["TOLERANCES", "Limits", "limits"]
