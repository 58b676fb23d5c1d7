"""What a fused-decode kernel must beat: the chain of three plain Triton launches, and the torch fallback.

The first arm is the speed baseline: every ratio of a report divides by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kda_lab.dispatch.kda_decode import fused_decode
from kda_lab.ops.kda.gate import bound_of
from kda_lab.ops.kda.reference_arms import TritonArm, memory_of
from kda_lab.ops.kda_fused_decode.oracle import epsilon_of
from kda_lab.ops.kda_fused_decode.spec import SPEC
from kda_lab.ops.protocol import Arm, Call, FunctionArm, Launcher

_OPS = Path(__file__).parents[1]
SOURCES = (_OPS / "kda_fused_decode" / "chain.py", _OPS / "kda_packed_decode" / "plain.py")
"""Both files whose kernels run."""


def _chain(calls: Sequence[Call]) -> list[Launcher]:
    """`chain.py`: convolution, packed step and gated norm, with rows between them that its launchers share."""
    from kda_lab.ops.kda_fused_decode import chain  # lazy: triton

    rows = chain.between(calls[0].inputs)

    def bound(call: Call) -> Launcher:
        return lambda: chain.decode(memory_of(call), bound_of(call), epsilon_of(call), call.outputs["out"], rows)

    return [bound(call) for call in calls]


def _torch(call: Call) -> None:
    """torch: the named slots are copied out, advanced in FP32 and written back, in some seventy launches."""
    tensors = [memory_of(call)[name] for name in SPEC.tensors]
    fused_decode(*tensors, lower_bound=bound_of(call), epsilon=epsilon_of(call), out=call.outputs["out"])


ARMS: tuple[Arm, ...] = (TritonArm("plain_chain", SOURCES, _chain), FunctionArm("torch_gathered", _torch))
