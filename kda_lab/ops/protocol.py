"""The shared nouns of every op: its specification, one call of it, an arm, a mutant, its work.

An op folder `ops/<op>/` (dots of the op's name become underscores) holds exactly these files:

    spec.py       SPEC: OpSpec                                            (floor)
    oracle.py     oracle_fp32(call), oracle_fp64(call), emulate(call) -> dict[str, Tensor]
    baselines.py  ARMS: tuple[Arm, ...]; the first is the speed baseline
    cases.py      rows(...), synthesise(row, seed, device), with_guard_rows(call, count),
                  changed(call, lengths, seed)
    work.py       work(call) -> Work
    mutants.py    MUTANTS: tuple[Mutant, ...]
    gates.py      TOLERANCES: the op's tolerance table with its sources
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

Scalar = bool | int | float | str | None
Launcher = Callable[[], None]
"""Launches one bound call; writes that call's `outputs`; takes and returns nothing.

A baseline's or peer's launcher may be an object with a `prepare()` beside it: see `preparation_of`.
"""


def preparation_of(launcher: Launcher) -> Callable[[], None] | None:
    """The launcher's own `prepare`, which does again what `bind` did with the contents; None where it has none.

    It refills the same memory (weights dequantised beforehand), so that a captured launch sees the new
    contents. Called after the inputs were refilled, outside of what is timed or captured. A candidate
    whose launcher has one is refused: its launch must do all of the work.
    """
    found: Callable[[], None] | None = getattr(launcher, "prepare", None)
    return found


@dataclass(frozen=True)
class OpSpec:
    """One operator's signature, as the door, captures and contracts know it."""

    name: str
    """Dotted: `qsa.packed_decode`."""
    tensors: tuple[str, ...]
    """Input tensors in positional order."""
    scalars: tuple[str, ...]
    """Keyword-only scalars."""
    outputs: tuple[str, ...]
    """Names of the outputs; a single output is also the return value. One that is in `tensors` too is updated in place."""
    fallback: tuple[str, ...] = ()
    """Ordered names of what runs when no contract matches; empty: the call raises."""
    refusal: str = "unsupported call"
    """Words that open the error when nothing may run."""
    dtypes: tuple[str, ...] = ()
    """Scalars that are torch dtypes; a `Call` and a capture hold their names: `bfloat16`."""

    @property
    def updated(self) -> tuple[str, ...]:
        """Tensors that a call updates in place: inputs that are outputs too."""
        return tuple(name for name in self.outputs if name in self.tensors)

    @property
    def folder(self) -> str:
        """Name of the op's folder in `kda_lab/ops/`."""
        return self.name.replace(".", "_")


@dataclass(frozen=True)
class Call:
    """The tensors and scalars of one call of an op, with buffers for its outputs."""

    op: str
    inputs: dict[str, torch.Tensor]
    scalars: dict[str, Scalar]
    outputs: dict[str, torch.Tensor]
    label: str = ""
    """Readable id of the row or capture: `tp1-B4-saturated`."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Axes and other host-side facts: `{"B": 4, "HQ": 24, "HKV": 2, "lengths": [...]}`."""

    @property
    def device(self) -> torch.device:
        return next(iter(self.inputs.values())).device

    @property
    def updated(self) -> tuple[str, ...]:
        """Outputs that the call updates in place: `inputs` holds them as they are before the call, for the oracle.

        The kernel gets the memory in `outputs`, and finds there what `restore` put.
        """
        return tuple(name for name in self.outputs if name in self.inputs)

    @property
    def separately_judged(self) -> tuple[str, ...]:
        """The updated outputs where there are others beside them: each kind then has a limit of its own."""
        return self.updated if len(self.updated) < len(self.outputs) else ()

    def restore(self) -> None:
        """Put what an in-place call begins with into the memory that it updates; nothing for other calls."""
        for name in self.updated:
            self.outputs[name].copy_(self.inputs[name])

    def to(self, device: torch.device | str) -> Call:
        """The same call on another device, every tensor copied (strides kept by torch)."""
        return replace(
            self,
            inputs={n: t.to(device, copy=True) for n, t in self.inputs.items()},
            outputs={n: t.to(device, copy=True) for n, t in self.outputs.items()},
        )

    def with_inputs(self, **tensors: torch.Tensor) -> Call:
        """The same call with some inputs replaced."""
        return replace(self, inputs={**self.inputs, **tensors})

    def with_outputs(self, **tensors: torch.Tensor) -> Call:
        """The same call with some output buffers replaced."""
        return replace(self, outputs={**self.outputs, **tensors})


@dataclass(frozen=True)
class Row:
    """One benchmark case: an op with its shape class, before tensors exist."""

    op: str
    label: str
    parameters: dict[str, Any]
    """Axes and class of the row: `{"HQ": 24, "HKV": 2, "B": 4, "lengths": "saturated"}`."""


@dataclass(frozen=True)
class Work:
    """The least work a call needs: each input byte read once, each output byte written once."""

    bytes_read: int
    bytes_written: int
    flops: int

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written


class Arm(Protocol):
    """One implementation of an op that can be judged and timed: baseline, library, kernel or mutant."""

    @property
    def name(self) -> str: ...

    @property
    def source_sha256(self) -> str:
        """SHA-256 of the source that was judged; empty for libraries and torch functions."""
        ...

    @property
    def reads_live_lengths(self) -> bool:
        """False when `bind` fixes the lengths (a host-side plan): such an arm is not replayed on others."""
        ...

    def unavailable(self, device: torch.device) -> str:
        """Why the arm cannot run on `device` (`unavailable, because …`); empty when it can."""
        ...

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """Prepare for calls of one geometry (plan, compile, scratch); one launcher a call, in order.

        A launcher reads the call's input tensors when it runs, not when it is bound, and writes
        into `call.outputs`. Preparation is done here, once, so that it is never timed.
        """
        ...


@dataclass(frozen=True)
class FunctionArm:
    """An arm made of a plain function that computes one call and writes its outputs."""

    name: str
    function: Callable[[Call], None]
    requires_cuda: bool = False
    source_sha256: str = ""
    reads_live_lengths: bool = True

    def unavailable(self, device: torch.device) -> str:
        """Why the function cannot run on `device`; empty when it can."""
        if self.requires_cuda and device.type != "cuda":
            return f"unavailable, because {self.name} needs a CUDA device and this one is {device.type}"
        return ""

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        return [lambda call=call: self.function(call) for call in calls]  # type: ignore[misc]


@dataclass(frozen=True)
class Mutant:
    """A deliberately wrong implementation, and the inputs on which it is wrong at all."""

    name: str
    what: str
    """One sentence: the mistake, in words."""
    make: Callable[[], Arm]
    """A fresh arm a use, since some mutants keep state between launches."""
    applies: Callable[[Call], bool] = lambda call: True
    """False where the mistake changes nothing (a wrong head map with one KV head)."""
    why_not: str = ""
    """Why it does not apply there, in words; required when `applies` can be False."""
