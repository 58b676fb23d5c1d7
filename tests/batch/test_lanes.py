"""The lanes: what shares a GPU, what waits, and what happens when the time ends; on a clock and processes of the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from kda_lab.batch.lanes import BESIDE, Lanes, Outcome, State
from kda_lab.batch.plan import ExportStep, RunStep, Step


class FakeClock:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def pause(self, seconds: float) -> None:
        self.time += seconds


@dataclass
class FakeProcess:
    """Ends with `code` once the clock has passed `end`."""

    clock: FakeClock
    end: float
    code: int
    stopped: bool = False

    def poll(self) -> int | None:
        return self.code if self.clock.now() >= self.end else None

    def stop(self) -> None:
        self.stopped = True


@dataclass
class Machine:
    """Starts steps; `took` says how long each really takes (its expected seconds when left out), `codes` how it ends."""

    lanes: tuple[str, ...] = ("0",)
    seconds: float = 1000.0
    took: dict[str, float] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.started: dict[str, tuple[str, float]] = {}
        self.processes: dict[str, FakeProcess] = {}
        self.watched: list[Outcome] = []

    def start(self, step: Step, lane: str) -> FakeProcess:
        self.started[step.name] = (lane, round(self.clock.now()))
        took = self.took.get(step.name, step.seconds)
        process = FakeProcess(self.clock, self.clock.now() + took - 1e-6, self.codes.get(step.name, 0))
        self.processes[step.name] = process
        return process

    def run(self, steps: Sequence[Step]) -> dict[str, Outcome]:
        made = Lanes(self.lanes, self.seconds, self.start, self.clock, self.watched.append)
        return {outcome.step.name: outcome for outcome in made.run(steps)}


def step(name: str, timed: bool = False, seconds: float = 10, after: tuple[str, ...] = ()) -> RunStep:
    """A run."""
    return RunStep(name=name, notebook="n.ipynb", seconds=seconds, timed=timed, after=after)


def test_timed_steps_run_one_after_another() -> None:
    """On one GPU nothing runs beside a timed step, whatever comes before or after it."""
    machine = Machine()
    outcomes = machine.run([step("a"), step("b", timed=True), step("c", timed=True), step("d"), step("e")])
    assert {o.state for o in outcomes.values()} == {State.PASSED}
    assert machine.started == {"a": ("0", 0), "b": ("0", 10), "c": ("0", 20), "d": ("0", 30), "e": ("0", 30)}


def test_two_gpus_time_two_steps_at_once() -> None:
    """A GPU each; the third goes to the one that is free first."""
    machine = Machine(("0", "1"), took={"a": 4})
    machine.run([step("a", timed=True), step("b", timed=True), step("c", timed=True)])
    assert machine.started == {"a": ("0", 0), "b": ("1", 0), "c": ("0", 4)}


def test_others_share_evenly_up_to_a_number() -> None:
    """Steps that time nothing spread over the GPUs; beyond the limit of each they wait."""
    machine = Machine(("0", "1"))
    machine.run([step(f"s{i}") for i in range(2 * BESIDE + 1)])
    at_once = [lane for lane, began in machine.started.values() if began == 0]
    assert (at_once.count("0"), at_once.count("1")) == (BESIDE, BESIDE)
    assert machine.started[f"s{2 * BESIDE}"][1] == 10


def test_exports_go_one_at_a_time() -> None:
    """They write into one package, so the second waits, on whatever GPU, and a run passes it."""
    machine = Machine(("0", "1"))
    exports = [ExportStep(name=name, candidate="c.py", runs=("r",), seconds=10) for name in ("a", "b")]
    machine.run([*exports, step("c")])
    assert machine.started == {"a": ("0", 0), "c": ("1", 0), "b": ("0", 10)}


def test_a_timed_step_is_not_overtaken() -> None:
    """While it waits for its GPU, a later one that could share it does not start."""
    machine = Machine(took={"a": 20})
    machine.run([step("a"), step("b", timed=True), step("c")])
    assert machine.started == {"a": ("0", 0), "b": ("0", 20), "c": ("0", 30)}


def test_a_step_waits_for_its_forerunner_and_others_pass_it() -> None:
    """Nothing else is held up by the wait."""
    machine = Machine(("0", "1"))
    machine.run([step("a", timed=True), step("b", after=("a",)), step("c", timed=True)])
    assert machine.started == {"a": ("0", 0), "c": ("1", 0), "b": ("0", 10)}


def test_what_follows_a_failure_is_not_started() -> None:
    """Nor what follows that; the sentence names the forerunner, and independent steps go on."""
    machine = Machine(codes={"a": 3})
    outcomes = machine.run([step("a"), step("b", after=("a",)), step("c", after=("b",)), step("d")])
    assert [o.state for o in outcomes.values()] == [State.FAILED, State.LEFT, State.LEFT, State.PASSED]
    assert [o.sentence for o in outcomes.values()] == ["exit code 3", "a did not pass", "b did not pass", ""]


def test_a_forerunner_outside_the_batch_is_not_waited_for() -> None:
    """A step chosen alone runs: that its forerunner passed is checked by the step itself."""
    assert Machine().run([step("b", after=("a",))])["b"].state is State.PASSED


def test_a_step_that_expects_more_than_is_left_is_not_started() -> None:
    """A shorter one after it still is."""
    machine = Machine(seconds=25)
    outcomes = machine.run([step("a", timed=True), step("long", timed=True, seconds=20), step("short", timed=True)])
    assert [o.state for o in outcomes.values()] == [State.PASSED, State.LEFT, State.PASSED]
    assert outcomes["long"].sentence.startswith("expects 20 s, 19.")


def test_at_the_end_of_the_time_what_runs_is_stopped() -> None:
    """Every running process is ended and said to be cut off; nothing is started afterwards."""
    machine = Machine(seconds=30, took={"a": 99, "b": 99})
    outcomes = machine.run([step("a"), step("b"), step("c", timed=True)])
    assert [o.state for o in outcomes.values()] == [State.CUT, State.CUT, State.LEFT]
    assert [machine.processes[name].stopped for name in "ab"] == [True, True]
    assert "c" not in machine.started


def test_a_step_that_cannot_start_fails_alone() -> None:
    """What follows it is not started, what does not goes on."""
    machine = Machine()
    start = machine.start

    def refuse(step: Step, lane: str) -> FakeProcess:
        if step.name == "a":
            raise OSError(28, "No space left on device")
        return start(step, lane)

    machine.start = refuse  # type: ignore[method-assign]
    outcomes = machine.run([step("a"), step("b", after=("a",)), step("c")])
    assert [o.state for o in outcomes.values()] == [State.FAILED, State.LEFT, State.PASSED]
    assert outcomes["a"].sentence == "not started: [Errno 28] No space left on device"


def test_a_step_of_the_whole_time_is_started() -> None:
    """What the batch itself has taken before the first step does not count against it."""
    assert Machine(seconds=10, took={"a": 9}).run([step("a", seconds=10.5)])["a"].state is State.PASSED


def test_an_interrupt_stops_what_runs() -> None:
    """Ctrl-C, or an error of the watcher, leaves no process behind."""
    machine = Machine(took={"b": 99})

    def raise_at_first(outcome: Outcome) -> None:
        if outcome.state is State.PASSED:
            raise KeyboardInterrupt

    lanes = Lanes(machine.lanes, 1000, machine.start, machine.clock, raise_at_first)
    with pytest.raises(KeyboardInterrupt):
        lanes.run([step("a"), step("b")])
    assert machine.processes["b"].stopped


def test_every_end_is_told_once() -> None:
    """The watcher hears of each step, in the order of their ends."""
    machine = Machine(("0", "1"), took={"a": 9, "b": 3})
    machine.run([step("a", timed=True), step("b", timed=True)])
    assert [o.step.name for o in machine.watched] == ["b", "a"]
    assert [round(o.seconds) for o in machine.watched] == [3, 9]
