"""What a verify kernel with a ring must beat: the unfused chain, the chain that keeps snapshots as well, eager torch.

The first arm is the speed baseline: every ratio of a report divides by it.
"""

from __future__ import annotations

from kda_lab.ops.kda.verify_arms import chain_arm, torch_reference
from kda_lab.ops.protocol import Arm, FunctionArm

ARMS: tuple[Arm, ...] = (
    chain_arm("chain"),
    chain_arm("chain_with_snapshots", snapshots=True),
    FunctionArm("reference", torch_reference),
)
