"""A plan: the runs and exports of a batch in their order, read from YAML and checked before anything starts.

```yaml
- name: h200-replay-qsa            # of the run's folder below reports/
  notebook: notebooks/20_replay_qsa.ipynb
  parameters: {kernels: [grouped], modes: []}
  timed: false                     # nothing is timed, so it may share its GPU
  seconds: 60                      # what it is expected to take
- name: qsa_packed_decode_grouped
  candidate: notebooks/candidates/qsa.packed_decode/grouped.py
  runs: [h200-replay-qsa]          # exported from these, once they passed
  seconds: 60
```
"""

from __future__ import annotations

import fnmatch
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError

from kda_lab.batch.parameters import is_file, read_parameters
from kda_lab.errors import ParameterError, Reason, RefereeError
from kda_lab.referee.readers.yaml_tree import complaints, read_tree

ROOM = "batch"
LONGEST = 100_000
"""Bytes of one parameter; Linux takes 128 KiB an argument."""
KDA_LAB = (sys.executable, "-m", "kda_lab.cli")
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    """Unique in the plan."""
    seconds: float = Field(gt=0, allow_inf_nan=False, strict=True)
    """What the step is expected to take; it is not started where less is left."""
    after: tuple[Name, ...] = ()
    """Steps that have to pass first, where they belong to the same batch."""


class RunStep(_Entry):
    """One notebook with its parameters; `name` is that of its folder."""

    notebook: str
    parameters: dict[str, Any] = {}
    timed: bool = Field(default=True, strict=True)
    """False for a run that times nothing; only such runs share a GPU."""

    def command(self, reports: Path) -> tuple[str, ...]:
        """The `kda-lab run` that this step is."""
        given = [text for name, value in self.parameters.items() for text in ("-p", f"{name}={_as_text(value)}")]
        return (*KDA_LAB, "run", self.notebook, *given, "--out", str(reports / self.name))

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the steps that come first."""
        return self.after


class ExportStep(_Entry):
    """The export of one candidate from its runs; `name` is the exported kernel's, for reading only."""

    candidate: str
    runs: tuple[Name, ...] = Field(min_length=1)
    leave_to: tuple[str, ...] = ()
    timed: ClassVar[bool] = False

    def command(self, reports: Path) -> tuple[str, ...]:
        """The `kda-lab export` that this step is."""
        kept = [text for kernel in self.leave_to for text in ("--leave-to", kernel)]
        return (*KDA_LAB, "export", *(str(reports / run) for run in self.runs), self.candidate, *kept)

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the steps that come first."""
        return (*self.runs, *self.after)


Step = RunStep | ExportStep


def _kind(value: Any) -> str:
    return "export" if isinstance(value, dict) and "candidate" in value else "run"


_Tagged = Annotated[Annotated[RunStep, Tag("run")] | Annotated[ExportStep, Tag("export")], Discriminator(_kind)]
_STEPS: TypeAdapter[list[Step]] = TypeAdapter(Annotated[list[_Tagged], Field(min_length=1)])


def read_plan(file: Path) -> tuple[Step, ...]:
    """The steps of a plan in order.

    Raises:
        ParameterError: unreadable, no YAML list, or steps with wrong, unknown or repeated entries; all are named.
    """
    try:
        tree = read_tree(file)
    except RefereeError as error:
        raise ParameterError(ROOM, error.reasons or str(error).split(": ", 1)[1]) from error
    try:
        steps = tuple(_STEPS.validate_python(tree.value))
    except ValidationError as error:
        # Pydantic puts the kind of a step behind its number; the file has no such level.
        raise ParameterError(ROOM, complaints(tree, error, lambda place: (*place[:1], *place[2:]))) from error
    if reasons := list(_wrong_names(steps)):
        raise ParameterError(ROOM, reasons)
    return steps


def chosen(steps: Sequence[Step], only: Sequence[str]) -> tuple[Step, ...]:
    """The steps that one of the patterns names, all where there is none.

    Args:
        only: names, or shell patterns such as `h200-sweep-kda-*`.

    Raises:
        ParameterError: a pattern that no step has.
    """
    names = [step.name for step in steps]
    if unknown := [pattern for pattern in only if not fnmatch.filter(names, pattern)]:
        raise ParameterError(
            ROOM, [Reason("only", repr(p), f"a name or pattern of {', '.join(names)}") for p in unknown]
        )
    return tuple(step for step in steps if not only or any(fnmatch.fnmatchcase(step.name, p) for p in only))


def check_steps(steps: Sequence[Step], reports: Path) -> None:
    """Read every notebook's parameters cell and look for every candidate and run, so that nothing fails after hours.

    Args:
        reports: folder below which an export finds the runs that are no steps of this batch.

    Raises:
        ParameterError: missing files or runs, unknown parameters or wrong types, each with the step's name.
    """
    reasons: list[Reason] = []
    names = {step.name for step in steps}
    for step in steps:
        try:
            if isinstance(step, RunStep):
                _check_run(step)
            else:
                _check_export(step, names, reports)
        except ParameterError as error:
            # One without reasons is a sentence: about a file that is no notebook, say.
            found = error.reasons or (Reason("notebook", str(error), "a notebook that can be run"),)
            reasons += [replace(reason, field=f"{step.name}: {reason.field}") for reason in found]
    if reasons:
        raise ParameterError(ROOM, reasons)


def _check_run(step: RunStep) -> None:
    read_parameters(Path(step.notebook)).typed(step.parameters)
    if long := [name for name, value in step.parameters.items() if not _can_be_given(_as_text(value))]:
        raise ParameterError(ROOM, [Reason(name, "not shown", f"at most {LONGEST} bytes, no NUL") for name in long])


def _check_export(step: ExportStep, names: Collection[str], reports: Path) -> None:
    if not is_file(Path(step.candidate)):
        raise ParameterError(ROOM, [Reason("candidate", repr(step.candidate), "a file that exists")])
    if absent := [run for run in step.runs if run not in names and not (reports / run).is_dir()]:
        allowed = f"runs of this batch, or folders below {reports}"
        raise ParameterError(ROOM, [Reason("runs", repr(run), allowed) for run in absent])


def _can_be_given(text: str) -> bool:
    """Whether a process can take the text as an argument."""
    return "\0" not in text and len(text.encode(errors="replace")) <= LONGEST


def _as_text(value: Any) -> str:
    """A parameter as `-p` reads it back."""
    return value if isinstance(value, str) else json.dumps(value)


def _wrong_names(steps: Sequence[Step]) -> Iterator[Reason]:
    """A name given twice, or a step that waits for one that does not come before it."""
    seen: set[str] = set()
    every = {step.name for step in steps}
    for step in steps:
        if step.name in seen:
            yield Reason("name", repr(step.name), "each name once")
        late = [name for name in step.needs if name in every - seen]
        foreign = [name for name in step.after if name not in every]
        for name in (*late, *foreign):
            yield Reason(f"{step.name}.{'runs' if name not in step.after else 'after'}", repr(name), "a step above it")
        seen.add(step.name)
