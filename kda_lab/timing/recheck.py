"""The check after timing: the timed graph itself, on changed inputs and poisoned outputs, against the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kda_lab.errors import Reason, TimingError
from kda_lab.ops.protocol import Call, Row
from kda_lab.timing.graph import Replay

INTEGER_POISON = 0xA5
SEED_OFFSET = 500_009
"""Keeps the changed inputs apart from the seed of every trial."""


def recheck(
    op: Any, row: Row, sets: Sequence[Call], replay: Replay, *, seed: int, synchronise: Callable[[], None]
) -> dict[str, Any]:
    """Refill the first and the last set in place, poison all outputs, replay once, judge.

    All sets must be written; the refilled ones must agree with `op.oracle.oracle_fp32`.
    A graph that lacks the arm's work, or that copies an old answer, fails here.

    Returns:
        The `recheck` field of a record: passed, error, limit, detail.
    """
    chosen = sorted({0, len(sets) - 1})
    refill([sets[i] for i in chosen], op.cases.make_sets(row, len(chosen), seed + SEED_OFFSET, sets[0].device))
    for call in sets:
        poison(call)
    synchronise()
    replay()
    synchronise()
    error = max(relative_l2(sets[i], op.oracle.oracle_fp32(sets[i])) for i in chosen)
    limit = float(op.gates.limits("synthetic", 0.0).error)
    return _verdict(error, limit, unwritten(sets), len(sets))


def _verdict(error: float, limit: float, left: int, sets: int) -> dict[str, Any]:
    faults = []
    if left:
        faults.append(f"{left} of {sets} input sets kept poison in their outputs after the replay")
    # Written so that a NaN fails.
    if not error <= limit:
        faults.append(f"error is {error:.3g}; allowed: at most {limit:g}")
    return {
        "passed": not faults,
        "error": error if math.isfinite(error) else None,
        "limit": limit,
        "detail": "; ".join(faults),
    }


def refill(targets: Sequence[Call], sources: Sequence[Call]) -> None:
    """Copy the inputs of `sources` into the buffers of `targets`, one to one.

    Raises:
        TimingError: a tensor's shape or dtype differs, so that it cannot be refilled in place.
    """
    for target, source in zip(targets, sources, strict=True):
        for name, tensor in target.inputs.items():
            new = source.inputs[name]
            if new.shape != tensor.shape or new.dtype != tensor.dtype:
                given, allowed = f"{tuple(new.shape)} {new.dtype}", f"{tuple(tensor.shape)} {tensor.dtype}"
                remedy = "The op's make_sets must give one geometry a row, whatever the seed."
                raise TimingError("timing", [Reason(f"recheck.{name}", given, allowed, remedy)])
            tensor.copy_(new)


def poison(call: Call) -> None:
    """Overwrite every output of a call: NaN in floating point, 0xA5 in integers."""
    for tensor in call.outputs.values():
        tensor.fill_(float("nan") if tensor.is_floating_point() else INTEGER_POISON % _span(tensor.dtype))


def _span(dtype: torch.dtype) -> int:
    return 2 if dtype is torch.bool else torch.iinfo(dtype).max + 1


def unwritten(sets: Sequence[Call]) -> int:
    """How many sets still hold a NaN in a floating-point output. One device-to-host copy in all."""
    owners, tensors = [], []
    for index, call in enumerate(sets):
        for tensor in call.outputs.values():
            if tensor.is_floating_point() and tensor.numel():
                owners.append(index)
                tensors.append(tensor if tensor.element_size() > 1 else tensor.to(torch.float32))
    if not tensors:
        return 0
    # A norm is NaN as soon as one element is; one multi-tensor launch serves thousands of small sets.
    lost = torch.stack([norm.to(torch.float32) for norm in torch._foreach_norm(tensors)]).isnan()
    return len({owner for owner, is_lost in zip(owners, lost.tolist(), strict=True) if is_lost})


def relative_l2(call: Call, expected: dict[str, torch.Tensor]) -> float:
    """Worst ‖out − expected‖ / ‖expected‖ over the outputs; infinite when it is NaN.

    Where the expected output is all zero, the norm of the output itself counts.
    """
    errors = [_relative_l2(call.outputs[name], reference) for name, reference in expected.items()]
    return max(errors) if errors else math.inf


def _relative_l2(out: torch.Tensor, reference: torch.Tensor) -> float:
    exact = reference.to(torch.float64)
    difference = float((out.to(torch.float64) - exact).norm())
    size = float(exact.norm())
    value = difference / size if size > 0 else difference
    return value if not math.isnan(value) else math.inf
