"""What runs the products of a chain, and its part in the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kda_lab.errors import Reason, TimingError
from kda_lab.ops.protocol import Arm, preparation_of
from kda_lab.timing.chain.assembly import Chain, build_chain
from kda_lab.timing.chain.plan import ChainPlan
from kda_lab.timing.chain.records import Role

MAY_PREPARE = ("baseline", "peer", "state")


@dataclass(frozen=True)
class ChainArm:
    """An arm with its role; None is the chain without its products, which shows what the state alone costs."""

    arm: Arm | None
    role: Role

    @property
    def name(self) -> str:
        """Of the arm; the chain without products is called `state only`."""
        return self.arm.name if self.arm is not None else "state only"

    @property
    def source_sha256(self) -> str:
        """Of the arm's source; empty for libraries."""
        return getattr(self.arm, "source_sha256", "")

    def unavailable(self, device: torch.device) -> str:
        """Why the arm cannot run on `device`; empty when it can."""
        return self.arm.unavailable(device) if self.arm is not None else ""

    def build(self, op: Any, plan: ChainPlan, *, device: torch.device, seed: int) -> Chain:
        """A fresh chain of this arm.

        Raises:
            TimingError: a policy's launcher prepares by contents, so that part of its work would not be timed.
        """
        chain = build_chain(op, plan, self.arm, device=device, seed=seed)
        if self.role not in MAY_PREPARE and any(preparation_of(step.launch) is not None for step in chain.steps):
            remedy = "Do the work in the launch: only baselines and peers may prepare."
            reason = Reason(f"launcher of {self.name}", "an object with prepare()", "a callable alone", remedy)
            raise TimingError("timing", [reason])
        return chain

    def identity(self, plan: ChainPlan, provenance: dict[str, Any]) -> dict[str, Any]:
        """Fields that every kind of chain record shares."""
        return {
            "op": plan.op,
            "axes": plan.axes,
            "layers": plan.layers,
            "state_bytes": plan.state_bytes,
            "arm": self.name,
            "role": self.role,
            "source_sha256": self.source_sha256,
            "provenance": provenance,
        }
