"""Where suites run an arm: launches counted, outputs poisoned, answers judged by the op's oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kda_lab.ops.protocol import Arm, Call, Launcher
from kda_lab.verify import graph, metrics
from kda_lab.verify.launching import bind_one, nonzero_state, run_arm, wait

ELEMENT_TOLERANCE = 2e-2
"""Relative and absolute, against the FP32 oracle rounded to the output's dtype: the source thread's unit tests."""
WHOLE_LIMIT = 5e-3
"""rel-L2 against the FP32 oracle on synthetic contents: the source thread's suite."""
GUARD_ROWS = 64
"""Rows of NaN behind the live end of K and V."""


@dataclass
class Bench:
    """One arm on one device. An op with a single output `out`, made by `cases.call_of(live, heads, seed, device)`."""

    op: Any
    arm: Arm
    device: torch.device
    captures: Any
    """A capture set: `.names()` and `.load(name, device)`."""
    seed: int = 2026
    stress_launches: int = 10_000
    """Launches a capture of the stress suite."""
    launches: int = 0
    """Launches so far, replays of graphs included."""

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def count(self, on_gpu: int, on_cpu: int) -> int:
        """How often something is repeated: on a CPU a kernel is interpreted and takes a second."""
        return on_gpu if self.on_gpu else on_cpu

    @property
    def concurrency(self) -> str:
        """What the arm, or its contract, says of launches that overlap; empty for one that says nothing."""
        declaration = getattr(self.arm, "declaration", None)
        said: str = getattr(self.arm, "concurrency", "") if declaration is None else declaration.state.concurrency
        return said

    @property
    def stand_in(self) -> str:
        """What is run here in the kernel's place: `torch twin`, `interpreter`; empty where it runs itself."""
        ask: Callable[[torch.device], str] | None = getattr(self.arm, "stand_in", None)
        return ask(self.device) if ask is not None else ""

    def call(self, live: Sequence[int], heads: tuple[int, int], guard_rows: int = GUARD_ROWS) -> Call:
        """A call of these lengths with rows of NaN behind the live end."""
        label = f"{heads[0]}/{heads[1]} heads, {len(live)} rows"
        call: Call = self.op.cases.call_of(live, heads, self.seed, self.device, label)
        return self.op.cases.with_guard_rows(call, guard_rows) if guard_rows else call  # type: ignore[no-any-return]

    def bind(self, call: Call) -> Launcher:
        """The arm bound to a call; every launch is counted and may fail as an `ArmFailure`."""
        return self.counted(bind_one(self.arm, call, self.device, may_prepare=False))

    def counted(self, launcher: Launcher) -> Launcher:
        """The launcher, counting its launches."""

        def launch() -> None:
            self.launches += 1
            launcher()

        return launch

    def captured(self, call: Call) -> Launcher:
        """One launch of the call as a graph, whose replays are counted; on a CPU the launcher itself."""
        launcher = bind_one(self.arm, call, self.device, may_prepare=False)
        if self.on_gpu:
            launcher = run_arm("capture", lambda: graph.capture(launcher, self.device), self.device)
        return self.counted(launcher)

    def run(self, call: Call, launcher: Launcher | None = None) -> torch.Tensor:
        """Launch once into a poisoned output and return a copy of it."""
        out = call.outputs["out"]
        launch = launcher or self.bind(call)
        out.fill_(float("nan"))
        wait(self.device)
        run_arm("launch", launch, self.device)
        return out.clone()

    def fault(self, call: Call, out: torch.Tensor) -> str:
        """What is wrong with an output, by element and as a whole; empty when nothing is."""
        exact = self.op.oracle.oracle_fp32(call)["out"]
        rounded = exact.to(out.dtype).float()
        # Written so that a NaN is outside.
        inside = (out.float() - rounded).abs() <= ELEMENT_TOLERANCE * (1 + rounded.abs())
        outside = int((~inside).sum())
        if outside:
            return f"{outside} elements differ by more than {ELEMENT_TOLERANCE:g}; allowed: 0"
        error = metrics.rel_l2(out, exact)
        return "" if metrics.within(error, WHOLE_LIMIT) else f"rel-L2 is {error:.3g}; allowed: at most {WHOLE_LIMIT:g}"

    def judged(self, call: Call) -> str:
        """The fault of one launch of a call."""
        return self.fault(call, self.run(call))

    def state_fault(self) -> str:
        """State that is not zero between launches; empty when all is."""
        left = {name: count for name, count in nonzero_state(self.arm).items() if count}
        return f"state is not zero: {left}; allowed: all zero" if left else ""

    def reset(self) -> None:
        """Zero the arm's state, where the arm or its source says how; no launch may be in flight."""
        owners: list[Any] = [self.arm, getattr(self.arm, "module", None)]
        reset: Callable[[], None] | None = next((o.reset_state for o in owners if hasattr(o, "reset_state")), None)
        if reset is not None:
            wait(self.device)
            reset()
