"""What a compress-keys kernel must beat: the torch function that the door falls back to."""

from __future__ import annotations

from kda_lab.dispatch.qsa_index import compress_keys
from kda_lab.ops.protocol import Arm, Call, FunctionArm
from kda_lab.ops.qsa_compress_keys.oracle import eps_of
from kda_lab.ops.qsa_compress_keys.spec import SPEC


def _gathered(call: Call) -> None:
    """Gathers from step and ring, FP32 arithmetic, masked stores: some forty launches, all on the device."""
    tensors = [call.inputs[name] for name in SPEC.tensors]
    compress_keys(*tensors, eps=eps_of(call), **call.outputs)


ARMS: tuple[Arm, ...] = (FunctionArm("torch_gathered", _gathered),)
