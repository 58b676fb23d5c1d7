"""The claim model: frozen, strict about names, the same after being written and read."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kda_lab.referee.claim import Claim, Run, Source
from kda_lab.referee.metrics import METRICS

VALUES = st.floats(allow_nan=False) | st.just(math.inf)
RUNS = st.builds(
    Run,
    arm=st.sampled_from(["baseline", "candidate", "again"]),
    round=st.none() | st.integers(0, 9),
    metrics=st.dictionaries(st.sampled_from(sorted(METRICS)), VALUES, max_size=4),
    resolved=st.dictionaries(st.text(min_size=1, max_size=9), st.integers() | st.booleans() | st.text(), max_size=3),
)


@given(st.lists(RUNS, max_size=5))
@settings(max_examples=40)
def test_a_claim_reads_back_equal(runs: list[Run]) -> None:
    """JSON out and in gives the same claim, infinities included."""
    claim = Claim(name="x", runs=tuple(runs))
    assert Claim.model_validate_json(claim.model_dump_json()) == claim


def test_nan_survives_being_written() -> None:
    """A NaN comes back as NaN, for the judge to refuse."""
    claim = Claim(name="x", runs=(Run(arm="baseline", metrics={"kernel_us": math.nan}),))
    again = Claim.model_validate_json(claim.model_dump_json())
    assert math.isnan(again.runs[0].metrics["kernel_us"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"candidate": "baseline"}, "candidate is 'baseline'; allowed: another arm"),
        ({"metric": "speed"}, "metric is 'speed'; allowed: accept_length"),
        ({"runs": ({"arm": "a", "metrics": {"tpot": 1}},)}, r"metrics are \['tpot'\]; allowed"),
        ({"runs": ({"arm": "a", "summarises": 3},)}, "summary is '' and summarises is 3; allowed: both, or neither"),
        ({"colour": "red"}, "Extra inputs are not permitted"),
        ({"margin_percent": 0}, "greater than 0"),
    ],
    ids=["same arm", "metric", "run metric", "summary", "unknown field", "no margin"],
)
def test_a_wrong_field_is_refused(fields: dict[str, Any], words: str) -> None:
    """Each wrong field is named with what is allowed."""
    with pytest.raises(ValidationError, match=words):
        Claim.model_validate({"name": "x", **fields})


def test_runs_that_count() -> None:
    """A superseded run is left out, and one without the metric."""
    runs = (
        Run(arm="baseline", metrics={"kernel_us": 1}),
        Run(arm="baseline", metrics={"kernel_us": 2}, superseded=True),
        Run(arm="baseline", metrics={"graph_ms": 3}),
    )
    claim = Claim(name="x", runs=runs)
    assert [len(claim.of("baseline", m)) for m in ("", "kernel_us")] == [2, 1]


def test_a_source_is_a_place() -> None:
    """File, line and note, each left out where it is not known."""
    assert str(Source(file="a.csv", line=3, note="second table")) == "a.csv:3 (second table)"
    assert str(Source(file="a.csv")) == "a.csv"
    assert str(Source()) == ""


@pytest.mark.parametrize("margin", [0.0, 50.0, 100.0, math.inf, math.nan])
def test_a_margin_that_holds_everything_is_refused(margin: float) -> None:
    """The margin of equivalence lies between 0 and 50 percent, both left out."""
    with pytest.raises(ValidationError, match="margin_percent"):
        Claim(name="x", margin_percent=margin)
