"""What a decode from a ring must beat: a simple kernel that makes the state for every token, eager torch.

The first arm is the speed baseline: every ratio of a report divides by it. Packed decode, which a server would use
otherwise, is an op of its own: it writes the state every token and has no ring.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kda_lab import interpreter
from kda_lab.ops import arms
from kda_lab.ops.kda_replay_decode.steps import Steps
from kda_lab.ops.protocol import Arm, Call, FunctionArm, Launcher


@dataclass(frozen=True)
class MaterialisedArm:
    """One program a query head of a request; the state is made from the records in a loop, whatever happens next."""

    name: str = "materialised"
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
        from kda_lab.ops.kda_replay_decode import plain  # lazy: triton

        return [lambda call=call: plain.replay_decode(call) for call in calls]  # type: ignore[misc]


ARMS: tuple[Arm, ...] = (MaterialisedArm(), FunctionArm("reference", Steps()))
