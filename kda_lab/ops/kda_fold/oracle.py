"""What `kda.fold` must compute: each request's first `accepted` tokens run over its state, in every layer.

Axes: Y layers, B requests, T places of the ring, H query and key heads, HV value heads, K and V channels. Slots that
take no token, since no request names them, none was accepted or the index is -1, keep their bits; what the ring holds
behind the accepted tokens may be anything. The formulas stand in `kda_lab/ops/kda/speculative.py`.
"""

from __future__ import annotations

import torch

from kda_lab.ops.kda.speculative import folded
from kda_lab.ops.kda.tolerance import summed
from kda_lab.ops.protocol import Call

RING = ("ring_k", "ring_v", "ring_g", "ring_beta")


def oracle_fp32(call: Call) -> dict[str, torch.Tensor]:
    """The pool after the call in FP32: `{"state": [Y, slots, HV, V, K]}`."""
    return _folded(call, torch.float32)


def oracle_fp64(call: Call) -> dict[str, torch.Tensor]:
    """The same in FP64, the arbiter."""
    return _folded(call, torch.float64)


def emulate(call: Call) -> dict[str, torch.Tensor]:
    """What a correct kernel leaves: FP32 arithmetic on an FP32 state, which is rounded nowhere else."""
    return _folded(call, torch.float32)


def allowance(call: Call, exact: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """1e-5 of a state's RMS for FP32 sums; 0 for every slot that takes no token.

    Args:
        exact: from `oracle_fp64`.
    """
    found = torch.zeros_like(exact["state"])
    touched = touched_slots(call)
    found[:, touched] = summed(exact["state"][:, touched], 2)
    return {"state": found}


def touched_slots(call: Call) -> torch.Tensor:
    """Slots that take at least one token, int64."""
    indices, accepted = call.inputs["state_indices"], call.inputs["accepted"]
    return indices[(indices >= 0) & (accepted > 0)].long()


def _folded(call: Call, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    i = call.inputs
    layers = [
        folded({n: i[n][y] for n in RING}, i["state"][y].to(dtype), i["state_indices"], i["accepted"])
        for y in range(i["state"].shape[0])
    ]
    return {"state": torch.stack(layers)}
