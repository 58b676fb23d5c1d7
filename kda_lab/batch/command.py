"""The command `kda-lab batch`: run a plan's notebooks and exports over the GPUs of this machine."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kda_lab.errors import ParameterError, Reason

if TYPE_CHECKING:
    from kda_lab.batch.lanes import Outcome
    from kda_lab.batch.plan import Step

CPU = "cpu"
STOP_S = 10.0


def batch(
    plan: Annotated[Path, typer.Argument(help="The plan, YAML: a list of runs and exports.")],
    only: Annotated[
        list[str] | None, typer.Option(help="Name or pattern of steps, repeated; all when left out.")
    ] = None,
    gpus: Annotated[str, typer.Option(help="Their numbers, such as 0,1; all visible ones when left out.")] = "",
    seconds: Annotated[float, typer.Option(help="Of the whole batch; what runs then is ended.")] = 86400.0,
    reports: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("reports"),
    logs: Annotated[Path, typer.Option(help="Folder of what each step prints.")] = Path("build/batch"),
    then: Annotated[str, typer.Option(help="Command to run after each step, e.g. one that saves the runs.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and stop.")] = False,
) -> None:
    """Run a plan over this machine's GPUs. Exit 0 all passed, 1 some failed, 2 bad input, 3 out of time.

    A run that times has its GPU to itself; the others share. The same command again goes on: what passed is not repeated.
    """
    from kda_lab.batch.lanes import Lanes, State  # lazy: pydantic
    from kda_lab.batch.plan import check_steps, chosen, read_plan  # lazy: pydantic

    if not seconds > 0:
        raise ParameterError("batch", [Reason("seconds", repr(seconds), "a number above 0")])
    steps = chosen(read_plan(plan), only or [])
    check_steps(steps)
    if dry_run:
        for step in steps:
            typer.echo(shlex.join(("kda-lab", *step.command(reports)[3:])))
        return
    logs.mkdir(parents=True, exist_ok=True)

    def start(step: Step, lane: str) -> Child:
        typer.echo(f"{lane:>4}  {step.name}: started")
        return Child(step.command(reports), logs / f"{step.name}.txt", lane)

    def watch(outcome: Outcome) -> None:
        why = f" ({outcome.sentence}; {logs / outcome.step.name}.txt)" if outcome.state is State.FAILED else ""
        why = f" ({outcome.sentence})" if outcome.sentence and not why else why
        typer.echo(f"      {outcome.step.name}: {outcome.state.value}{why}, {outcome.seconds:.0f} s")
        if then and outcome.state is not State.LEFT:
            _after(then)

    outcomes = Lanes(_lanes(gpus), seconds, start, WallClock(), watch).run(steps)
    counts = {state: sum(o.state is state for o in outcomes) for state in State}
    typer.echo(", ".join(f"{count} {state.value}" for state, count in counts.items() if count))
    if counts[State.FAILED]:
        raise typer.Exit(1)
    raise typer.Exit(3 if counts[State.CUT] or counts[State.LEFT] else 0)


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
    if gpus:
        found = tuple(part.strip() for part in gpus.split(","))
        if not all(part.isdigit() for part in found) or len(set(found)) != len(found):
            raise ParameterError("batch", [Reason("gpus", repr(gpus), "different whole numbers, such as 0,1")])
        return found
    from kda_lab.runtime import visible_gpus  # lazy: torch

    return visible_gpus() or (CPU,)


def _after(command: str) -> None:
    """Run the user's own command; what it does is no part of the batch's outcome."""
    try:
        code = subprocess.run(shlex.split(command), check=False, stdin=subprocess.DEVNULL).returncode
    except OSError as error:
        typer.echo(f"      {command}: {error.strerror or error}", err=True)
        return
    if code:
        typer.echo(f"      {command}: exit code {code}", err=True)
