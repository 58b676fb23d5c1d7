"""One kernel under several cache policies: the same bits, other hints to the L2."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kda_lab import interpreter, runtime
from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.arms import SourceArm, launcher
from kda_lab.ops.protocol import Call, Launcher
from kda_lab.timing.chain.persisting import reset_persisting_lines

HINTS = ("stream", "persist")
"""`stream`: read once, evict first. `persist`: ask the L2 to keep it."""
POLICIES = tuple(f"{weights}/{scales}" for weights in HINTS for scales in HINTS)
"""`weights/scales`; the first is the reference."""
ENTRY = "gemm_with_policy"
"""What a candidate offers beside its entry: the op's signature plus `weight_policy` and `scale_policy`."""


@dataclass(frozen=True)
class PolicyArm:
    """A candidate's kernel with a fixed hint for its weights and one for their block scales."""

    source: SourceArm
    weight_policy: str
    scale_policy: str
    reads_live_lengths: bool = True

    @property
    def name(self) -> str:
        """`streamed stream/persist`: the kernel, then weights/scales."""
        return f"{self.source.name} {self.weight_policy}/{self.scale_policy}"

    @property
    def source_sha256(self) -> str:
        """Of the candidate."""
        return self.source.source_sha256

    @property
    def kernels_per_call(self) -> int:
        """What the candidate declares."""
        return self.source.declaration.kernels_per_call

    def unavailable(self, device: torch.device) -> str:
        """Why the kernel cannot run on `device`, or has no policies; empty when it can."""
        if not hasattr(self.source.module, ENTRY):
            return f"unavailable, because {self.source.name} has no function {ENTRY}"
        return self.source.unavailable(device)

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """One launcher a call; on a CPU the interpreter is mended first, where it is on.

        What an arm before this one asked the L2 to keep is given back, since timing binds once a trial.
        """
        if calls:
            reset_persisting_lines(calls[0].device)
        if calls and calls[0].device.type == "cpu" and runtime.interpreter_on():
            interpreter.ensure_faithful()
        entry = functools.partial(
            getattr(self.source.module, ENTRY), weight_policy=self.weight_policy, scale_policy=self.scale_policy
        )
        return [launcher(entry, self.source.spec, call) for call in calls]


def policy_arms(source: SourceArm, policies: Sequence[str]) -> list[PolicyArm]:
    """One arm a policy, in order; the first is the reference of every ratio.

    Raises:
        ParameterError: a policy is unknown or named twice, or there are fewer than two.
    """
    reasons = [Reason("policies", repr(p), ", ".join(POLICIES)) for p in policies if p not in POLICIES]
    reasons += [Reason("policies", repr(p), "each once") for p in sorted(set(policies)) if policies.count(p) > 1]
    if len(policies) < 2:
        reasons.append(Reason("policies", repr(list(policies)), "at least 2", "The first is what others divide by."))
    if reasons:
        raise ParameterError("timing", reasons)
    hints = [policy.split("/") for policy in policies]
    return [PolicyArm(source, weights, scales) for weights, scales in hints]
