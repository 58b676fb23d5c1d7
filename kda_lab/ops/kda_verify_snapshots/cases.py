"""Calls of `kda.verify_snapshots`: benchmark rows, synthetic tensors, guard slots, changed contents.

What both verify ops share stands in `kda_lab/ops/kda/verify_cases.py`; here are the outputs.
"""

from __future__ import annotations

from typing import Any

import torch

from kda_lab.ops.kda import verify_cases
from kda_lab.ops.kda_verify_snapshots.spec import SPEC


def outputs(facts: dict[str, Any], device: torch.device | str) -> dict[str, torch.Tensor]:
    """Buffers for the outputs of a call with these facts."""
    heads, B, T = verify_cases.heads_of_facts(facts), facts["B"], facts["T"]
    return {
        **verify_cases.draft_outputs(facts, device),
        "snapshots": torch.empty(B, T, heads.HV, heads.V, heads.K, device=device),
    }


CHANGES, changed, with_guard_rows = verify_cases.CHANGES, verify_cases.changed, verify_cases.with_guard_slots
_CASES = verify_cases.Cases(SPEC.name, outputs)
rows, capture_rows, synthesise, make_sets = _CASES.rows, _CASES.capture_rows, _CASES.synthesise, _CASES.make_sets
