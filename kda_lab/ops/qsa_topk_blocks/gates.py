"""Gates of `qsa.topk_blocks`: nothing is rounded, so every element must be equal."""

from __future__ import annotations

from kda_lab.ops.exact import Limits, exact_gates, exact_limits

ROOM = "qsa.topk_blocks"
TOLERANCES = exact_gates(("changed_lengths_shorter", "changed_lengths_longer"))


def limits(kind: str, floor: float, row_floor: float | None = None) -> Limits:
    """Limits of 0; see `ops.exact.exact_limits`.

    Raises:
        ParameterError: unknown kind, or a floor other than 0.
    """
    return exact_limits(ROOM, kind, floor, row_floor)
