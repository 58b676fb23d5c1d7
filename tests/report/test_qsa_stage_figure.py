"""The stage pictures: errors beside limits, times beside baseline and roof, and titles that tell both."""

from __future__ import annotations

import math

import pytest

from kda_lab.errors import ParameterError
from kda_lab.report.qsa_stage_figure import StageCheck, errors_title, stage_errors, stage_times, times_title
from kda_lab.report.style import svg_text
from kda_lab.timing.statistics import RowResult

EXACT = StageCheck("blocks", "bisected", 0.0, 0.0, "every element")
ROUNDED = StageCheck("attention", "grouped", 2e-3, 5e-3)
WRONG = StageCheck("scores", "paged", 7e-3, 5e-3, detail="error is 0.007")


def result(row: str, arm: str, role: str, arm_us: float | None, state: str = "cold", reason: str = "") -> RowResult:
    """A timed or refused arm against a baseline of 20 us."""
    return RowResult(
        op="op", row=row, axes={}, arm=arm, role=role, baseline="base", baseline_us=20.0, arm_us=arm_us, ratio=None,
        low=None, high=None, noise=None, verdict="faster" if arm_us else "", trials=5, dropped_trials=0, roof_us=2.0,
        roof_share=None, bandwidth_gb_s=None, state=state, reason=reason,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("check", "passed"),
    [
        (EXACT, True),
        (ROUNDED, True),
        (StageCheck("s", "a", 1e-9, 0.0), False),
        (StageCheck("s", "a", math.nan, 1.0), False),
        (StageCheck("s", "a", 0.0, 1.0, detail="poison left"), False),
    ],
    ids=["equal", "within", "not equal", "nan", "detail"],
)
def test_a_check_passes_only_within_its_limit(check: StageCheck, passed: bool) -> None:
    """A NaN and a detail fail whatever the numbers."""
    assert check.passed is passed


def test_the_title_counts_and_names_the_nearest() -> None:
    """Stages that round nothing are nearest to no limit."""
    assert errors_title([EXACT, ROUNDED, WRONG]) == (
        "Of 3 checks along the pipeline 2 are right; nearest to its limit: scores, 7.00e-3 of 5.00e-3"
    )
    assert errors_title([EXACT]) == "Of 1 checks along the pipeline 1 are right; none of them rounds"


def test_errors_limits_and_verdicts_are_drawn() -> None:
    """A limit and a mark for what rounds, words for what is equal."""
    picture = stage_errors([EXACT, ROUNDED, WRONG], foot="CPU")
    assert len(picture.axes[0].lines) >= 4
    words = [t.get_text() for t in picture.axes[0].texts]
    assert words.count("0: equal") == 1
    assert words.count("right") == 2
    assert "WRONG" in words
    assert svg_text(picture) == svg_text(stage_errors([EXACT, ROUNDED, WRONG], foot="CPU"))


def test_without_checks_there_is_no_picture() -> None:
    """The words say what is missing."""
    with pytest.raises(ParameterError, match="checks is empty; allowed: at least one checked stage"):
        stage_errors([])


STAGES = [result("scores", "paged", "candidate", 4.0), result("scores", "base", "baseline", 20.0)]
WAYS = [
    result("attend", "direct", "candidate", 12.0),
    result("attend", "both", "baseline", 20.0),
    result("attend", "both", "control", 20.1),
    result("attend", "flashinfer", "peer", None, "refused", "unavailable, because of the CPU"),
]


def test_the_title_sums_the_selection_and_names_the_fastest_way() -> None:
    """The control and what was not timed win nothing."""
    assert times_title(STAGES, WAYS) == (
        "The 1 stages that select sum, timed apart, to 4.00 µs; of 2 ways to attend direct is the fastest, 12.0 µs"
    )
    assert times_title([], []) == "Nothing was timed"


def test_every_stage_and_way_has_a_line() -> None:
    """Kernels of the stages, every way but the control; a refused one stays in with its reason."""
    words = [t.get_text() for t in stage_times(STAGES, WAYS, STAGES, foot="H200").axes[0].texts]
    assert words.count("scores: paged") == 2
    assert [w for w in words if w in ("selection", "attention, each way whole", "parts of the compacted way")] == [
        "selection",
        "attention, each way whole",
        "parts of the compacted way",
    ]
    assert words.count("both") == 1
    assert "refused, unavailable, because of the CPU" in words
    assert "1.67×" in words


def test_untimed_stages_are_refused() -> None:
    """A picture of dashes would be none."""
    nothing = RowResult(**{**result("s", "a", "candidate", None).__dict__, "baseline_us": None, "roof_us": None})
    with pytest.raises(ParameterError, match="no stage has a time; allowed: at least one"):
        stage_times([nothing], [])
