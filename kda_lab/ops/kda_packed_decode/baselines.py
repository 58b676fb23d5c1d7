"""What a packed-decode kernel must beat: a plain Triton step on split views, the torch fallback, fla-core's kernel.

The first arm is the speed baseline: every ratio of a report divides by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kda_lab.dispatch.kda_decode import packed_decode
from kda_lab.ops.kda.gate import bound_of
from kda_lab.ops.kda.reference_arms import FlaArm, TritonArm, memory_of
from kda_lab.ops.kda_packed_decode.oracle import live_rows, split_heads
from kda_lab.ops.kda_packed_decode.spec import SPEC
from kda_lab.ops.protocol import Arm, Call, FunctionArm, Launcher

FLA = "fla.ops.kda.fused_recurrent"
"""fla-core 0.6 keeps the in-place form of its decode kernel here."""


def _plain(calls: Sequence[Call]) -> list[Launcher]:
    """`plain.py`: the generic kernel on q, k and v as views of the mixed row."""
    from kda_lab.ops.kda_packed_decode import plain  # lazy: triton

    return [
        lambda call=call: plain.decode(memory_of(call), bound_of(call), call.outputs["out"])  # type: ignore[misc]
        for call in calls
    ]


def _torch(call: Call) -> None:
    """torch: the named slots are copied out, advanced in FP32 and written back, in some forty launches."""
    tensors = [memory_of(call)[name] for name in SPEC.tensors]
    packed_decode(*tensors, lower_bound=bound_of(call), out=call.outputs["out"])


class FlaLauncher:
    """fla-core's recurrent KDA kernel for one token, in place on the pool, V first, on copies of the live operands.

    It wants q, k and v as tensors of their own and knows no padding: both are prepared outside of what is timed, in
    fla-core's favour. Which requests are padding is read on the host.
    """

    def __init__(self, step: Any, call: Call) -> None:
        self._step, self._call = step, call
        self._rows = live_rows(call.inputs["state_indices"])
        self._whole = len(self._rows) == call.inputs["state_indices"].numel()
        self._operands: dict[str, torch.Tensor] = {}
        self.prepare()

    def prepare(self) -> None:
        """Copy the operands of the live requests again, into the same memory."""
        i, rows = self._call.inputs, self._rows
        q, k, v = split_heads(self._call)
        HV, _, K = i["state"].shape[1:]
        g = i["a"].unflatten(1, (HV, K))
        named = {"q": q, "k": k, "v": v, "g": g, "beta": i["b"]}
        fresh = {name: t[rows][:, None].contiguous() for name, t in named.items()}
        fresh["ssm_state_indices"] = i["state_indices"][rows]
        for name, tensor in fresh.items():
            self._operands.setdefault(name, tensor).copy_(tensor)

    def __call__(self) -> None:
        call, operands = self._call, self._operands
        out = call.outputs["out"] if self._whole else torch.empty_like(operands["v"])
        if not self._whole:
            call.outputs["out"].zero_()
        if not len(self._rows):
            return
        self._step(
            **operands,
            A_log=call.inputs["a_log"],
            dt_bias=call.inputs["dt_bias"],
            initial_state=call.outputs["state"],
            inplace_final_state=True,
            state_v_first=True,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            lower_bound=bound_of(call),
            out=out,
        )
        if not self._whole:
            call.outputs["out"].index_copy_(0, self._rows, out)


ARMS: tuple[Arm, ...] = (
    TritonArm("plain_triton", (Path(__file__).with_name("plain.py"),), _plain),
    FunctionArm("torch_gathered", _torch),
    FlaArm("fla_fused_recurrent", FLA, "fused_recurrent_kda_fwd", FlaLauncher),
)
