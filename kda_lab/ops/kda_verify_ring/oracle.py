"""What `kda.verify_ring` must compute: T draft tokens of each request from its state, which is not written.

Axes: B requests, T tokens, H query and key heads, HV value heads, K and V channels, C = 2·H·K + HV·V. The convolution
is rounded to BF16 before the recurrence; a request with index -1 gives zeros everywhere. The formulas stand in
`kda_lab/ops/kda/speculative.py`. All functions read the call on its device and write nothing.
"""

from __future__ import annotations

import torch

from kda_lab.ops.kda import verify_oracle
from kda_lab.ops.protocol import Call


def oracle_fp32(call: Call) -> dict[str, torch.Tensor]:
    """Every output in FP32, unrounded."""
    return verify_oracle.reference(call, torch.float32)


def oracle_fp64(call: Call) -> dict[str, torch.Tensor]:
    """Every output in FP64, the arbiter."""
    return verify_oracle.reference(call, torch.float64)


def emulate(call: Call) -> dict[str, torch.Tensor]:
    """What a correct kernel returns: FP32 throughout, each output rounded once to its dtype."""
    return verify_oracle.emulated(call)


def allowance(call: Call, exact: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Error allowed to each element; 0 for windows, for what the convolution gives and for padding.

    Args:
        exact: from `oracle_fp64`.
    """
    return verify_oracle.allowance(call, exact)
