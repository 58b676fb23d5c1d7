"""What a single-pass kernel must beat: the three-launch chain, and the definition in eager torch.

The first arm is the speed baseline: every ratio of a report divides by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kda_lab.dispatch.kda_residuals import attn_residuals
from kda_lab.ops.kda.reference_arms import TritonArm, memory_of
from kda_lab.ops.kda_attn_residuals.oracle import epsilon_of, valid_of
from kda_lab.ops.kda_attn_residuals.spec import SPEC
from kda_lab.ops.protocol import Arm, Call, FunctionArm, Launcher


def _three_launch(calls: Sequence[Call]) -> list[Launcher]:
    """Scores, mix, norm: three launches of `three_launch.py`, and one more each for an addition and a snapshot.

    All launchers of a bind share one scratch, as the layers of a server do.
    """
    from kda_lab.ops.kda_attn_residuals import three_launch  # lazy: triton

    scratch = three_launch.Scratch(calls[0].inputs["prefix"], valid_of(calls[0]) + 1)

    def bound(call: Call) -> Launcher:
        bank, prefix = call.outputs["bank"], call.outputs["prefix"]
        weights = (call.inputs["score_weight"], call.inputs["out_weight"])
        valid, epsilon = valid_of(call), epsilon_of(call)

        def launch() -> None:
            if call.scalars["add_delta"]:
                prefix.add_(call.inputs["delta"])
            three_launch.mix_and_norm((bank, prefix), weights, scratch, call.outputs["out"], valid, epsilon)
            if call.scalars["write_prefix"]:
                bank[:, valid].copy_(prefix)

        return launch

    return [bound(call) for call in calls]


def _reference(call: Call) -> None:
    """The definition in eager FP32 torch, some ten launches on FP32 copies of all rows."""
    tensors = [memory_of(call)[name] for name in SPEC.tensors]
    scalars: dict[str, Any] = dict(call.scalars)
    attn_residuals(*tensors, **scalars, out=call.outputs["out"])


ARMS: tuple[Arm, ...] = (
    TritonArm("three_launch", (Path(__file__).with_name("three_launch.py"),), _three_launch),
    FunctionArm("reference", _reference),
)
