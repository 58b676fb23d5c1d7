"""Captures as benchmark rows: an op whose input sets are copies of recorded tensors, not random numbers.

Power and clocks depend on the data, so a replay is timed on what was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch

from kda_lab.captures.store import Capture, CaptureSet
from kda_lab.ops.protocol import Call, Row
from kda_lab.ops.registry import Op, load_op

ALIGNMENT_BYTES = 256


@dataclass(frozen=True)
class CapturedCases:
    """Stands where an op's `cases` module stands: `make_sets` copies a capture, the rest is the op's own."""

    captures: CaptureSet
    cases: ModuleType

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cases, name)

    def make_sets(self, row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
        """`count` copies of the capture named by the row, each tensor on memory of its own.

        Args:
            row: its label is the capture's name.
            count: copies.
            seed: reorders the recorded rows, lengths unchanged, so that another seed gives other contents.
            device: where the copies live.
        """
        call = self.captures.load(row.label, device).call
        lengths = call.facts["lengths"]
        contents = {**call.inputs, **self.cases.changed(call, lengths, seed, source=call)}
        inputs = {name: copies(tensor, count) for name, tensor in contents.items()}
        outputs = {name: copies(tensor, count) for name, tensor in call.outputs.items()}
        return [
            replace(
                call,
                inputs={name: views[i] for name, views in inputs.items()},
                outputs={name: views[i] for name, views in outputs.items()},
                label=row.label,
            )
            for i in range(count)
        ]


def copies(tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
    """`count` contiguous copies in one allocation, each starting on a multiple of 256 bytes."""
    per_copy = -(-tensor.numel() * tensor.element_size() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES // tensor.element_size()
    buffer = torch.zeros(count, per_copy, dtype=tensor.dtype, device=tensor.device)
    buffer[:, : tensor.numel()] = tensor.reshape(1, -1)
    return [buffer[i, : tensor.numel()].view(tensor.shape) for i in range(count)]


def capture_rows(captures: CaptureSet, names: Iterable[str]) -> tuple[Op, list[Row]]:
    """The op with its input sets taken from `captures`, and one row a capture.

    A row's `lengths` is the capture's own name behind its topology: `q4-saturated` of `tp1-q4-saturated`.
    """
    op = load_op(captures.op)
    rows = [_row(captures.load(name)) for name in names]
    return replace(op, cases=CapturedCases(captures, op.cases)), rows  # type: ignore[arg-type]


def _row(capture: Capture) -> Row:
    axes = {name: value for name, value in capture.call.facts.items() if isinstance(value, int)}
    topology, _, kind = capture.name.partition("-")
    return Row(capture.call.op, capture.name, {**axes, "topology": topology, "lengths": kind or topology})
