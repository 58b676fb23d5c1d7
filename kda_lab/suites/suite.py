"""A suite as data, and the loop that runs suites: cases one after another until they are done or the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kda_lab.errors import ParameterError, Reason, VerificationError
from kda_lab.suites.bench import Bench
from kda_lab.verify.launching import ArmFailure, one_thread

MOST_FAULTS = 5
"""Faults and notes of one suite that its record keeps."""
NO_GPU = "needs a CUDA device"


@dataclass(frozen=True)
class Outcome:
    """What became of one case."""

    fault: str = ""
    """What is wrong; empty when nothing is."""
    note: str = ""
    """What was seen beside it."""


@dataclass(frozen=True)
class Case:
    """One thing that is run and judged."""

    name: str
    check: Callable[[], Outcome]
    """Runs the arm; an `ArmFailure` that it raises is a fault of the case."""


@dataclass(frozen=True)
class Suite:
    """Cases that belong together."""

    name: str
    what: str
    """One sentence: what must hold."""
    cases: Callable[[Bench], Sequence[Case]]
    """Cheap: nothing is launched before a case is checked. Later cases may rest on what earlier ones made."""
    needs_gpu: bool = False


@dataclass(frozen=True)
class Result:
    """What one suite found."""

    suite: str
    what: str
    cases: int
    """Cases that were run."""
    planned: int
    """Cases of the suite; more than were run where the time was up."""
    passed_cases: int
    launches: int
    seconds: float
    faults: tuple[str, ...]
    """Of the first cases that failed."""
    notes: tuple[str, ...]
    skipped: str = ""
    """Why no case was run; empty otherwise."""

    @property
    def passed(self) -> bool:
        """At least one case was run, and all that were run are right."""
        return self.cases > 0 and self.passed_cases == self.cases

    @property
    def cut(self) -> bool:
        """Whether the time was up before all cases were run."""
        return not self.skipped and self.cases < self.planned


def run_suite(suite: Suite, bench: Bench, seconds: float, clock: Callable[[], float] = time.perf_counter) -> Result:
    """Run a suite's cases in order; none is begun once `seconds` have passed, and the first is always run."""
    if suite.needs_gpu and not bench.on_gpu:
        return Result(suite.name, suite.what, 0, 0, 0, 0, 0.0, (), (), NO_GPU)
    launches, started = bench.launches, clock()
    cases = suite.cases(bench)
    if not cases:
        raise VerificationError("suites", f"suite {suite.name} has no cases; allowed: at least one. Mend the suite.")
    found: list[tuple[str, Outcome]] = []
    for case in cases:
        if found and clock() - started >= seconds:
            break
        found.append((case.name, _checked(case)))
    return Result(
        suite.name,
        suite.what,
        len(found),
        len(cases),
        sum(not outcome.fault for _, outcome in found),
        bench.launches - launches,
        clock() - started,
        tuple(f"{name}: {o.fault}" for name, o in found if o.fault)[:MOST_FAULTS],
        tuple(f"{name}: {o.note}" for name, o in found if o.note)[:MOST_FAULTS],
    )


def run_suites(suites: Sequence[Suite], bench: Bench, seconds: float) -> list[Result]:
    """Run suites in order on one bench.

    Args:
        suites: at least one, each name once.
        bench: the arm, its op and where it runs.
        seconds: after which a suite begins no further case, above 0.

    Raises:
        ParameterError: no suites, a name twice, or no time.
        VerificationError: the arm cannot run on the bench's device, or an oracle is not sound.
    """
    names = [suite.name for suite in suites]
    reasons = []
    if not names or len(set(names)) != len(names):
        reasons.append(Reason("suites", repr(names), "at least one, each once"))
    if not seconds > 0:
        reasons.append(Reason("seconds", repr(seconds), "more than 0"))
    if reasons:
        raise ParameterError("suites", reasons)
    unavailable = bench.arm.unavailable(bench.device)
    if unavailable:
        raise VerificationError("suites", f"arm {bench.arm.name} cannot be judged on {bench.device}: {unavailable}.")
    with one_thread(bench.device):
        return [run_suite(suite, bench, seconds) for suite in suites]


def chosen(suites: Sequence[Suite], names: Sequence[str]) -> list[Suite]:
    """The suites of these names in their own order, all of them where no name is given.

    Raises:
        ParameterError: no suite has a name.
    """
    known = [suite.name for suite in suites]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ParameterError("suites", [Reason("suites", repr(unknown), ", ".join(known))])
    return [suite for suite in suites if not names or suite.name in names]


def to_record(result: Result, bench: Bench) -> dict[str, Any]:
    """A line of `suites.jsonl`."""
    return {
        "kind": "suite",
        "op": bench.op.spec.name,
        "arm": bench.arm.name,
        "source_sha256": bench.arm.source_sha256,
        "device": bench.device.type,
        "stand_in": bench.stand_in,
        **asdict(result),
        "passed": result.passed,
        "cut": result.cut,
    }


def _checked(case: Case) -> Outcome:
    try:
        return case.check()
    except ArmFailure as failure:
        return Outcome(str(failure))
