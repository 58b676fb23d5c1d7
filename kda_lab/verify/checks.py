"""The checks of a replay: each a small function over an `Observation`, each removable by itself.

A check whose phase was not reached fails: nothing passes for want of evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kda_lab.ops.registry import load_op, op_names
from kda_lab.verify.guarded import same_bits
from kda_lab.verify.metrics import within
from kda_lab.verify.observation import Observation, Phase
from kda_lab.verify.reference import LENGTHS, changes_of, judges_elements, updates_in_place, worst_rel_l2

ELEMENT_LIMIT = 1.0
"""Of an element's error over its allowance."""


@dataclass(frozen=True)
class CheckResult:
    """What one check found. `value` and `limit` share the check's unit (see `Check.what`)."""

    name: str
    passed: bool
    value: float
    limit: float
    detail: str = ""
    evaluated: bool = True
    """False when the phase that the check looks at was not reached; such a check never passes."""


@dataclass(frozen=True)
class Finding:
    """A value against its limit, with words; `passed` follows from both unless `veto` is set."""

    value: float
    limit: float
    detail: str = ""
    veto: bool = False
    evaluated: bool = True

    @property
    def passed(self) -> bool:
        return self.evaluated and not self.veto and within(self.value, self.limit)


@dataclass(frozen=True)
class Check:
    """One rule.

    `judge` returns a Finding; None where the rule does not apply to this capture or arm, which the
    record then shows by the check's absence.
    """

    name: str
    what: str
    """One sentence: what is measured, with its unit."""
    judge: Callable[[Observation], Finding | None]
    optional: bool = False
    """May be absent from a record, for a reason that the record states."""

    def result(self, seen: Observation) -> CheckResult | None:
        """The check's result on an observation; None where it does not apply."""
        finding = self.judge(seen)
        if finding is None:
            return None
        return CheckResult(self.name, finding.passed, finding.value, finding.limit, finding.detail, finding.evaluated)


def _missing(seen: Observation, phase: str) -> Finding:
    detail = f"not evaluated: phase {phase!r} was not reached ({seen.failure or 'the run stopped before it'})"
    return Finding(math.nan, 0.0, detail, evaluated=False)


def _launch(seen: Observation) -> Finding:
    return Finding(float(bool(seen.failure)), 0.0, seen.failure)


def _error_fp32(seen: Observation) -> Finding:
    first = seen.phases.get("first")
    if first is None:
        return _missing(seen, "first")
    return Finding(first.contents.error(first.outputs), first.contents.limit_error)


def _error_pinned(seen: Observation) -> Finding | None:
    reference, first = seen.reference, seen.phases.get("first")
    if not reference.pinned:
        return None
    if first is None:
        return _missing(seen, "first")
    detail = ""
    if not reference.pinned_is_sound:
        detail = f"the pinned output itself is {reference.pinned_fp32:.3g} from the oracle: it may be the wrong one"
    return Finding(worst_rel_l2(first.outputs, reference.pinned), reference.limit_pinned, detail)


def _row_max(seen: Observation) -> Finding:
    first = seen.phases.get("first")
    if first is None:
        return _missing(seen, "first")
    return Finding(first.contents.row_error(first.outputs), first.contents.limit_row_max)


def _element_max(seen: Observation) -> Finding:
    first = seen.phases.get("first")
    if first is None:
        return _missing(seen, "first")
    return Finding(first.contents.element_error(first.outputs), ELEMENT_LIMIT)


def _error_updated(seen: Observation) -> Finding:
    first = seen.phases.get("first")
    if first is None:
        return _missing(seen, "first")
    return Finding(first.contents.updated_error(first.outputs), first.contents.limit_updated)


def _originals(seen: Observation) -> list[Phase]:
    return [phase for phase in seen.phases.values() if phase.contents is seen.reference.original]


def _output_written(seen: Observation) -> Finding:
    phases = _originals(seen)
    if len(phases) < 2:
        return _missing(seen, "repeat_1")
    never = 0
    for name in seen.reference.call.outputs:
        # Poison in every launch: an integer result equals one pattern by chance, but not both.
        never += int(torch.count_nonzero(torch.stack([p.unwritten[name] for p in phases]).all(dim=0)))
    return Finding(float(never), 0.0, f"{never} elements still hold the poison" if never else "")


def _output_finite(seen: Observation) -> Finding:
    first = seen.phases.get("first")
    if first is None:
        return _missing(seen, "first")
    broken = 0
    for name, output in first.outputs.items():
        # An oracle is finite, save for the -inf of an op that says so: there, and only there, it is the answer.
        right = (output == first.contents.fp32[name]) & torch.isinf(output)
        broken += int(torch.count_nonzero(~torch.isfinite(output) & ~first.unwritten[name] & ~right))
    return Finding(float(broken), 0.0, f"{broken} written elements are NaN or infinite" if broken else "")


def _guards(seen: Observation) -> Finding:
    if not seen.phases:
        return _missing(seen, "first")
    hits = [(phase, name, count) for phase, p in seen.phases.items() for name, count in p.broken_guards.items()]
    detail = "; ".join(f"{phase}: {count} elements outside {name}" for phase, name, count in hits)
    return Finding(float(sum(count for _, _, count in hits)), 0.0, detail)


def _inputs_unchanged(seen: Observation) -> Finding:
    if not seen.phases:
        return _missing(seen, "first")
    hits = [f"{phase}: {name}" for phase, p in seen.phases.items() for name in p.changed_inputs]
    return Finding(float(len(hits)), 0.0, "; ".join(hits))


def _repeat_bits(seen: Observation) -> Finding:
    phases = _originals(seen)
    if len(phases) < 2:
        return _missing(seen, "repeat_1")
    first, repeats = phases[0], phases[1:]
    differing = [n for p in repeats for n in p.outputs if not same_bits(p.outputs[n], first.outputs[n])]
    return Finding(float(len(differing)), 0.0, f"other bits in {', '.join(differing)}" if differing else "")


def _changed(name: str) -> Callable[[Observation], Finding | None]:
    def judge(seen: Observation) -> Finding | None:
        if seen.fixed_lengths:
            return None
        phase = seen.phases.get(name)
        if phase is None:
            return _missing(seen, name)
        error, row = phase.contents.error(phase.outputs), phase.contents.row_error(phase.outputs)
        detail = f"{phase.mode}; worst row {row:.3g} of {phase.contents.limit_row_max:.3g}"
        veto = not within(row, phase.contents.limit_row_max)
        if phase.contents.allowance:
            element = phase.contents.element_error(phase.outputs)
            detail += f"; worst element {element:.3g} of its allowance"
            veto = veto or not within(element, ELEMENT_LIMIT)
        if phase.contents.updated:
            updated = phase.contents.updated_error(phase.outputs)
            detail += f"; updated in place {updated:.3g} of {phase.contents.limit_updated:.3g}"
            veto = veto or not within(updated, phase.contents.limit_updated)
        return Finding(error, phase.contents.limit_error, detail, veto)

    return judge


def _state_zero(seen: Observation) -> Finding:
    if seen.state is None:
        return _missing(seen, "state_tensors")
    left = {name: count for name, count in seen.state.items() if count}
    detail = "; ".join(f"{name}: {count} elements not zero" for name, count in left.items())
    return Finding(float(sum(left.values())), 0.0, detail or f"{len(seen.state)} state tensors")


_BEFORE: tuple[Check, ...] = (
    Check("launch", "Failures of the arm's own code, a count.", _launch),
    Check("error_fp32", "rel-L2 against the unrounded FP32 oracle.", _error_fp32),
    Check("error_pinned", "rel-L2 against the pinned production output.", _error_pinned, optional=True),
    Check("row_max", "rel-L2 of the worst row against the FP32 oracle.", _row_max),
    Check("output_written", "Output elements that no launch wrote, a count.", _output_written),
    Check("output_finite", "Written output elements that are not finite, a count.", _output_finite),
    Check("guards", "Elements written outside the outputs, a count over all phases.", _guards),
    Check("inputs_unchanged", "Inputs that a launch changed, a count over all phases.", _inputs_unchanged),
    Check("repeat_bits", "Outputs whose bits differ between launches of the same inputs, a count.", _repeat_bits),
)
_ELEMENT = Check(
    "element_max", "Error of the worst element against FP64, over the error allowed to that element.", _element_max
)
_UPDATED = Check("error_updated", "rel-L2 of what the call updates in place, against the FP32 oracle.", _error_updated)
_AFTER: tuple[Check, ...] = (
    Check("state_zero", "Elements of the arm's state that are not zero between calls, a count.", _state_zero),
)


def checks_for(changes: tuple[str, str], by_element: bool = False, in_place: bool = False) -> tuple[Check, ...]:
    """Every check, in the order in which a record lists them; `launch` first, so that it names a crash.

    Args:
        changes: names of the two changed contents. Live lengths give `changed_lengths_shorter` and
            `changed_lengths_longer`, any other name gives `changed_<name>`.
        by_element: with `element_max`, behind `row_max`.
        in_place: with `error_updated`, behind those.
    """
    place = 1 + [check.name for check in _BEFORE].index("row_max")
    own = (_ELEMENT,) * by_element + (_UPDATED,) * in_place
    return (*_BEFORE[:place], *own, *_BEFORE[place:], *(_change_check(name) for name in changes), *_AFTER)


def checks_of(op: Any) -> tuple[Check, ...]:
    """The checks of an op.

    `cases.CHANGES` names its changed contents; without it they are live lengths. Where its oracle has an
    `allowance(call, exact)`, each element is judged by it. What it updates in place beside other outputs has a limit
    of its own.
    """
    rules = (changes_of(op), judges_elements(op), updates_in_place(op))
    return CHECKS if rules == (LENGTHS, False, False) else checks_for(*rules)


def checks_of_name(op_name: str) -> tuple[Check, ...]:
    """The checks that a record of this op must hold; those of live lengths where no op has the name."""
    return checks_of(load_op(op_name)) if op_name in op_names() else CHECKS


def _change_check(name: str) -> Check:
    if name in LENGTHS:
        what = f"rel-L2 after a refill in place with {name} live lengths."
        return Check(f"changed_lengths_{name}", what, _changed(name), optional=True)
    return Check(
        f"changed_{name}", f"rel-L2 after a refill in place with another {name}.", _changed(name), optional=True
    )


CHECKS = checks_for(LENGTHS)
"""The checks of an op whose contents change by their live lengths."""

CHECK_NAMES = tuple(check.name for check in CHECKS)
OPTIONAL_CHECKS = frozenset(check.name for check in CHECKS if check.optional)
"""Checks that may be absent from a record, each for a reason that the record states."""
