"""What an expansion kernel must beat: a stable partition in torch, and prefix sums in torch."""

from __future__ import annotations

from kda_lab.dispatch.qsa_selection import expand_blocks
from kda_lab.ops.protocol import Arm, Call, FunctionArm
from kda_lab.ops.qsa_expand_blocks.oracle import emulate, ratio_of


def _stable_partition(call: Call) -> None:
    i = call.inputs
    expand_blocks(i["blocks"], i["lengths"], i["positions"], ratio=ratio_of(call), tokens=call.outputs["tokens"])


def _prefix_sums(call: Call) -> None:
    call.outputs["tokens"].copy_(emulate(call)["tokens"])


ARMS: tuple[Arm, ...] = (
    FunctionArm("torch_stable_partition", _stable_partition),
    FunctionArm("torch_prefix_sums", _prefix_sums),
)
"""The first is the speed baseline."""
