"""Run the steps of a plan over the GPUs of this machine, within a time: what is timed has its GPU to itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from kda_lab.batch.plan import ExportStep, Step

POLL_S = 0.2
GRACE_S = 1.0
"""A step may expect this much more than is left: the check of the plan has taken some."""
BESIDE = 4
"""Steps that time nothing share a GPU up to this many; each is one busy CPU as well."""


class State(Enum):
    """How a step ended."""

    PASSED = "passed"
    FAILED = "failed"
    CUT = "cut off"
    LEFT = "not started"


@dataclass(frozen=True)
class Outcome:
    """The end of one step."""

    step: Step
    state: State
    sentence: str
    seconds: float = 0.0


class Process(Protocol):
    """A started step."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""

    def stop(self) -> None:
        """End it with everything it started, and wait for its end."""


class Clock(Protocol):
    """Seconds since some moment, and a pause."""

    def now(self) -> float:
        """Seconds."""

    def pause(self, seconds: float) -> None:
        """Wait."""


@dataclass
class _Running:
    step: Step
    lane: str
    process: Process
    began: float


Start = Callable[[Step, str], Process]
Watch = Callable[[Outcome], None]


class Lanes:
    """Steps of one batch on their way through the lanes.

    Steps start in the plan's order, so that a timed one is not overtaken for ever by others that share its GPU; one
    whose forerunners still run is passed over, and so is an export while another runs.

    Args:
        lanes: one name a GPU.
        seconds: of the whole batch. A step that expects more than is left is not started; what runs at the end is ended.
        start: starts a step in a lane.
        watch: told of each end.
    """

    def __init__(self, lanes: Sequence[str], seconds: float, start: Start, clock: Clock, watch: Watch) -> None:
        self._lanes, self._seconds = tuple(lanes), seconds
        self._start, self._clock, self._watch = start, clock, watch
        self._running: list[_Running] = []
        self._outcomes: dict[str, Outcome] = {}

    def run(self, steps: Sequence[Step]) -> tuple[Outcome, ...]:
        """Run the steps to their ends, one outcome each in the plan's order; an interrupt ends what runs and goes on up."""
        end = self._clock.now() + self._seconds
        waiting = list(steps)
        try:
            while waiting or self._running:
                self._collect()
                waiting = self._begin(waiting, steps, end)
                if self._clock.now() >= end:
                    self._cut(f"the batch's {self._seconds:g} s were over")
                elif self._running:
                    self._clock.pause(POLL_S)
        finally:
            self._cut("the batch was stopped")
        return tuple(self._outcomes[step.name] for step in steps)

    def _collect(self) -> None:
        for running in list(self._running):
            code = running.process.poll()
            if code is not None:
                self._running.remove(running)
                state = State.PASSED if code == 0 else State.FAILED
                self._end(running, state, "" if code == 0 else f"exit code {code}")

    def _begin(self, waiting: list[Step], steps: Sequence[Step], end: float) -> list[Step]:
        """Start what can start now; returns what still waits."""
        names = {step.name for step in steps}
        still: list[Step] = []
        for place, step in enumerate(waiting):
            needs = [name for name in step.needs if name in names]
            lost = [name for name in needs if name in self._outcomes and self._outcomes[name].state != State.PASSED]
            left = end - self._clock.now()
            if lost:
                self._leave(step, f"{lost[0]} did not pass")
            elif step.seconds > left + GRACE_S:
                self._leave(step, f"expects {step.seconds:g} s, {max(left, 0):.1f} s left")
            elif any(name not in self._outcomes for name in needs) or self._must_wait(step):
                still.append(step)
            elif (lane := self._free_lane(step)) is not None:
                self._launch(step, lane)
            else:
                return [*still, *waiting[place:]]
        return still

    def _must_wait(self, step: Step) -> bool:
        """Whether it is an export beside another: they write into one package, which takes one at a time."""
        return isinstance(step, ExportStep) and any(isinstance(r.step, ExportStep) for r in self._running)

    def _launch(self, step: Step, lane: str) -> None:
        began = self._clock.now()
        try:
            process = self._start(step, lane)
        # Its log cannot be written, or the machine takes no more processes: the others go on.
        except (OSError, ValueError) as error:
            self._note(Outcome(step, State.FAILED, f"not started: {error}"))
        else:
            self._running.append(_Running(step, lane, process, began))

    def _free_lane(self, step: Step) -> str | None:
        """The emptiest lane that may take the step."""
        held = {lane: [r.step for r in self._running if r.lane == lane] for lane in self._lanes}
        most = 1 if step.timed else BESIDE
        free = [lane for lane in self._lanes if len(held[lane]) < most and not any(s.timed for s in held[lane])]
        return min(free, key=lambda lane: len(held[lane]), default=None)

    def _cut(self, sentence: str) -> None:
        for running in self._running:
            running.process.stop()
        while self._running:
            self._end(self._running.pop(0), State.CUT, sentence)

    def _end(self, running: _Running, state: State, sentence: str) -> None:
        self._note(Outcome(running.step, state, sentence, self._clock.now() - running.began))

    def _leave(self, step: Step, sentence: str) -> None:
        self._note(Outcome(step, State.LEFT, sentence))

    def _note(self, outcome: Outcome) -> None:
        self._outcomes[outcome.step.name] = outcome
        self._watch(outcome)
