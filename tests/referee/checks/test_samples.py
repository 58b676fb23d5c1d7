"""Samples of single requests against the mean beside them."""

from __future__ import annotations

from kda_lab.referee.checks import samples
from kda_lab.referee.claim import Claim, Run


def checked(stated: float, values: tuple[float, ...]) -> list[tuple[str, str]]:
    """Severity and short words for a candidate's samples."""
    runs = (
        Run(arm="baseline", metrics={"ttft_mean_ms": 2.0}),
        Run(arm="candidate", metrics={"ttft_mean_ms": stated}, samples={"ttft_mean_ms": values}),
    )
    return [(f.severity, f.short) for f in samples.check(Claim(name="x", metric="ttft_mean_ms", runs=runs))]


def test_samples_give_their_mean() -> None:
    """1, 2 and 3 give 2, and not 2.1."""
    assert checked(2.0, (1.0, 2.0, 3.0)) == []
    assert checked(2.1, (1.0, 2.0, 3.0)) == [("warning", "samples contradict their mean")]
    assert checked(2.0, ()) == []


def test_a_sample_that_is_not_finite_is_invalid() -> None:
    """One NaN among the requests voids the run."""
    assert checked(2.0, (1.0, float("nan"))) == [("invalid", "sample is not finite")]
