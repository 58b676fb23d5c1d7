"""What a decode from a ring must beat: a simple kernel that makes the state for every token, eager torch.

The first arm is the speed baseline: every ratio of a report divides by it. Packed decode, which a server would use
otherwise, is an op of its own: it writes the state every token and has no ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kda_lab.ops.kda.reference_arms import TritonArm
from kda_lab.ops.kda_replay_decode.steps import Steps
from kda_lab.ops.protocol import Arm, Call, FunctionArm, Launcher


def _materialised(calls: Sequence[Call]) -> list[Launcher]:
    """One program a query head of a request; the state is made from the records in a loop, whatever happens next."""
    from kda_lab.ops.kda_replay_decode import plain  # lazy: triton

    return [lambda call=call: plain.replay_decode(call) for call in calls]  # type: ignore[misc]


ARMS: tuple[Arm, ...] = (
    TritonArm("materialised", (Path(__file__).with_name("plain.py"),), _materialised),
    FunctionArm("reference", Steps()),
)
