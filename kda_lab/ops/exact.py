"""Gates of the ops that round nothing: indices, copies, offsets. Every element must be equal, so every limit is 0."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.gate import EXACT, Gate, Limits, check_kind

_RULES = {
    "error_fp32": "rel-L2 over each output against the oracle",
    "error_pinned": "rel-L2 against the pinned output",
    "row_max": "rel-L2 of the worst row against the oracle",
    "output_written": "elements that no launch wrote",
    "output_finite": "elements that are NaN or infinite",
    "guards": "elements written outside the outputs",
    "inputs_unchanged": "inputs whose bits changed",
    "repeat_bits": "outputs whose bits differ between launches",
}


def exact_gates(changes: Sequence[str]) -> tuple[Gate, ...]:
    """The gate table of an op whose outputs are exact.

    Args:
        changes: names of the checks with changed contents: `changed_lengths_shorter`.
    """
    rules = {**_RULES, **dict.fromkeys(changes, "as error_fp32 and row_max on new contents")}
    rules["state_zero"] = "elements of state that are not zero between calls"
    return tuple(Gate(name, metric, 0.0, 0.0, EXACT) for name, metric in rules.items())


def exact_limits(room: str, kind: str, floor: float, row_floor: float | None = None) -> Limits:
    """Limits of 0, for a capture of any kind.

    Args:
        room: the op, for the error text.
        kind: `real` or `synthetic`.
        floor: distance of the emulated arithmetic from the oracle, which must be 0: nothing is rounded.
        row_floor: the same over the worst row; None counts as 0.

    Raises:
        ParameterError: unknown kind, or a floor other than 0, which says that oracle and emulation disagree.
    """
    check_kind(room, kind)
    for name, value in (("floor", floor), ("row_floor", 0.0 if row_floor is None else row_floor)):
        if math.isnan(value) or value != 0.0:
            raise ParameterError(room, [Reason(name, repr(value), "0, since nothing is rounded", "Mend the oracle.")])
    return Limits(0.0, 0.0)
