"""A small op for the verify tests: the scaled mean of each row's live entries, and how many there are.

out[b, h] = scale · mean_i(x[i, h]),  count[b] = number of i,  i in [cu[b], cu[b+1]);  0 for an empty row

Axes: B rows, H heads, D = 16, N packed entries. x [N, H, D] bf16, cu [B+1] int32, out [B, H, D] bf16, count [B] int32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.protocol import Call, FunctionArm, Launcher, Mutant, OpSpec
from kda_lab.verify import CHECKS, Check, Replay, Settings, make_reference, replay

NAME = "toy.mean"
LENGTHS = (3, 9, 1, 20, 5, 12, 0, 7)
WIDEST = 40


@dataclass(frozen=True)
class Capture:
    """What verify needs of a capture."""

    name: str
    kind: str
    call: Call
    pinned: dict[str, torch.Tensor]
    sha256: str


@dataclass(frozen=True)
class CaptureSet:
    """What `run_replays` needs of a capture set; counts its loads."""

    captures: tuple[Capture, ...]
    loads: list[str] = field(default_factory=list)

    def names(self) -> list[str]:
        return [c.name for c in self.captures]

    def load(self, name: str, device: str = "cpu") -> Capture:
        self.loads.append(name)
        return next(c for c in self.captures if c.name == name)


def make_call(lengths: Sequence[int] = LENGTHS, heads: int = 4, seed: int = 0) -> Call:
    """A call with unit-mean entries, so that no row nearly cancels out."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(sum(lengths), heads, 16, generator=generator) + 2.0).bfloat16()
    outputs = {
        "out": torch.zeros(len(lengths), heads, 16, dtype=torch.bfloat16),
        "count": torch.zeros(len(lengths), dtype=torch.int32),
    }
    facts = {"B": len(lengths), "H": heads, "lengths": list(lengths)}
    return Call(NAME, {"x": x, "cu": offsets(lengths)}, {"scale": 0.75}, outputs, "toy", facts)


def make_capture(name: str = "toy-a", kind: str = "synthetic", seed: int = 0, pinned: float | None = None) -> Capture:
    """A capture; `pinned` is a factor on the right output, which then is the pinned one."""
    call = make_call(seed=seed)
    right = exact(call, torch.float64)
    outputs = {} if pinned is None else {"out": (right["out"] * pinned).bfloat16(), "count": right["count"].int()}
    return Capture(name, kind, call, outputs, f"{seed:064d}")


def offsets(lengths: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def exact(call: Call, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The op in `dtype`, unrounded."""
    x, cu = call.inputs["x"], call.inputs["cu"].tolist()
    out = torch.zeros(len(cu) - 1, *x.shape[1:], dtype=dtype, device=x.device)
    for b, (start, end) in enumerate(itertools.pairwise(cu)):
        if end > start:
            out[b] = x[start:end].to(dtype).mean(0) * call.scalars["scale"]
    return {"out": out, "count": call.inputs["cu"].diff().to(dtype)}


def rounded(call: Call) -> dict[str, torch.Tensor]:
    """The op as a right kernel returns it."""
    done = exact(call, torch.float32)
    return {"out": done["out"].bfloat16(), "count": done["count"].int()}


def write(call: Call) -> None:
    """A right kernel: computes the op and writes both outputs."""
    for name, value in rounded(call).items():
        call.outputs[name].copy_(value)


def with_guard_rows(call: Call, count: int) -> Call:
    old, live = call.inputs["x"], int(call.inputs["cu"][-1])
    grown = torch.full((old.shape[0] + count, *old.shape[1:]), float("nan"), dtype=old.dtype, device=old.device)
    grown[:live] = old[:live]
    return call.with_inputs(x=grown)


def changed(call: Call, lengths: str, seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    old = call.inputs["cu"].diff().tolist()
    new = [n // 2 for n in old] if lengths == "shorter" else [min(WIDEST, 2 * n + 1) for n in old]
    if new == old:
        raise ParameterError("toy", "no room")
    fresh = make_call(new, call.inputs["x"].shape[1], seed + 100)
    fresh = with_guard_rows(fresh, call.inputs["x"].shape[0] - sum(new))
    return {n: t.to(call.device) for n, t in fresh.inputs.items()}


def limits(kind: str, floor: float, row_floor: float) -> SimpleNamespace:
    return SimpleNamespace(error=max(4e-3, 1.25 * floor), row_max=max(8e-3, 2 * row_floor))


def scaled(factor: float) -> Callable[[Call], None]:
    """A kernel whose result is off by a factor."""

    def run(call: Call) -> None:
        write(call)
        call.outputs["out"].copy_((exact(call, torch.float32)["out"] * factor).bfloat16())

    return run


def zero(call: Call) -> None:
    """A kernel that writes zeros."""
    for output in call.outputs.values():
        output.zero_()


MUTANTS = (
    Mutant("all_zero", "Writes zeros.", lambda: FunctionArm("all_zero", zero)),
    Mutant("untouched", "Writes nothing.", lambda: FunctionArm("untouched", lambda call: None)),
    Mutant("no_scale", "Leaves the scale out.", lambda: FunctionArm("no_scale", scaled(1 / 0.75))),
    Mutant(
        "one_head",
        "Needs a single head.",
        lambda: FunctionArm("one_head", zero),
        applies=lambda call: call.inputs["x"].shape[1] == 1,
        why_not="there is more than one head",
    ),
)


def make_op(mutants: Sequence[Mutant] = MUTANTS) -> SimpleNamespace:
    """The op's modules as an `Op` has them."""
    return SimpleNamespace(
        spec=OpSpec(NAME, ("x", "cu"), ("scale",), ("out", "count")),
        oracle=SimpleNamespace(
            oracle_fp32=lambda call: exact(call, torch.float32),
            oracle_fp64=lambda call: exact(call, torch.float64),
            emulate=rounded,
        ),
        cases=SimpleNamespace(with_guard_rows=with_guard_rows, changed=changed),
        gates=SimpleNamespace(limits=limits),
        mutants=SimpleNamespace(MUTANTS=tuple(mutants)),
    )


def make_named_op(first: str = "x", second: str = "scale") -> SimpleNamespace:
    """The toy op with changed contents of other names: both have shorter rows, each its own values."""
    op = make_op()
    op.cases.CHANGES = (first, second)
    op.cases.changed = lambda call, name, seed, source=None: changed(call, "shorter", seed + len(name))
    return op


def make_element_op(factor: float = 1.0) -> SimpleNamespace:
    """The toy op, with an allowance of 1 % of the FP64 result for each element."""
    op = make_op()
    op.oracle.allowance = lambda call, fp64: {n: t.abs() * 0.01 * factor for n, t in fp64.items()}
    return op


@dataclass
class BoundArm:
    """An arm from a function that binds one call, with optional state."""

    name: str
    bind_call: Callable[[Call], Launcher]
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    source_sha256: str = ""
    reads_live_lengths: bool = True
    reason: str = ""

    def unavailable(self, device: torch.device) -> str:
        return self.reason

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        return [self.bind_call(call) for call in calls]

    def state_tensors(self) -> dict[str, torch.Tensor]:
        return self.state


def without(*names: str) -> tuple[Check, ...]:
    """All checks but these; each name must exist, so that a removed check breaks its test."""
    known = {check.name for check in CHECKS}
    missing = set(names) - known
    if missing:
        raise LookupError(f"no such check: {missing}")
    return tuple(check for check in CHECKS if check.name not in names)


def judge(arm: object, checks: Sequence[Check] = CHECKS, op: object = None, capture: Capture | None = None) -> Replay:
    """Replay the arm as a candidate on the toy capture."""
    return replay(op or make_op(), arm, capture or make_capture(), "cpu", Settings(), checks)


def failed(arm: object, capture: Capture | None = None) -> set[str]:
    """Names of the checks that reject the arm."""
    return set(judge(arm, capture=capture).failed)


def reference(capture: Capture | None = None) -> object:
    return make_reference(make_op(), capture or make_capture(), torch.device("cpu"))


__all__ = [
    "CHECKS",
    "LENGTHS",
    "MUTANTS",
    "NAME",
    "BoundArm",
    "Capture",
    "CaptureSet",
    "changed",
    "exact",
    "failed",
    "judge",
    "limits",
    "make_call",
    "make_capture",
    "make_element_op",
    "make_named_op",
    "make_op",
    "reference",
    "replace",
    "rounded",
    "scaled",
    "with_guard_rows",
    "without",
    "write",
    "zero",
]
