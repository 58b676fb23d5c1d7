"""Arms of the verify ops: the unfused chain in plain Triton, with or without snapshots, and torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kda_lab.ops.kda import verify_oracle
from kda_lab.ops.kda.gate import bound_of
from kda_lab.ops.kda.reference_arms import TritonArm
from kda_lab.ops.protocol import Call, Launcher


def chain_arm(name: str, *, snapshots: bool = False) -> TritonArm:
    """Convolution, gates and recurrence as separate kernels; all launchers of a bind share their scratch.

    Args:
        snapshots: also keep the state after each token, asked for or not.
    """
    return TritonArm(name, (Path(__file__).with_name("plain_verify.py"),), partial(_chain, snapshots))


def _chain(snapshots: bool, calls: Sequence[Call]) -> list[Launcher]:
    from kda_lab.ops.kda import plain_verify  # lazy: triton

    wanted = snapshots and "snapshots" not in calls[0].outputs
    scratch = plain_verify.scratch_for(calls[0], wanted)
    return [lambda call=call: plain_verify.chain(call, scratch, bound_of(call)) for call in calls]  # type: ignore[misc]


def torch_reference(call: Call) -> None:
    """Eager torch, token by token in FP32."""
    for name, value in verify_oracle.emulate(call).items():
        call.outputs[name].copy_(value)
