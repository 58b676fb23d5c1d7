"""Published numbers, recomputed to the printed digit."""

from __future__ import annotations

from typing import Any

import pytest

from kda_lab.referee.checks import published
from kda_lab.referee.claim import Claim, Published, Run, Score

RUNS = tuple(
    Run(arm=a, metrics={"throughput_tok_s": v, "kernel_us": 1000 / v})
    for a, values in (("baseline", (3038.33, 3055.28, 3061.53)), ("candidate", (3106.03, 3133.26, 3122.06)))
    for v in values
)
SCORES = tuple(
    Score(arm=a, name="gsm8k", value=v)
    for a, values in (("baseline", (95.814, 95.358, 95.510)), ("candidate", (95.282, 95.586, 94.673)))
    for v in values
)


@pytest.mark.parametrize(
    ("fields", "severity"),
    [
        ({"metric": "throughput_tok_s", "statistic": "change", "value": 2.19}, "passed"),
        ({"metric": "throughput_tok_s", "statistic": "change", "value": 2.20}, "warning"),
        ({"metric": "throughput_tok_s", "statistic": "ratio", "value": 1.022, "digits": 3, "unit": "x"}, "passed"),
        ({"metric": "kernel_us", "statistic": "ratio", "value": 1.022, "digits": 3, "unit": "x"}, "passed"),
        ({"metric": "throughput_tok_s", "statistic": "median", "arm": "baseline", "value": 3055.28}, "passed"),
        ({"metric": "gsm8k", "statistic": "mean", "arm": "baseline", "value": 95.561, "digits": 3}, "passed"),
        ({"metric": "gsm8k", "statistic": "difference", "value": -0.381, "digits": 3}, "note"),
        ({"metric": "gsm8k", "statistic": "difference", "value": -0.383, "digits": 3}, "warning"),
    ],
    ids=["change", "wrong change", "ratio", "ratio of times", "median", "mean", "rounded means", "wrong difference"],
)
def test_a_printed_number_is_recomputed(fields: dict[str, Any], severity: str) -> None:
    """It agrees to its last printed digit, or the recomputed value stands beside it."""
    claim = Claim(name="x", runs=RUNS, scores=SCORES, published=(Published.model_validate(fields),))
    (found,) = published.check(claim)
    assert found.severity == severity
    assert found.arithmetic


def test_rounded_inputs_leave_room() -> None:
    """The fusion thread's graph: 44.807 / 45.262 gives -1.005 %, and -1.00 % was printed: within rounding."""
    runs = (Run(arm="baseline", metrics={"graph_ms": 45.262}), Run(arm="candidate", metrics={"graph_ms": 44.807}))
    told = (Published(metric="graph_ms", statistic="change", value=-1.00),)
    (found,) = published.check(Claim(name="x", metric="graph_ms", runs=runs, published=told))
    assert (found.severity, "agrees within the rounding of its inputs" in found.sentence) == ("note", True)
    assert found.arithmetic == ("100 * (44.807 / 45.262 - 1) = -1.00526",)


def test_counts_are_exact() -> None:
    """105 of 114 kernels is -7.89 %, and nothing else."""
    runs = tuple(Run(arm=a, metrics={"kernels": v}) for a, v in (("baseline", 114.0), ("candidate", 105.0)))
    for value, severity in ((-7.89, "passed"), (-7.9, "warning")):
        told = (Published(metric="kernels", statistic="change", value=value),)
        (found,) = published.check(Claim(name="x", metric="kernels", runs=runs, published=told))
        assert found.severity == severity


def test_what_cannot_be_recomputed_is_said_to_be_so() -> None:
    """A geometric mean over other claims, or a metric that nobody gave, is named and not passed over."""
    items = (
        Published(metric="throughput_tok_s", statistic="geomean", value=1.3),
        Published(metric="graph_ms", statistic="change", value=1.0),
    )
    found = published.check(Claim(name="x", runs=RUNS, published=items))
    assert [(f.severity, f.short) for f in found] == [("note", "printed number not recomputed")] * 2
    assert "throughput_tok_s geomean: the claim holds no values from which it follows" in found[0].sentence


@pytest.mark.parametrize(
    ("fields", "severity"),
    [
        ({"statistic": "mean", "arm": "baseline", "value": 160.0, "digits": 1, "unit": "s"}, "passed"),
        ({"statistic": "mean", "arm": "baseline", "value": 160.0, "digits": 1, "unit": "ms"}, "warning"),
        ({"statistic": "mean", "arm": "baseline", "value": 160000.0, "digits": 1}, "passed"),
        ({"statistic": "difference", "value": -10.0, "digits": 0, "unit": "s"}, "passed"),
        ({"statistic": "ratio", "value": 106.7, "digits": 1, "unit": "percent"}, "passed"),
        ({"statistic": "ratio", "value": 106.7, "digits": 1, "unit": "x"}, "warning"),
        ({"statistic": "change", "value": -6.25, "digits": 2}, "passed"),
    ],
)
def test_a_printed_number_is_read_in_its_unit(fields: dict[str, Any], severity: str) -> None:
    """160.0 s is 160000 ms, and 106.7 % is a ratio of 1.067."""
    runs = tuple(Run(arm=a, metrics={"e2e_mean_ms": v}) for a, v in (("baseline", 160e3), ("candidate", 150e3)))
    told = Published.model_validate({"metric": "e2e_mean_ms", **fields})
    (found,) = published.check(Claim(name="x", metric="e2e_mean_ms", runs=runs, published=(told,)))
    assert found.severity == severity


def test_a_unit_of_another_kind_is_refused_in_words() -> None:
    """A latency in tokens a second is no printed number of it."""
    runs = tuple(Run(arm=a, metrics={"e2e_mean_ms": 5.0}) for a in ("baseline", "candidate"))
    told = (Published(metric="e2e_mean_ms", statistic="mean", arm="baseline", value=5.0, unit="tok/s"),)
    (found,) = published.check(Claim(name="x", metric="e2e_mean_ms", runs=runs, published=told))
    assert (found.severity, found.short) == ("warning", "printed number in a wrong unit")
    assert "unit is 'tok/s'; allowed: s, ms, us, ns, min" in found.sentence
