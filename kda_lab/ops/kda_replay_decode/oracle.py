"""What `kda.replay_decode` must compute: one token a request on its checkpoint and ring.

Axes: B requests, H query and key heads, HV value heads, L places of a ring, K and V channels. A slot that no live request
names keeps its bits, as do all places of a ring but the one that takes a record; so does a checkpoint that is not
flushed. The write strength is not rounded. The formulas and both conventions of a flush stand in
`kda_lab/ops/kda/replay.py`.
"""

from __future__ import annotations

import torch

from kda_lab.ops.kda.gate import bound_of
from kda_lab.ops.kda.replay import Memory, flushes, require_predecay
from kda_lab.ops.kda.tolerance import BF16_HALF_ULP, FP32_SUMS, rms, rounded_row, summed
from kda_lab.ops.kda_replay_decode.steps import POOLS, Steps, heads_of_call, modes_of
from kda_lab.ops.protocol import Call

SUMMED_DECAY = 3e-5
"""Relative error of exp(-E) in FP32, where E is a sum of up to 16 log-decays, at most 80 in all."""
LEAST_GATE = 1e-6
"""Of a log-decay near zero: softplus and sigmoid are absolutely as exact as FP32 is near 1."""


def oracle_fp32(call: Call) -> dict[str, torch.Tensor]:
    """Output and pools after the call in FP32, records unrounded.

    Raises:
        ParameterError: pre-decayed keys where they are not allowed.
    """
    return _reference(call, torch.float32)


def oracle_fp64(call: Call) -> dict[str, torch.Tensor]:
    """The same in FP64, the arbiter."""
    return _reference(call, torch.float64)


def emulate(call: Call) -> dict[str, torch.Tensor]:
    """What a correct kernel leaves: FP32 arithmetic, output and records rounded once to their dtypes."""
    return {name: value.to(call.outputs[name].dtype) for name, value in oracle_fp32(call).items()}


def allowance(call: Call, exact: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Error allowed to each element; 0 for all that must keep its bits, and for the output of padding.

    Args:
        exact: from `oracle_fp64`.
    """
    found = {name: torch.zeros_like(value) for name, value in exact.items()}
    found["out"] = rounded_row(exact["out"])
    predecayed = bool(call.scalars["predecayed"])
    for slot, flush, at in touched(call):
        if flush:
            found["state"][slot] = summed(exact["state"][slot], 2)
        if at < 0:
            continue
        found["ring_d"][slot, :, at] = rounded_row(exact["ring_d"][slot, :, at])
        key, g = exact["ring_k"][slot, :, at], exact["ring_g"][slot, :, at]
        rounding = 1.01 * BF16_HALF_ULP if call.inputs["ring_k"].dtype == torch.bfloat16 else 0.0
        drift = SUMMED_DECAY * key.abs() if predecayed else FP32_SUMS * rms(key, 1)
        found["ring_k"][slot, :, at] = rounding * key.abs() + drift
        found["ring_g"][slot, :, at] = FP32_SUMS * g.abs() + LEAST_GATE
    return found


def touched(call: Call) -> list[tuple[int, bool, int]]:
    """For each live request: its slot, whether the checkpoint is written, and the place of the record, -1 for none."""
    i, modes, found = call.inputs, modes_of(call), []
    positions = i["write_positions"].tolist()
    for slot in i["state_indices"].tolist():
        if slot >= 0:
            memory = Memory(i["state"][slot], i["ring_d"][slot], i["ring_k"][slot], i["ring_g"][slot], positions[slot])
            flush, appends = flushes(memory, modes)
            found.append((slot, flush, (0 if flush else positions[slot]) if appends else -1))
    return found


def _reference(call: Call, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    if call.scalars["predecayed"]:
        heads = heads_of_call(call)
        require_predecay(call.inputs["ring_d"].shape[2], bound_of(call), (heads.H, heads.HV))
    return Steps().run(call, {name: call.inputs[name] for name in POOLS}, dtype)
