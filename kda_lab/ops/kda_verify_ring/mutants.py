"""Deliberately wrong verifications with a ring, one mistake each: those of both verify ops, and of the ring."""

from __future__ import annotations

import torch

from kda_lab.ops.kda import wrong_verify
from kda_lab.ops.kda.recurrence import normalise_k
from kda_lab.ops.kda.wrong_verify import Verify, after, many_tokens
from kda_lab.ops.protocol import Call, Mutant
from kda_lab.ops.wrong import plain


def _raw_strength(call: Call) -> None:
    Verify()(call)
    live = (call.inputs["state_indices"] >= 0)[:, None, None]
    call.outputs["ring_beta"].copy_(torch.where(live, call.inputs["b"].float(), 0.0))


def _first_token_only(call: Call) -> None:
    found = Verify().outputs(call)
    for name, tensor in call.outputs.items():
        taken = 1 if name.startswith("ring") else tensor.shape[1]
        tensor[:, :taken] = found[name][:, :taken].to(tensor.dtype)


MUTANTS: tuple[Mutant, ...] = (
    *wrong_verify.MUTANTS,
    after("ring_normalised", "The ring holds normalised keys.", lambda f: {**f, "ring_k": normalise_k(f["ring_k"])}),
    after("ring_decay", "The ring holds exp(g).", lambda f: {**f, "ring_g": f["ring_g"].exp()}),
    plain("ring_raw_strength", "The ring holds b before the sigmoid.", _raw_strength),
    plain(
        "ring_first_only",
        "Only the first token reaches the ring.",
        _first_token_only,
        many_tokens,
        "there is one token a request",
    ),
    plain(
        "ring_turned",
        "The ring holds each value one token late.",
        Verify(after=lambda found, call: {**found, "ring_v": found["ring_v"].roll(1, 1)}),
        many_tokens,
        "there is one token a request",
    ),
)
