"""Arms of the verify ops: the unfused chain in plain Triton, with or without snapshots, and torch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kda_lab import interpreter
from kda_lab.ops import arms
from kda_lab.ops.kda import verify_oracle
from kda_lab.ops.kda.wrong_verify import bound_of
from kda_lab.ops.protocol import Call, Launcher


@dataclass(frozen=True)
class ChainArm:
    """Convolution, gates and recurrence as separate kernels; all launchers of a bind share their scratch."""

    name: str
    snapshots: bool = False
    """Also keep the state after each token, asked for or not."""
    reads_live_lengths: bool = True

    @property
    def source_sha256(self) -> str:
        return hashlib.sha256(Path(__file__).with_name("plain_verify.py").read_bytes()).hexdigest()

    def unavailable(self, device: torch.device) -> str:
        """Why its kernels cannot run on `device`; empty when they can."""
        return arms.cuda_or_interpreter(device, self.name)

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """One launcher a call; on a CPU the interpreter is mended first."""
        if calls[0].device.type == "cpu":
            interpreter.ensure_faithful()
        from kda_lab.ops.kda import plain_verify  # lazy: triton

        wanted = self.snapshots and "snapshots" not in calls[0].outputs
        scratch = plain_verify.scratch_for(calls[0], wanted)
        return [lambda call=call: plain_verify.chain(call, scratch, bound_of(call)) for call in calls]  # type: ignore[misc]


def torch_reference(call: Call) -> None:
    """Eager torch, token by token in FP32."""
    for name, value in verify_oracle.emulated(call).items():
        call.outputs[name].copy_(value)
