"""The check after timing: the timed graph itself, on changed inputs and poisoned outputs, against the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kda_lab.errors import Reason, TimingError
from kda_lab.ops.infinities import without_shared_infinities
from kda_lab.ops.protocol import Call, Launcher, Row, preparation_of
from kda_lab.timing.graph import Replay

INTEGER_POISON = 0xA5
SEED_OFFSET = 500_009
"""Keeps the changed inputs apart from the seed of every trial."""


@dataclass(frozen=True)
class Timed:
    """What was timed: an arm's graph and everything it was bound to."""

    sets: Sequence[Call]
    launchers: Sequence[Launcher]
    """One a set, in their order."""
    replay: Replay
    seed: int
    """Of the sets' values."""
    calls: int
    """Launches in one replay, which rotate over the sets."""

    def launches_of(self, index: int) -> int:
        """How often one replay launches set `index`."""
        return len(range(index, self.calls, len(self.sets)))


@dataclass(frozen=True)
class ErrorLimits:
    """Largest relative L2 errors of a call's outputs."""

    plain: float
    updated: float
    """Of those that are updated in place beside others; NaN where there are none."""


def recheck(
    op: Any, row: Row, timed: Timed, *, synchronise: Callable[[], None], limit: ErrorLimits | None = None
) -> dict[str, Any]:
    """Refill the first and the last set in place, poison all outputs, replay once, judge.

    What a call updates in place begins with its inputs again; the oracle is then applied as often as the replay
    launches the set.

    All sets must be written; the refilled ones must agree with `op.oracle.oracle_fp32`.
    A graph that lacks the arm's work, or that copies an old answer, fails here. A launcher that prepares
    by contents does it again for its refilled set, outside of the graph.

    Args:
        limit: largest errors, from `limit_of`; of the first refilled set when None.

    Returns:
        The `recheck` field of a record: passed, error, limit, detail.
    """
    sets = timed.sets
    chosen = sorted({0, len(sets) - 1})
    refill([sets[i] for i in chosen], op.cases.make_sets(row, len(chosen), timed.seed + SEED_OFFSET, sets[0].device))
    for preparation in filter(None, (preparation_of(timed.launchers[i]) for i in chosen)):
        preparation()
    for call in sets:
        poison(call)
    synchronise()
    timed.replay()
    synchronise()
    expected = {i: _after(op, sets[i], timed.launches_of(i)) for i in chosen}
    limit = limit_of(op, sets[0]) if limit is None else limit
    names = sets[0].separately_judged
    plain = max(relative_l2(sets[i], {n: t for n, t in e.items() if n not in names}) for i, e in expected.items())
    updated = max(relative_l2(sets[i], {n: e[n] for n in names}) for i, e in expected.items()) if names else 0.0
    return _verdict(plain, updated, limit, (unwritten(sets), len(sets)))


def _after(op: Any, call: Call, launches: int) -> dict[str, torch.Tensor]:
    """What the oracle says stands in the outputs after so many launches of one call."""
    expected: dict[str, torch.Tensor] = op.oracle.oracle_fp32(call)
    for _ in range(launches - 1 if call.updated else 0):
        # Stored as the kernel stores it: a state of a narrow dtype is rounded after every launch.
        stored = {n: expected[n].to(call.inputs[n].dtype) for n in call.updated}
        expected = op.oracle.oracle_fp32(call.with_inputs(**stored))
    return expected


def limit_of(op: Any, call: Call) -> ErrorLimits:
    """The op's limits for synthetic data at the call's own floor: its emulated arithmetic against its FP64 oracle.

    Calls whose sums are exact have a floor of 0, and an op may then demand equal values.
    """
    exact = op.oracle.oracle_fp64(call)
    emulated = op.oracle.emulate(call)
    floors = {name: _relative_l2(emulated[name], reference) for name, reference in exact.items()}
    names = call.separately_judged
    plain = float(op.gates.limits("synthetic", max(f for n, f in floors.items() if n not in names)).error)
    if not names:
        return ErrorLimits(plain, math.nan)
    return ErrorLimits(plain, float(op.gates.updated_limit("synthetic", max(floors[n] for n in names))))


def _verdict(error: float, updated: float, limit: ErrorLimits, written: tuple[int, int]) -> dict[str, Any]:
    left, sets = written
    faults = []
    if left:
        faults.append(f"{left} of {sets} input sets kept poison in their outputs after the replay")
    # Written so that a NaN fails.
    if not error <= limit.plain:
        faults.append(f"error is {error:.3g}; allowed: at most {limit.plain:g}")
    if not math.isnan(limit.updated) and not updated <= limit.updated:
        faults.append(f"error of what is updated in place is {updated:.3g}; allowed: at most {limit.updated:g}")
    return {
        "passed": not faults,
        "error": error if math.isfinite(error) else None,
        "limit": limit.plain,
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
    """Overwrite every output of a call: NaN in floating point, 0xA5 in integers; what is updated in place begins as given."""
    for tensor in call.outputs.values():
        tensor.fill_(float("nan") if tensor.is_floating_point() else INTEGER_POISON % _span(tensor.dtype))
    call.restore()


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
    found, exact = without_shared_infinities(out.to(torch.float64), reference.to(torch.float64))
    difference = float((found - exact).norm())
    size = float(exact.norm())
    value = difference / size if size > 0 else difference
    return value if not math.isnan(value) else math.inf
