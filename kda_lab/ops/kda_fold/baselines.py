"""What a fold over all layers must beat: a simple kernel launched for each layer, eager torch.

The first arm is the speed baseline: every ratio of a report divides by it. A gather copy of accepted snapshots is no
arm: it needs the snapshots, and a second launch would not move the state on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kda_lab import interpreter
from kda_lab.ops import arms
from kda_lab.ops.kda_fold.mutants import Fold
from kda_lab.ops.protocol import Arm, Call, FunctionArm, Launcher


@dataclass(frozen=True)
class LayerArm:
    """One launch of a simple Triton kernel for each layer, as a loop over layers does it."""

    name: str = "per_layer"
    reads_live_lengths: bool = True

    @property
    def source_sha256(self) -> str:
        return hashlib.sha256(Path(__file__).with_name("plain.py").read_bytes()).hexdigest()

    def unavailable(self, device: torch.device) -> str:
        """Why its kernel cannot run on `device`; empty when it can."""
        return arms.cuda_or_interpreter(device, self.name)

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """One launcher a call; on a CPU the interpreter is mended first."""
        if calls[0].device.type == "cpu":
            interpreter.ensure_faithful()
        from kda_lab.ops.kda_fold import plain  # lazy: triton

        return [lambda call=call: plain.fold_layers(call) for call in calls]  # type: ignore[misc]


ARMS: tuple[Arm, ...] = (LayerArm(), FunctionArm("reference", Fold()))
