"""Deliberately wrong verifications with snapshots, one mistake each: those of both verify ops, and of the snapshots."""

from __future__ import annotations

import torch

from kda_lab.ops.kda import wrong_verify
from kda_lab.ops.kda.speculative import Tensors, states_of
from kda_lab.ops.kda.wrong_verify import Verify, after, many_tokens
from kda_lab.ops.protocol import Call, Mutant
from kda_lab.ops.wrong import plain


def _before(found: Tensors, call: Call) -> Tensors:
    start = states_of(call.inputs["state"], call.inputs["state_indices"])
    return {**found, "snapshots": torch.cat([start[:, None], found["snapshots"][:, :-1]], 1)}


MUTANTS: tuple[Mutant, ...] = (
    *wrong_verify.MUTANTS,
    plain("snapshots_before", "Snapshots are those before each token.", Verify(after=_before)),
    plain(
        "snapshots_last",
        "Every snapshot is the last one.",
        Verify(after=lambda f, call: {**f, "snapshots": f["snapshots"][:, -1:].expand_as(f["snapshots"])}),
        many_tokens,
        "there is one token a request",
    ),
    after(
        "snapshots_bf16",
        "Snapshots are rounded to BF16.",
        lambda f: {**f, "snapshots": f["snapshots"].bfloat16().float()},
    ),
)
