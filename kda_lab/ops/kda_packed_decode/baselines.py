"""What a packed-decode kernel must beat: a plain Triton step on split views, the torch fallback, fla-core's kernel.

The first arm is the speed baseline: every ratio of a report divides by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kda_lab import interpreter, runtime
from kda_lab.dispatch.kda_decode import packed_decode
from kda_lab.ops import arms
from kda_lab.ops.kda_packed_decode.oracle import live_rows, split_heads
from kda_lab.ops.kda_packed_decode.spec import SPEC
from kda_lab.ops.protocol import Arm, Call, FunctionArm, Launcher

FLA = "fla.ops.kda.fused_recurrent"
"""fla-core 0.6 keeps the in-place form of its decode kernel here."""


def bound_of(call: Call) -> float | None:
    """The lower bound of a call's gate; None for the softplus gate."""
    given = call.scalars.get("lower_bound")
    return None if given is None else float(given)


def memory_of(call: Call) -> dict[str, torch.Tensor]:
    """The op's tensors as a launch may use them: the pool that it updates, and the inputs that it reads."""
    return {**call.inputs, "state": call.outputs["state"]}


@dataclass(frozen=True)
class PlainArm:
    """`plain.py`: the generic kernel on q, k and v as views of the mixed row."""

    name: str = "plain_triton"
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
        from kda_lab.ops.kda_packed_decode import plain  # lazy: triton

        return [
            lambda call=call: plain.decode(memory_of(call), bound_of(call), call.outputs["out"])  # type: ignore[misc]
            for call in calls
        ]


def _torch(call: Call) -> None:
    """torch: the named slots are copied out, advanced in FP32 and written back, in some forty launches."""
    tensors = [memory_of(call)[name] for name in SPEC.tensors]
    packed_decode(*tensors, lower_bound=bound_of(call), out=call.outputs["out"])


@dataclass(frozen=True)
class FlaArm:
    """fla-core's recurrent KDA kernel for one token, in place on the pool, V first.

    It wants q, k and v as tensors of their own and knows no padding: both are prepared outside of what is timed, in
    fla-core's favour. Which requests are padding is read on the host, so a launcher serves those only.
    """

    name: str = "fla_fused_recurrent"
    source_sha256: str = ""
    reads_live_lengths: bool = False

    def unavailable(self, device: torch.device) -> str:
        """Why fla-core cannot run on `device`; empty when it can."""
        if device.type != "cuda":
            return f"unavailable, because fla-core needs a CUDA device and this one is {device.type}"
        return runtime.import_optional(FLA).reason

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """One launcher a call, with copies of its operands."""
        step = runtime.import_optional(FLA).module.fused_recurrent_kda_fwd  # type: ignore[union-attr]
        return [FlaLauncher(step, call) for call in calls]


class FlaLauncher:
    """Runs one call on copies of its live operands."""

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


ARMS: tuple[Arm, ...] = (PlainArm(), FunctionArm("torch_gathered", _torch), FlaArm())
