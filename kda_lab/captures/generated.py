"""Synthetic captures that are made when they are asked for and never stored: a sweep's rows, judged like captures."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kda_lab.captures.format import content_sha256
from kda_lab.ops.protocol import Call, Row
from kda_lab.ops.registry import load_op


@dataclass(frozen=True)
class GeneratedCapture:
    """One synthetic call; nothing is pinned, since nothing real produced an output."""

    name: str
    call: Call
    pinned: dict[str, torch.Tensor]
    sha256: str
    """Over the contents of all inputs."""
    kind: str = "synthetic"


@dataclass(frozen=True)
class GeneratedCaptures:
    """The rows of a sweep as a capture set: `op`, `names()`, `load(name, device)`.

    Tensors are drawn on the CPU whatever the device, so that a row has one content and one hash everywhere.
    """

    op: str
    rows: Sequence[Row]
    seed: int

    def names(self) -> list[str]:
        """Labels of the rows, in order."""
        return [row.label for row in self.rows]

    def load(self, name: str, device: torch.device | str = "cpu") -> GeneratedCapture:
        """Draw one row from the seed.

        Raises:
            KeyError: no row has this label.
        """
        row = {row.label: row for row in self.rows}[name]
        call = load_op(self.op).cases.synthesise(row, self.seed, "cpu")
        digest = hashlib.sha256()
        for key, tensor in sorted(call.inputs.items()):
            digest.update(f"{key} {content_sha256(tensor)}\n".encode())
        return GeneratedCapture(name, call.to(device), {}, digest.hexdigest())
