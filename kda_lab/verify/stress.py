"""State stress: many launches of one bound call must give the same bits and leave no state behind."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kda_lab.errors import Reason, VerificationError
from kda_lab.ops.protocol import Arm, Call, Launcher
from kda_lab.verify.guarded import GuardedBuffer, bits, copy_strided
from kda_lab.verify.launching import ArmFailure, bind_one, nonzero_state, run_arm
from kda_lab.verify.reference import Reference


@dataclass(frozen=True)
class Stress:
    """What many launches left behind."""

    capture: str
    capture_sha256: str
    arm: str
    source_sha256: str
    launches: int
    """Launches that were compared with the first one."""
    differing: int
    """Launches whose output differs from the first in any bit."""
    nonzero_state: dict[str, int]
    """State tensor to its non-zero elements at the end; zero ones are absent."""
    failure: str = ""
    """Stage and words of what stopped the arm; empty when nothing did."""

    @property
    def passed(self) -> bool:
        """All launches done, all with the same bits, all state zero."""
        return not self.failure and self.launches > 0 and self.differing == 0 and not self.nonzero_state


def stress(arm: Arm, reference: Reference, launches: int = 10_000) -> Stress:
    """Launch `launches` times on poisoned outputs and compare every output with the first, on the device.

    Args:
        arm: what is stressed.
        reference: of the capture, from `make_reference`; its original contents are used.
        launches: how many after the first, at least 1; use a small number on a CPU.

    Raises:
        VerificationError: `launches` is below 1.
    """
    if launches < 1:
        raise VerificationError("verify", [Reason("launches", repr(launches), "1 or more")])
    differing, failure = 0, ""
    state: dict[str, int] = {}
    try:
        differing, state = _hammer(arm, reference, launches)
    except ArmFailure as stopped:
        launches, failure = 0, str(stopped)
    names = (reference.capture, reference.sha256, arm.name, arm.source_sha256)
    return Stress(*names, launches, differing, {n: c for n, c in state.items() if c}, failure)


def _hammer(arm: Arm, reference: Reference, launches: int) -> tuple[int, dict[str, int]]:
    device = reference.call.device
    inputs = {n: copy_strided(t) for n, t in reference.call.inputs.items()}
    buffers = {n: GuardedBuffer(t) for n, t in reference.call.outputs.items()}
    call = reference.call.with_inputs(**inputs).with_outputs(**{n: b.view() for n, b in buffers.items()})
    launcher = bind_one(arm, call, device)
    first = run_arm("launch", lambda: _launch(launcher, call, buffers, 0), device)
    differing = torch.zeros((), dtype=torch.int64, device=device)

    def again() -> None:
        # No wait between launches: a race that only shows back to back must be able to show.
        for turn in range(1, launches + 1):
            now = _launch(launcher, call, buffers, turn)
            unequal = torch.stack([(now[n] != first[n]).any() for n in now])
            differing.add_(unequal.any())

    run_arm("launch", again, device)
    state = run_arm("state_tensors", lambda: nonzero_state(arm), device)
    return int(differing), state


def _launch(launcher: Launcher, call: Call, buffers: dict[str, GuardedBuffer], turn: int) -> dict[str, torch.Tensor]:
    for buffer in buffers.values():
        buffer.poison(turn)
    call.restore()
    launcher()
    return {n: bits(b.view()).clone() for n, b in buffers.items()}
