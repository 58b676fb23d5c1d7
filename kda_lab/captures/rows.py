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
            seed: another seed gives other contents, the geometry unchanged (`_other_contents`).
            device: where the copies live.
        """
        call = self.captures.load(row.label, device).call
        contents = {**call.inputs, **_other_contents(self.cases, call, seed)}
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


def _other_contents(cases: ModuleType, call: Call, seed: int) -> dict[str, torch.Tensor]:
    """Inputs that differ from the recorded ones: as the op's `shuffled` makes them, or its rows of KV reordered."""
    shuffled = getattr(cases, "shuffled", None)
    if shuffled is not None:
        return dict(shuffled(call, seed))
    return dict(cases.changed(call, call.facts["lengths"], seed, source=call))


def copies(tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
    """`count` copies in one allocation, each starting on a multiple of 256 bytes, strides kept.

    A tensor that does not fill its memory, or fills it twice (a slice, an expanded view), is copied contiguous.
    """
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    dense = tensor.permute(order)
    if not dense.is_contiguous():
        order, dense = list(range(tensor.dim())), tensor.contiguous()
    inverse = [order.index(axis) for axis in range(tensor.dim())]
    per_copy = -(-tensor.numel() * tensor.element_size() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES // tensor.element_size()
    buffer = torch.zeros(count, per_copy, dtype=tensor.dtype, device=tensor.device)
    buffer[:, : tensor.numel()] = dense.reshape(1, -1)
    return [buffer[i, : tensor.numel()].view(dense.shape).permute(inverse) for i in range(count)]


def capture_rows(captures: CaptureSet, names: Iterable[str]) -> tuple[Op, list[Row]]:
    """The op with its input sets taken from `captures`, and one row a capture.

    A row's `topology` is the capture's name up to the first `-`. Its class is `lengths`, the rest of the name
    (`q4-saturated` of `tp1-q4-saturated`), for calls with live lengths, and `kind`, as the facts say it, for others.
    """
    op = load_op(captures.op)
    rows = [_row(captures.load(name)) for name in names]
    return replace(op, cases=CapturedCases(captures, op.cases)), rows  # type: ignore[arg-type]


def _row(capture: Capture) -> Row:
    facts = capture.call.facts
    axes = {name: value for name, value in facts.items() if isinstance(value, int)}
    topology, _, rest = capture.name.partition("-")
    if "lengths" in facts:
        return Row(capture.call.op, capture.name, {**axes, "topology": topology, "lengths": rest or topology})
    kind = str(facts.get("kind") or rest or topology)
    return Row(capture.call.op, capture.name, {**axes, "topology": topology, "kind": kind})
