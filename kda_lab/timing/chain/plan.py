"""What a chain consists of: the products of one layer, how many layers, and how much state lies between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Row

MODELS: dict[str, tuple[str, ...]] = {
    "tiny": ("tiny_a", "tiny_c"),
    "4b": ("4b_gate_up", "4b_down"),
    "9b": ("9b_gate_up", "9b_down"),
    "27b": ("27b_gate_up", "27b_down"),
}
"""Model size to the shapes of one layer's products, in order. `tiny` is for a CPU."""
KIND = "random"
BYTES_PER_MB = 1_000_000


@dataclass(frozen=True)
class ChainPlan:
    """A chain of `layers` equal layers, each with weights and state of its own."""

    op: str
    model: str
    rows: tuple[Row, ...]
    """Products of one layer, in order; a touch of the layer's state stands before each."""
    layers: int
    state_bytes: int
    """Bytes of one layer's state; 0 leaves the touches out."""

    @property
    def axes(self) -> dict[str, Any]:
        """What a record says of the chain's geometry."""
        return {"model": self.model, "M": self.rows[0].parameters.get("M"), "rows": [row.label for row in self.rows]}

    @property
    def touches_per_layer(self) -> int:
        """Touches of the state in one layer."""
        return len(self.rows) if self.state_bytes else 0


def plan_chain(op: Any, model: str, *, batch: int, layers: int, state_mb: float) -> ChainPlan:
    """The chain of one model size.

    Args:
        op: with `.spec` and `.cases.rows(shapes, batches, kinds)`.
        model: a key of `MODELS`.
        batch: tokens a step, the axis M; at least 1.
        layers: at least 2, so that the first and the last can be judged apart.
        state_mb: state of one layer in MB of 10^6 bytes; 0 for none.

    Raises:
        ParameterError: one reason for each value that is not allowed.
    """
    reasons = []
    if model not in MODELS:
        reasons.append(Reason("model", repr(model), ", ".join(MODELS)))
    if batch < 1:
        reasons.append(Reason("batch", repr(batch), "at least 1"))
    if layers < 2:
        reasons.append(Reason("layers", repr(layers), "at least 2", "The first and the last layer are judged."))
    if not 0 <= state_mb < float("inf"):
        reasons.append(Reason("state_mb", repr(state_mb), "0 or more megabytes"))
    if reasons:
        raise ParameterError("timing", reasons)
    rows = tuple(op.cases.rows(list(MODELS[model]), [batch], [KIND]))
    return ChainPlan(op.spec.name, model, rows, layers, int(state_mb * BYTES_PER_MB))
