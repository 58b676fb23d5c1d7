"""What a block-scores kernel must beat: the torch function that the door falls back to, and a plain FP32 one."""

from __future__ import annotations

import torch

from kda_lab.dispatch.qsa_index import block_scores
from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Arm, Call, FunctionArm
from kda_lab.ops.qsa.geometry import PAGE_ENTRIES
from kda_lab.ops.qsa_block_scores.spec import SPEC

MOST_PRODUCTS = 1 << 28


def _gathered(call: Call) -> None:
    """Gather, one batched tensor-core product with FP32 results, ReLU, sum."""
    i = call.inputs
    block_scores(i["q_index"], i["keys"], i["pages"], i["lengths"], scores=call.outputs["scores"])


def _whole_pool(call: Call) -> None:
    """Every row against the whole pool, then its own scores: no copy of keys, but the work of all rows for each.

    Raises:
        ParameterError: there are more products than are worth a gigabyte of FP32.
    """
    i, out = call.inputs, call.outputs["scores"]
    rows, heads, width = i["q_index"].shape
    products = rows * heads * i["keys"].shape[0]
    if products > MOST_PRODUCTS:
        allowed = f"at most {MOST_PRODUCTS} for torch_whole_pool"
        raise ParameterError(SPEC.name, [Reason("B x HI x S", repr(products), allowed, "Use torch_gathered.")])
    flat = i["q_index"].reshape(rows * heads, width)
    dots = torch.mm(flat, i["keys"].T, out_dtype=torch.float32) if flat.is_cuda else flat.float() @ i["keys"].float().T
    every = dots.view(rows, heads, -1).relu_().sum(1).mul_(width**-0.5)  # [B, S]
    n = torch.arange(out.shape[1], device=out.device)
    entries = i["pages"].clamp(min=0).long().repeat_interleave(PAGE_ENTRIES, 1) * PAGE_ENTRIES + n % PAGE_ENTRIES
    out.copy_(every.gather(1, entries).masked_fill_(n >= i["lengths"][:, None], float("-inf")))


ARMS: tuple[Arm, ...] = (FunctionArm("torch_gathered", _gathered), FunctionArm("torch_whole_pool", _whole_pool))
