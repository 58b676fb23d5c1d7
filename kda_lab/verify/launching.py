"""Running an arm's code: every failure it can report becomes an `ArmFailure` with its stage and words.

An arm is arbitrary code. What it raises is listed in `ARM_ERRORS`; anything else (SystemExit, a
warning turned into an error) is not an answer and ends the run, which then has no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar

import torch

from kda_lab import runtime
from kda_lab.ops.protocol import Arm, Call, Launcher, preparation_of

T = TypeVar("T")

ARM_ERRORS: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    ImportError,
    LookupError,
    MemoryError,
    NameError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class ArmFailure(Exception):  # noqa: N818 - a finding about the arm, not an error of the lab
    """The arm raised, or did not do what the protocol asks; `stage` says when."""

    def __init__(self, stage: str, text: str) -> None:
        super().__init__(f"{stage}: {text}")
        self.stage = stage
        self.text = text


def run_arm(stage: str, action: Callable[[], T], device: torch.device) -> T:
    """Run a piece of the arm's code and wait for the device.

    Raises:
        ArmFailure: the code, or the device while finishing it, raised one of `ARM_ERRORS` or a Triton error.
    """
    try:
        done = action()
        wait(device)
    except arm_errors() as error:
        lines = str(error).strip().splitlines() or [""]
        raise ArmFailure(stage, f"{type(error).__name__}: {lines[0]}"[:400]) from error
    return done


def wait(device: torch.device) -> None:
    """Wait until a CUDA device has finished everything on all its streams; nothing to do on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU, run torch on one thread inside, and on as many as before afterwards.

    The tensors of a replay on a CPU are small: threads that wait for one another cost more than they
    save, beside other processes twenty times as much.
    """
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def bind_one(arm: Arm, call: Call, device: torch.device, may_prepare: bool = True) -> Launcher:
    """Bind the arm to one call; an answer other than one callable is a failure of the arm.

    So is a launcher with `prepare()` where `may_prepare` is False: what a launch must do could hide there.
    """
    launchers = run_arm("bind", lambda: list(arm.bind([call])), device)
    if len(launchers) != 1 or not callable(launchers[0]):
        raise ArmFailure("bind", f"returned {len(launchers)} launchers for one call; allowed: one callable.")
    if not may_prepare and preparation_of(launchers[0]) is not None:
        raise ArmFailure("bind", "returned a launcher with prepare(); allowed: none, since its work is not timed.")
    return launchers[0]


def nonzero_state(arm: Arm) -> dict[str, int]:
    """State tensor to its non-zero elements, for an arm that offers `state_tensors()`; empty for others."""
    probe: Callable[[], dict[str, torch.Tensor]] | None = getattr(arm, "state_tensors", None)
    # count_nonzero counts NaN too, so a poisoned counter is not zero.
    return {n: int(torch.count_nonzero(t)) for n, t in probe().items()} if probe is not None else {}


def arm_errors() -> tuple[type[BaseException], ...]:
    """`ARM_ERRORS`, and Triton's own error, which inherits none of them, where Triton is installed."""
    errors: ModuleType | None = runtime.import_optional("triton.errors").module
    return (*ARM_ERRORS, errors.TritonError) if errors is not None else ARM_ERRORS
