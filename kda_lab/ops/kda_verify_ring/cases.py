"""Calls of `kda.verify_ring`: benchmark rows, synthetic tensors, guard slots, changed contents.

What both verify ops share stands in `kda_lab/ops/kda/verify_cases.py`; here are the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kda_lab.ops.kda import verify_cases
from kda_lab.ops.kda_verify_ring.spec import SPEC
from kda_lab.ops.protocol import Call, Row

CHANGES = verify_cases.CHANGES


def rows(
    heads: Sequence[int] = verify_cases.HEADS,
    batches: Sequence[int] = verify_cases.BATCHES,
    tokens: Sequence[int] = verify_cases.TOKENS,
) -> list[Row]:
    """Benchmark rows, one for each head count, batch and number of tokens, in that order: `hv12-B32-T4`."""
    return verify_cases.rows(SPEC.name, heads, batches, tokens)


def capture_rows() -> list[Row]:
    """The rows of the committed captures; drawn from seed 0."""
    return verify_cases.capture_rows(SPEC.name)


def synthesise(row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
    """A call of a row, whose convolved values are far from every rounding boundary."""
    inputs, scalars, facts = verify_cases.drawn(row, seed, device)
    return Call(SPEC.name, inputs, scalars, outputs(facts, device), row.label, facts)


def make_sets(row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
    """`count` distinct calls of one row for cold timing, each on pools of its own."""
    scalars = {"lower_bound": row.parameters["lower_bound"]}
    return [
        Call(SPEC.name, inputs, scalars, outputs(facts, device), row.label, facts)
        for inputs, facts in verify_cases.light(row, count, seed, device)
    ]


def outputs(facts: dict[str, Any], device: torch.device | str) -> dict[str, torch.Tensor]:
    """Buffers for the outputs of a call with these facts."""
    heads, B, T = verify_cases.heads_of_facts(facts), facts["B"], facts["T"]
    bf16: dict[str, Any] = {"dtype": torch.bfloat16, "device": device}
    return {
        "out": torch.empty(B, T, heads.HV, heads.V, **bf16),
        "windows": torch.empty(B, T, 3, heads.width, **bf16),
        "ring_k": torch.empty(B, T, heads.H, heads.K, **bf16),
        "ring_v": torch.empty(B, T, heads.HV, heads.V, **bf16),
        "ring_g": torch.empty(B, T, heads.HV, heads.K, device=device),
        "ring_beta": torch.empty(B, T, heads.HV, device=device),
    }


def with_guard_rows(call: Call, count: int) -> Call:
    """The call with up to two more slots of NaN behind its pools."""
    return verify_cases.with_guard_slots(call, count)


def changed(call: Call, which: str, seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    """New contents for the same buffers: `tokens` draws every value anew, `slots` moves requests and padding too.

    Args:
        source: not used: every capture is synthetic.

    Raises:
        ParameterError: an unknown change.
    """
    return verify_cases.changed(call, which, seed)
