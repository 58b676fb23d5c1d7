"""What a compaction kernel must beat: one gather in torch from device-side ranks, and a selection that asks the host."""

from __future__ import annotations

from kda_lab.dispatch.qsa_selection import compact_kv
from kda_lab.ops.protocol import Arm, Call, FunctionArm
from kda_lab.ops.qsa_compact_kv.oracle import oracle_fp64


def _ranked_gather(call: Call) -> None:
    compact_kv(*call.inputs.values(), **call.outputs)


def _selected_gather(call: Call) -> None:
    """Boolean selection: torch reads the number of valid tokens on the host, so it cannot be captured in a graph."""
    for name, value in oracle_fp64(call).items():
        call.outputs[name].copy_(value)


ARMS: tuple[Arm, ...] = (
    FunctionArm("torch_ranked_gather", _ranked_gather),
    FunctionArm("torch_selected_gather", _selected_gather, reads_live_lengths=False),
)
"""The first is the speed baseline. The second is judged on its first contents only, since no graph can hold it."""
