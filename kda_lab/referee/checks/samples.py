"""Samples: the values of single requests must give the mean that stands beside them.

They do not decide a verdict. Requests of one run share its clocks, its batches and its server start, so that a
thousand of them are still one run; between runs lies the noise that counts.
"""

from __future__ import annotations

import math
from statistics import fmean

from kda_lab.referee.arms import sides
from kda_lab.referee.claim import Claim, Run
from kda_lab.referee.finding import Finding, figure, signed

CHECK = "samples"
ALLOWED_PERCENT = 0.5


def check(claim: Claim) -> tuple[Finding, ...]:
    """Recompute each mean from its samples; refuse samples that are not finite or contradict it."""
    if claim.question != "speed":
        return ()
    return tuple(f for runs in sides(claim) for run in runs for f in _judge(run))


def _judge(run: Run) -> list[Finding]:
    found = []
    for metric, values in run.samples.items():
        stated = run.metrics.get(metric)
        if not all(math.isfinite(v) for v in values):
            words = f"A sample of {metric} in {run.arm} is not finite. {run.source}".strip()
            found.append(Finding(check=CHECK, severity="invalid", short="sample is not finite", sentence=words))
        elif values and stated is not None and stated > 0:
            made = fmean(values)
            apart = 100 * (made / stated - 1)
            if abs(apart) > ALLOWED_PERCENT:
                words = f"{metric} of {run.arm}: the samples' mean lies {signed(apart)} from the stated one."
                line = f"mean of {len(values)} = {figure(made)}, stated {figure(stated)}"
                short = "samples contradict their mean"
                found.append(Finding(check=CHECK, severity="warning", short=short, sentence=words, arithmetic=(line,)))
    return found
