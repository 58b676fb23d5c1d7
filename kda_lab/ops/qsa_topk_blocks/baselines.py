"""What a top-k kernel must beat: a stable sort in torch, and torch.topk in two forms.

The first arm is the speed baseline. `torch_topk` takes torch's word on ties and on live scores of -inf, so its ids are the
canonical ones only where the threshold is met once. `torch_topk_keyed` ranks by score and id together, and always is right.
"""

from __future__ import annotations

import torch

from kda_lab.dispatch.qsa_selection import topk_blocks
from kda_lab.ops.protocol import Arm, Call, FunctionArm
from kda_lab.ops.qsa_topk_blocks.oracle import ordered_integers

ID_BITS = 20


def _stable_sort(call: Call) -> None:
    topk_blocks(call.inputs["scores"], call.inputs["lengths"], k=_k(call), blocks=call.outputs["blocks"])


def _torch_topk(call: Call) -> None:
    scores = call.inputs["scores"]
    _choose(call, torch.where(_live(call) & ~scores.isnan(), scores, float("-inf")))


def _torch_topk_keyed(call: Call) -> None:
    column = torch.arange(call.inputs["scores"].shape[1], device=call.device)
    keys = (ordered_integers(call.inputs["scores"]) << ID_BITS) + ((1 << ID_BITS) - 1 - column)
    _choose(call, torch.where(_live(call), keys, -1))


def _choose(call: Call, ranked: torch.Tensor) -> None:
    """Write the ids of the k largest of `ranked` [B, N], ascending; what is not live becomes -1."""
    columns, blocks = ranked.shape[1], call.outputs["blocks"]
    best = ranked.topk(min(_k(call), columns), dim=1).indices
    ids = torch.where(_live(call).gather(1, best), best, columns).sort(dim=1).values
    blocks.fill_(-1)
    blocks[:, : ids.shape[1]] = torch.where(ids < columns, ids, -1)


def _live(call: Call) -> torch.Tensor:
    scores = call.inputs["scores"]
    return torch.arange(scores.shape[1], device=scores.device) < call.inputs["lengths"][:, None]


def _k(call: Call) -> int:
    return call.outputs["blocks"].shape[1]


ARMS: tuple[Arm, ...] = (
    FunctionArm("torch_stable_sort", _stable_sort),
    FunctionArm("torch_topk", _torch_topk),
    FunctionArm("torch_topk_keyed", _torch_topk_keyed),
)
