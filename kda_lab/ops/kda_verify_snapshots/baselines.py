"""What a verify kernel with snapshots must beat: the unfused chain and eager torch.

The first arm is the speed baseline: every ratio of a report divides by it.
"""

from __future__ import annotations

from kda_lab.ops.kda.verify_arms import chain_arm, torch_reference
from kda_lab.ops.protocol import Arm, FunctionArm

ARMS: tuple[Arm, ...] = (chain_arm("chain"), FunctionArm("reference", torch_reference))
