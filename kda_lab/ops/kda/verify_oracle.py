"""References and allowances of the two verify ops, which differ only in which outputs they keep.

Axes: B requests, T tokens, H query and key heads, HV value heads, K and V channels, C = 2·H·K + HV·V. The convolution
is rounded to BF16 before the recurrence; a request with index -1 gives zeros everywhere. The formulas stand in
`kda_lab/ops/kda/speculative.py`. All functions read the call on its device and write nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kda_lab.ops.kda.gate import bound_of
from kda_lab.ops.kda.speculative import Tensors, drafted, outputs_of, states_of
from kda_lab.ops.kda.tolerance import FP32_SUMS, rounded_row, summed
from kda_lab.ops.protocol import Call

LEAST_GATE = 1e-6
"""Of a log-decay near zero: softplus and sigmoid are absolutely as exact as FP32 is near 1."""


def reference(call: Call, dtype: torch.dtype) -> Tensors:
    """The call's outputs in `dtype` throughout; nothing but the convolution is rounded."""
    draft = drafted(call.inputs, bound_of(call), dtype)
    found = outputs_of(draft, states_of(call.inputs["state"], call.inputs["state_indices"]).to(dtype))
    return {name: found[name] for name in call.outputs}


def oracle_fp32(call: Call) -> Tensors:
    """Every output in FP32, unrounded."""
    return reference(call, torch.float32)


def oracle_fp64(call: Call) -> Tensors:
    """Every output in FP64, the arbiter."""
    return reference(call, torch.float64)


def emulate(call: Call) -> Tensors:
    """What a correct kernel returns: FP32 throughout, each output rounded to its dtype once."""
    return {name: value.to(call.outputs[name].dtype) for name, value in reference(call, torch.float32).items()}


ALLOWED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "out": rounded_row,
    "windows": torch.zeros_like,
    "snapshots": lambda exact: summed(exact, 2),
    "ring_k": torch.zeros_like,
    "ring_v": torch.zeros_like,
    "ring_g": lambda exact: FP32_SUMS * exact.abs() + LEAST_GATE * (exact != 0),
    "ring_beta": lambda exact: LEAST_GATE * exact.abs(),
}
"""For each output how far its elements may lie from FP64; windows and the rounded convolution are exact."""


def allowance(call: Call, exact: Tensors) -> Tensors:
    """Error allowed to each element; 0 for windows, for what the convolution gives and for padding.

    Args:
        exact: from `oracle_fp64`.
    """
    return {name: ALLOWED[name](exact[name]) for name in call.outputs}
