"""The command `kda-lab batch`: run a plan's notebooks and exports over the GPUs of this machine."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kda_lab.batch.ending import ending_raises
from kda_lab.errors import ParameterError, Reason
from kda_lab.run_folder import lock_folder

if TYPE_CHECKING:
    from kda_lab.batch.lanes import Outcome
    from kda_lab.batch.plan import Step

CPU = "cpu"
STOP_S = 10.0
"""A run needs some seconds to end its notebook's process in order."""
THEN_S = 60.0


def batch(
    plan: Annotated[Path, typer.Argument(help="The plan, YAML: a list of runs and exports.")],
    only: Annotated[
        list[str] | None, typer.Option(help="Name or pattern of steps, repeated; all when left out.")
    ] = None,
    gpus: Annotated[str, typer.Option(help="Places among the visible ones, such as 0,1; all when left out.")] = "",
    seconds: Annotated[float, typer.Option(help="Of the whole batch; what runs then is ended.")] = 86400.0,
    reports: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("reports"),
    logs: Annotated[Path, typer.Option(help="Folder of what each step prints.")] = Path("build/batch"),
    then: Annotated[
        str, typer.Option(help="Command to run after each step, at most a minute, e.g. one that saves the runs.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and stop.")] = False,
) -> None:
    """Run a plan over this machine's GPUs. Exit 0 all passed, 1 some failed, 2 bad input, 3 out of time.

    A run that times has its GPU to itself; the others share. The same command again goes on: what passed is not repeated.
    """
    from kda_lab.batch.plan import check_steps, chosen, read_plan  # lazy: pydantic

    if not seconds > 0:
        raise ParameterError("batch", [Reason("seconds", repr(seconds), "a number above 0")])
    hook, lanes = _words(then), _lanes(gpus)
    steps = chosen(read_plan(plan), only or [])
    check_steps(steps, reports)
    if dry_run:
        for step in steps:
            typer.echo(shlex.join(("kda-lab", *step.command(reports)[3:])))
        return
    with _only_batch(logs):
        outcomes = _run(steps, lanes, seconds, reports, logs, hook)
    raise typer.Exit(_exit_code(outcomes))


def _run(
    steps: Sequence[Step], lanes: Sequence[str], seconds: float, reports: Path, logs: Path, hook: Sequence[str]
) -> tuple[Outcome, ...]:
    """Run the steps, and say of each when it starts and how it ends."""
    from kda_lab.batch.lanes import Lanes, State  # lazy: pydantic

    def start(step: Step, lane: str) -> Child:
        child = Child(step.command(reports), logs / f"{step.name}.txt", lane)
        typer.echo(f"{lane:>4}  {step.name}: started")
        return child

    def watch(outcome: Outcome) -> None:
        said = [outcome.sentence] if outcome.sentence else []
        said += [str(logs / f"{outcome.step.name}.txt")] if outcome.state is State.FAILED else []
        why = f" ({'; '.join(said)})" if said else ""
        typer.echo(f"      {outcome.step.name}: {outcome.state.value}{why}, {outcome.seconds:.0f} s")
        if hook and outcome.state is not State.LEFT:
            _after(hook)

    with ending_raises():
        return Lanes(lanes, seconds, start, WallClock(), watch).run(steps)


def _exit_code(outcomes: Sequence[Outcome]) -> int:
    from kda_lab.batch.lanes import State  # lazy: pydantic

    counts = {state: sum(o.state is state for o in outcomes) for state in State}
    typer.echo(", ".join(f"{count} {state.value}" for state, count in counts.items() if count))
    if counts[State.FAILED]:
        return 1
    return 3 if counts[State.CUT] or counts[State.LEFT] else 0


@contextmanager
def _only_batch(logs: Path) -> Iterator[None]:
    """Make the folder of logs and hold it against a second batch, which would write into the same files."""
    busy = "Another batch is at work there: wait for it, since two would also time on the same GPUs."
    reason = Reason("logs", repr(str(logs)), "a folder without a batch", busy)
    try:
        logs.mkdir(parents=True, exist_ok=True)
        handle = lock_folder(logs, ParameterError("batch", [reason]))
    except OSError as error:
        given, remedy = f"{str(logs)!r} ({error.strerror or error})", "Name another folder with --logs."
        raise ParameterError("batch", [Reason("logs", given, "a folder that can be written", remedy)]) from error
    try:
        yield
    finally:
        os.close(handle)


class Child:
    """A step as a process, with what it prints in a file.

    Args:
        command: to run.
        log: file that is written anew.
        lane: number of the one GPU that it sees; `cpu`: what this process sees.
    """

    def __init__(self, command: tuple[str, ...], log: Path, lane: str) -> None:
        seen = () if lane == CPU else ("env", f"CUDA_VISIBLE_DEVICES={lane}")
        with log.open("wb") as stream:
            # A session of its own, so that stopping reaches whatever the step has started.
            self._process = subprocess.Popen(
                (*seen, *command),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """End it: politely, and after some seconds by force."""
        for number, patience in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, None)):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(patience)
                return
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


class WallClock:
    """The time of this machine."""

    def now(self) -> float:
        """Seconds; only differences mean something."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


def _lanes(gpus: str) -> tuple[str, ...]:
    """Names of the chosen GPUs, as a child's CUDA_VISIBLE_DEVICES takes them; the CPU where there is none."""
    from kda_lab.runtime import visible_gpus  # lazy: torch

    visible = visible_gpus()
    if not gpus:
        return visible or (CPU,)
    places = [part.strip() for part in gpus.split(",")]
    known = {str(place): name for place, name in enumerate(visible)}
    if len(set(places)) != len(places) or not set(places) <= set(known):
        allowed = f"different ones of {', '.join(known)}" if known else "nothing, since no GPU is visible here"
        raise ParameterError("batch", [Reason("gpus", repr(gpus), allowed)])
    return tuple(known[place] for place in places)


def _words(command: str) -> tuple[str, ...]:
    try:
        words, fault = tuple(shlex.split(command)), ""
    except ValueError as error:
        words, fault = (), f" ({error})"
    if command and not words:
        raise ParameterError("batch", [Reason("then", f"{command!r}{fault}", "a command with its words")])
    return words


def _after(hook: Sequence[str]) -> None:
    """Run the user's own command; what it does is no part of the batch's outcome."""
    try:
        code = subprocess.run(hook, check=False, stdin=subprocess.DEVNULL, timeout=THEN_S).returncode
    except OSError as error:
        typer.echo(f"      {shlex.join(hook)}: {error.strerror or error}", err=True)
    except subprocess.TimeoutExpired:
        typer.echo(f"      {shlex.join(hook)}: ended after {THEN_S:g} s", err=True)
    else:
        if code:
            typer.echo(f"      {shlex.join(hook)}: exit code {code}", err=True)
