"""Two sliced traces side by side: representative slices, differences, what they allow to be said, and refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kda_lab.errors import Reason, RefereeError
from kda_lab.referee.claim import Claim, Run, Source
from kda_lab.referee.slices.categories import OTHER, Categories
from kda_lab.referee.slices.kernel_list import NS_PER_US
from kda_lab.referee.slices.measures import SliceMeasure, measure, representative
from kda_lab.referee.slices.steps import Slice, Slicing

OTHER_LIMIT_PERCENT = 10.0
"""Largest share of the summed time that may be `other` before the pattern table no longer describes the trace."""
IDLE_LIMIT_PERCENT = 99.0
WALL_RATIO_LIMIT = 50.0
"""Of two walls. Above either the units, or the slices, are not the same: microseconds for nanoseconds is 1000."""
VARIANTS = ("baseline", "candidate")


@dataclass(frozen=True)
class ArmSlices:
    """All slices of one arm, measured."""

    variant: str
    slicing: Slicing
    measures: tuple[SliceMeasure, ...]
    chosen: int
    """Index of the representative slice."""

    @property
    def shown(self) -> SliceMeasure:
        """Measures of the representative slice."""
        return self.measures[self.chosen]

    @property
    def shown_slice(self) -> Slice:
        """The representative slice itself."""
        return self.slicing.slices[self.chosen]


@dataclass(frozen=True)
class SliceComparison:
    """Baseline and candidate; every change is candidate / baseline - 1."""

    baseline: ArmSlices
    candidate: ArmSlices
    categories: Categories

    @property
    def arms(self) -> tuple[ArmSlices, ArmSlices]:
        """Baseline first."""
        return self.baseline, self.candidate

    @property
    def overlapped(self) -> bool:
        """Whether kernels of either representative slice ran on more than one stream, or over one another."""
        return any(a.shown.streams > 1 or a.shown.overlap_ns > 0 for a in self.arms)

    def findings(self) -> tuple[str, ...]:
        """What a reader has to know before quoting a number, one sentence each."""
        return (*_sum_words(self), *_spread_words(self), *_steps_words(self), *_spill_words(self), *_name_words(self))


def claim_of(pairs: Sequence[SliceComparison], name: str, title: str = "") -> Claim:
    """Comparisons as the referee judges them: by the wall, with the union beside it.

    With more than one stream the sum of durations is no time that anything took, so it goes along only for the check
    that says so. A trace is one run of its arm, however many steps it holds: several pairs of traces are rounds.

    Args:
        pairs: one comparison a round, in the order in which they were profiled.
        name: of the claim.
        title: in words.
    """
    rounds = [(number if len(pairs) > 1 else None, arm) for number, pair in enumerate(pairs) for arm in pair.arms]
    return Claim(name=name, title=title, metric="wall_us", runs=tuple(_run(arm, number) for number, arm in rounds))


def change_percent(baseline: float, candidate: float) -> float | None:
    """candidate / baseline - 1, in percent; None where the baseline is 0."""
    return None if baseline == 0 else 100 * (candidate / baseline - 1)


def compare(
    baseline: Slicing,
    candidate: Slicing,
    categories: Categories | None = None,
    other_limit_percent: float = OTHER_LIMIT_PERCENT,
) -> SliceComparison:
    """Lay two sliced traces side by side.

    Raises:
        RefereeError: the two are not cut alike, `other` is above its limit in an arm, or the times of the two, or of
            kernels and gaps, cannot be in one unit. All reasons at once.
    """
    table = categories or Categories()
    arms = []
    for variant, slicing in zip(VARIANTS, (baseline, candidate), strict=True):
        measures = tuple(measure(s, table) for s in slicing.slices)
        arms.append(ArmSlices(variant, slicing, measures, representative(measures)))
    found = SliceComparison(arms[0], arms[1], table)
    reasons = [*_cut_alike(found), *_drifted(found, other_limit_percent), *_units(found)]
    if reasons:
        raise RefereeError("referee", reasons)
    return found


def _cut_alike(found: SliceComparison) -> list[Reason]:
    ours, theirs = found.candidate.slicing.marker, found.baseline.slicing.marker
    pairs = [(f, getattr(ours, f), getattr(theirs, f)) for f in ("per_step", "first", "last")]
    return [
        Reason(f"{found.candidate.slicing.source}: {field}", repr(mine), f"{base}, as in the baseline")
        for field, mine, base in pairs
        if mine != base
    ]


def _drifted(found: SliceComparison, limit_percent: float) -> list[Reason]:
    reasons = []
    for arm in found.arms:
        share = 100 * arm.shown.category_ns[OTHER] / arm.shown.summed_ns if arm.shown.summed_ns else 0.0
        if share > limit_percent:
            largest: Counter[str] = Counter()
            for kernel in arm.shown_slice.kernels:
                if found.categories.of(kernel.name) == OTHER:
                    largest[kernel.name] += kernel.duration_ns
            names = ", ".join(name[:60] for name, _ in largest.most_common(3))
            field = f"{arm.slicing.source}: share of category other in percent"
            remedy = f"The pattern table has drifted; give these a category: {names}."
            reasons.append(Reason(field, f"{share:.1f}", f"at most {limit_percent:g}", remedy))
    return reasons


def _units(found: SliceComparison) -> list[Reason]:
    reasons = []
    for arm in found.arms:
        idle = 100 * arm.shown.idle_ns / arm.shown.wall_ns if arm.shown.wall_ns else 100.0
        if idle > IDLE_LIMIT_PERCENT:
            remedy = "Starts and durations may be in different units, or the marker bounds no work."
            field = f"{arm.slicing.source}: idle share of the slice in percent"
            reasons.append(Reason(field, f"{idle:.2f}", f"at most {IDLE_LIMIT_PERCENT:g}", remedy))
    low, high = sorted(a.shown.wall_ns for a in found.arms)
    if low and high > WALL_RATIO_LIMIT * low:
        remedy = "One trace may be in another unit, or the slices are not the same layers."
        field = "walls of baseline and candidate in µs"
        given = ", ".join(f"{a.shown.wall_ns / NS_PER_US:g}" for a in found.arms)
        reasons.append(Reason(field, given, f"within {WALL_RATIO_LIMIT:g}x of each other", remedy))
    return reasons


def _metrics(arm: ArmSlices) -> dict[str, float]:
    shown = arm.shown
    return {
        "wall_us": shown.wall_ns / NS_PER_US,
        # Within the slice, so that it never exceeds the wall.
        "union_us": (shown.union_ns - shown.running_past_ns) / NS_PER_US,
        "summed_kernel_us": shown.summed_ns / NS_PER_US,
        "kernels": float(shown.kernels),
        "streams": float(shown.streams),
    }


def _run(arm: ArmSlices, number: int | None) -> Run:
    note = f"step {arm.shown.step}, the wall nearest the median of {len(arm.measures)} steps of one trace"
    return Run(arm=arm.variant, round=number, metrics=_metrics(arm), source=Source(file=arm.slicing.source, note=note))


def _sum_words(found: SliceComparison) -> list[str]:
    if not found.overlapped:
        return []
    base, ours = found.baseline.shown, found.candidate.shown
    wall, summed = change_percent(base.wall_ns, ours.wall_ns), change_percent(base.summed_ns, ours.summed_ns)
    if wall is None or summed is None:
        return []
    apart = wall * summed < 0
    words = "and goes the other way than" if apart else "and is no time that passed; the verdict is of"
    return [
        f"kernels overlap: the sum of durations ({summed:+.2f} %) counts that time twice {words} the wall ({wall:+.2f} %)"
    ]


def _spread_words(found: SliceComparison) -> list[str]:
    """Whether the walls of all steps tell the arms apart; steps of one trace are no independent runs."""
    if any(len(a.measures) == 1 for a in found.arms):
        return []
    base, ours = ([m.wall_ns / NS_PER_US for m in a.measures] for a in found.arms)
    word = "do not overlap" if max(base) < min(ours) or max(ours) < min(base) else "overlap"
    ranges = f"{min(base):.3f} to {max(base):.3f} µs against {min(ours):.3f} to {max(ours):.3f} µs"
    return [f"the walls of the steps {word}: {ranges}"]


def _steps_words(found: SliceComparison) -> list[str]:
    words = []
    for arm in found.arms:
        if arm.slicing.uneven_steps:
            steps = ", ".join(map(str, arm.slicing.uneven_steps))
            words.append(
                f"{arm.variant}: kernel counts of steps {steps} are not those of most of its {len(arm.measures)}"
            )
        if len(arm.measures) == 1:
            words.append(f"{arm.variant}: one step, so its spread from step to step is unknown")
    return words


def _spill_words(found: SliceComparison) -> list[str]:
    return [
        f"{a.variant}: kernels cross the slice's ends ({a.shown.carried_in_ns / NS_PER_US:g} µs carried in, "
        f"{a.shown.running_past_ns / NS_PER_US:g} µs running past)"
        for a in found.arms
        if a.shown.carried_in_ns or a.shown.running_past_ns
    ]


def _name_words(found: SliceComparison) -> list[str]:
    base, ours = (a.slicing.marker_name for a in found.arms)
    return [] if base == ours else [f"the marker is {base!r} in the baseline and {ours!r} in the candidate"]


def disagreements(found: SliceComparison, expected: Mapping[str, Sequence[float]]) -> list[str]:
    """Which measures of the representative slices differ from the expected ones, one sentence each.

    Args:
        expected: measure (`wall_us`, `summed_kernel_us`, `union_us`, `kernels`, `streams`) to its value in the baseline
            and in the candidate, microseconds exact to the nanosecond.

    Raises:
        RefereeError: no such measure, or not two values.
    """
    measured = [_metrics(arm) for arm in found.arms]
    wrong = [
        Reason(f"expected {name}", repr(values), f"two values of one of {', '.join(measured[0])}")
        for name, values in expected.items()
        if name not in measured[0] or len(values) != len(measured)
    ]
    if wrong:
        raise RefereeError("referee", wrong)
    return [
        f"{name} of the {arm.variant} is {had[name]:.3f}, expected {value:.3f}"
        for name, values in expected.items()
        for arm, had, value in zip(found.arms, measured, values, strict=True)
        if abs(had[name] - value) > 0.5 / NS_PER_US
    ]
