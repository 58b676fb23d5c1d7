"""What a fused-decode kernel must beat: the chain of three plain Triton launches, and the torch fallback.

The first arm is the speed baseline: every ratio of a report divides by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kda_lab import interpreter
from kda_lab.dispatch.kda_decode import fused_decode
from kda_lab.ops import arms
from kda_lab.ops.kda_fused_decode.oracle import epsilon_of
from kda_lab.ops.kda_fused_decode.spec import SPEC
from kda_lab.ops.kda_packed_decode.baselines import bound_of
from kda_lab.ops.protocol import Arm, Call, FunctionArm, Launcher


def memory_of(call: Call) -> dict[str, torch.Tensor]:
    """The op's tensors as a launch may use them: the pools that it updates, and the inputs that it reads."""
    return {**call.inputs, **{name: call.outputs[name] for name in ("conv_state", "state")}}


@dataclass(frozen=True)
class ChainArm:
    """`chain.py`: convolution, packed step and gated norm, with rows between them that its launchers share."""

    name: str = "plain_chain"
    reads_live_lengths: bool = True

    @property
    def source_sha256(self) -> str:
        """Of both files whose kernels run."""
        here = Path(__file__)
        sources = (here.with_name("chain.py"), here.parents[1] / "kda_packed_decode" / "plain.py")
        return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()

    def unavailable(self, device: torch.device) -> str:
        """Why its kernels cannot run on `device`; empty when they can."""
        return arms.cuda_or_interpreter(device, self.name)

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """One launcher a call; on a CPU the interpreter is mended first. The calls share the rows between."""
        if calls[0].device.type == "cpu":
            interpreter.ensure_faithful()
        from kda_lab.ops.kda_fused_decode import chain  # lazy: triton

        rows = chain.between(calls[0].inputs)

        def bound(call: Call) -> Launcher:
            return lambda: chain.decode(memory_of(call), bound_of(call), epsilon_of(call), call.outputs["out"], rows)

        return [bound(call) for call in calls]


def _torch(call: Call) -> None:
    """torch: the named slots are copied out, advanced in FP32 and written back, in some seventy launches."""
    tensors = [memory_of(call)[name] for name in SPEC.tensors]
    fused_decode(*tensors, lower_bound=bound_of(call), epsilon=epsilon_of(call), out=call.outputs["out"])


ARMS: tuple[Arm, ...] = (ChainArm(), FunctionArm("torch_gathered", _torch))
