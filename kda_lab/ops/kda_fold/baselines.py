"""What a fold over all layers must beat: a simple kernel launched for each layer, eager torch.

The first arm is the speed baseline: every ratio of a report divides by it. A gather copy of accepted snapshots is no
arm: it needs the snapshots, and a second launch would not move the state on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kda_lab.ops.kda.reference_arms import TritonArm
from kda_lab.ops.kda_fold.mutants import Fold
from kda_lab.ops.protocol import Arm, Call, FunctionArm, Launcher


def _per_layer(calls: Sequence[Call]) -> list[Launcher]:
    """One launch of a simple Triton kernel for each layer, as a loop over layers does it."""
    from kda_lab.ops.kda_fold import plain  # lazy: triton

    return [lambda call=call: plain.fold_layers(call) for call in calls]  # type: ignore[misc]


ARMS: tuple[Arm, ...] = (
    TritonArm("per_layer", (Path(__file__).with_name("plain.py"),), _per_layer),
    FunctionArm("reference", Fold()),
)
