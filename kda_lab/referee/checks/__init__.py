"""The checks, in the order in which their findings are read; each is one module with one `check(claim)`."""

from __future__ import annotations

from collections.abc import Callable

from kda_lab.referee.checks import (
    cache,
    comparability,
    composite,
    control,
    coverage,
    equality,
    gates,
    levels,
    modes,
    occupancy,
    overlap,
    published,
    rebuilt,
    samples,
    scores,
    separation,
    superseded,
    values,
)
from kda_lab.referee.claim import Claim
from kda_lab.referee.finding import Finding

Check = Callable[[Claim], tuple[Finding, ...]]

CHECKS: tuple[Check, ...] = (
    values.check,
    samples.check,
    superseded.check,
    composite.check,
    comparability.check,
    modes.check,
    occupancy.check,
    cache.check,
    control.check,
    overlap.check,
    equality.check,
    gates.check,
    scores.check,
    separation.check,
    rebuilt.check,
    levels.check,
    coverage.check,
    published.check,
)
