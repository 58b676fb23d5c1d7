"""From records to verdicts, on synthetic samples with known answers."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.timing.protocol import Protocol
from kda_lab.timing.statistics import Interval, RowResult, headline, noise_of, paired_interval, summarise, verdict_of

Make = Callable[..., dict[str, Any]]
Lines = Callable[..., list[dict[str, Any]]]
V1 = Protocol()
STEADY = [10.0, 10.1, 9.9, 10.05, 9.95]


@pytest.fixture
def lines(timing_record: Make) -> Lines:
    """Records of one arm, one a trial, with the given medians in microseconds."""

    def make(arm: str, role: str, medians: list[float], **changes: Any) -> list[dict[str, Any]]:
        return [
            timing_record(arm=arm, role=role, trial=trial, samples_us=[us], median_us=us, **changes)
            for trial, us in enumerate(medians)
        ]

    return make


@pytest.fixture
def rivals(lines: Lines) -> Callable[..., dict[str, RowResult]]:
    """Summarise a candidate against a steady baseline with a steady control (noise of about 1 %)."""

    def run(candidate: list[float], **changes: Any) -> dict[str, RowResult]:
        records = [
            *lines("slow", "baseline", STEADY),
            *lines("fast", "candidate", candidate, **changes),
            *lines("slow", "control", STEADY[::-1]),
        ]
        return {r.role: r for r in summarise(records)}

    return run


def test_twice_as_fast_is_ratio_two(rivals: Any) -> None:
    """Half the time in every trial is a ratio of exactly 2 with an interval of no width, and faster."""
    found = rivals([us / 2 for us in STEADY])["candidate"]
    assert (found.ratio, found.low, found.high) == (2.0, 2.0, 2.0)
    assert (found.verdict, found.reason) == ("faster", "")
    assert (found.baseline_us, found.arm_us, found.trials, found.dropped_trials) == (10.0, 5.0, 5, 0)


def test_absolute_times_roof_and_bandwidth(rivals: Any) -> None:
    """The share of the roof and the bandwidth follow from the arm's time."""
    found = rivals([5.0] * 5)["candidate"]
    assert found.roof_us == 0.00012
    assert found.roof_share == pytest.approx(0.00012 / 5)
    assert found.bandwidth_gb_s == pytest.approx(512 / 5 / 1e3)
    assert found.state == "cold"


@pytest.mark.parametrize(
    ("scale", "verdict"),
    [(0.5, "faster"), (0.9, "faster"), (1.0, "same"), (1.1, "slower"), (3.0, "slower")],
)
def test_verdict_follows_the_band(rivals: Any, scale: float, verdict: str) -> None:
    """Well beyond ±1.5 % of noise there is a verdict; the same times are the same."""
    assert rivals([us * scale for us in STEADY])["candidate"].verdict == verdict


def test_interval_across_the_edge_is_ambiguous_with_its_numbers(rivals: Any) -> None:
    """A candidate that wins some trials and loses others is ambiguous, and the reason gives the interval."""
    found = rivals([9.0, 10.0, 11.5, 9.0, 10.0])["candidate"]
    assert found.verdict == "ambiguous"
    assert found.reason.startswith(
        f"the interval {found.low:.4g} to {found.high:.4g} crosses the edge of the noise band 1 ± "
    )


def test_drift_shared_by_a_trial_cancels(rivals: Any) -> None:
    """Pairing: when both arms slow down together, the interval has no width, though the times spread by 2."""
    drift = np.array([1.0, 1.2, 1.4, 1.7, 2.0])
    base, arm = (dict(enumerate(us * drift)) for us in (10.0, 8.0))
    found = paired_interval(base, arm, V1)
    assert found is not None
    assert found.ratio == pytest.approx(1.25)
    assert found.low == pytest.approx(1.25)
    assert found.high == pytest.approx(1.25)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Over 100 synthetic experiments of 15 trials the 95 % interval holds the true ratio in most."""
    generator = np.random.default_rng(7)
    protocol = Protocol(resamples=400)
    covered = 0
    for _ in range(100):
        base = dict(enumerate(20.0 * generator.lognormal(0, 0.02, 15)))
        arm = dict(enumerate(10.0 * generator.lognormal(0, 0.02, 15)))
        found = paired_interval(base, arm, protocol)
        covered += found.low <= 2.0 <= found.high
    assert 85 <= covered <= 100


def test_same_records_give_the_same_interval(rivals: Any) -> None:
    """The bootstrap is seeded: two calls agree to the last bit."""
    candidate = [9.0, 9.3, 8.8, 9.1, 9.6]
    assert rivals(candidate) == rivals(candidate)


@given(
    st.lists(st.floats(0.1, 1e4), min_size=2, max_size=7),
    st.lists(st.floats(0.1, 1e4), min_size=2, max_size=7),
)
@settings(max_examples=30)
def test_interval_holds_its_ratio_and_never_warns(base: list[float], arm: list[float]) -> None:
    """For any positive samples, identical ones included, the interval is ordered and spans possible ratios; no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = paired_interval(dict(enumerate(base)), dict(enumerate(arm)), Protocol(resamples=200))
    assert found is not None
    assert found.pairs == min(len(base), len(arm))
    n = found.pairs
    least, most = min(base[:n]) / max(arm[:n]), max(base[:n]) / min(arm[:n])
    assert least * (1 - 1e-12) <= found.low <= found.high <= most * (1 + 1e-12)


@given(st.floats(0.01, 100), st.floats(0, 100), st.floats(0, 1))
def test_verdicts_cover_every_interval_once(low: float, width: float, noise: float) -> None:
    """Each interval has exactly one verdict, by the rule."""
    high = low + width
    rules = {
        "faster": low > 1 + noise,
        "slower": high < 1 - noise and not low > 1 + noise,
        "same": low >= 1 - noise and high <= 1 + noise,
    }
    expected = [name for name, holds in rules.items() if holds] or ["ambiguous"]
    assert [verdict_of(low, high, noise)] == expected


def test_noise_is_the_farther_end_of_the_control(lines: Lines) -> None:
    """The band reaches as far as the control's interval does, and every arm of the row shows it."""
    control = [10.0, 10.0, 10.0, 10.0, 10.0]
    base = [10.0, 10.3, 10.0, 10.0, 9.9]
    band = paired_interval(dict(enumerate(base)), dict(enumerate(control)), V1)
    assert noise_of(band) == max(abs(band.high - 1), abs(1 - band.low)) > 0
    records = [*lines("slow", "baseline", base), *lines("slow", "control", control)]
    assert {r.noise for r in summarise(records)} == {noise_of(band)}


def test_noise_is_not_a_matter_of_sign() -> None:
    """A control that is slower makes the same band as one that is faster."""
    assert noise_of(Interval(1.0, 0.95, 1.01, 5)) == pytest.approx(0.05)
    assert noise_of(Interval(1.0, 0.99, 1.05, 5)) == pytest.approx(0.05)
    assert noise_of(None) is None
    assert noise_of(Interval(1.0, None, None, 1)) is None


def test_wide_noise_takes_the_verdict_away(lines: Lines) -> None:
    """5 % faster is no verdict where the baseline differs from itself by 10 %."""
    base = [10.0, 11.0, 9.0, 10.0, 11.0]
    records = [
        *lines("slow", "baseline", base),
        *lines("fast", "candidate", [us / 1.05 for us in base]),
        *lines("slow", "control", base[::-1]),
    ]
    found = next(r for r in summarise(records) if r.role == "candidate")
    assert found.ratio == pytest.approx(1.05)
    assert found.verdict in ("same", "ambiguous")


def test_baseline_and_control_have_no_verdict(rivals: Any) -> None:
    """They are the yardstick; their reason says so."""
    found = rivals(STEADY)
    assert (found["baseline"].verdict, found["baseline"].reason) == ("", "the baseline: every ratio divides by it")
    assert (found["control"].verdict, found["control"].reason) == ("", "A/A control: its interval is the noise band")
    assert found["baseline"].ratio == 1.0


def test_too_few_good_trials_are_ambiguous(rivals: Any, lines: Lines) -> None:
    """Four good trials of five give a ratio, no verdict, and the reason why one was dropped."""
    assert rivals([5.0] * 4)["candidate"].reason == "4 good trials; needed: 5"
    records = [
        *lines("slow", "baseline", STEADY),
        *lines("fast", "candidate", [5.0] * 4),
        *[{**r, "trial": 4, "dropped": "throttled: sw_power_cap"} for r in lines("fast", "candidate", [7.0])],
        *lines("slow", "control", STEADY),
    ]
    found = next(r for r in summarise(records) if r.role == "candidate")
    assert (found.verdict, found.trials, found.dropped_trials) == ("ambiguous", 4, 1)
    assert found.reason == "4 good trials; needed: 5 (dropped: throttled: sw_power_cap)"
    assert found.arm_us == 5.0


def test_one_common_trial_has_a_ratio_and_no_interval(rivals: Any) -> None:
    """One pair gives a ratio; an interval of one pair would look exact and is left out."""
    found = rivals([5.0])["candidate"]
    assert (found.ratio, found.low, found.high, found.verdict) == (2.0, None, None, "ambiguous")


def test_dropped_trials_pair_with_nothing(lines: Lines) -> None:
    """When every trial of the arm was dropped, nothing is compared."""
    records = [
        *lines("slow", "baseline", STEADY),
        *lines("fast", "candidate", STEADY, dropped="throttled: hw_slowdown"),
        *lines("slow", "control", STEADY),
    ]
    found = next(r for r in summarise(records) if r.role == "candidate")
    assert (found.verdict, found.ratio, found.arm_us, found.dropped_trials) == ("", None, None, 5)
    assert found.reason == "no good trial in common with the baseline (dropped: throttled: hw_slowdown)"


def test_missing_or_short_control_is_ambiguous(lines: Lines) -> None:
    """Without a full A/A band there is no verdict."""
    pair = [*lines("slow", "baseline", STEADY), *lines("fast", "candidate", [5.0] * 5)]
    for control in ([], lines("slow", "control", STEADY[:3])):
        found = next(r for r in summarise([*pair, *control]) if r.role == "candidate")
        assert (found.verdict, found.noise) == ("ambiguous", None)
        assert found.reason == "no noise band: the A/A control has fewer than 5 good trials"


@pytest.mark.parametrize("state", ["warm", "invalid"])
def test_times_that_are_not_cold_have_no_verdict(rivals: Any, state: str) -> None:
    """A warm or invalid time keeps its numbers and its reason, and gets no verdict."""
    found = rivals([5.0] * 5, state=state, state_reason=f"{state}: because")["candidate"]
    assert (found.verdict, found.state, found.reason, found.ratio) == ("", state, f"{state}: because", 2.0)


def test_one_invalid_trial_spoils_the_arm(lines: Lines) -> None:
    """A kernel that is sometimes wrong has no verdict from its other trials."""
    wrong = lines(
        "fast", "candidate", [5.0], state="invalid", state_reason="invalid: recheck failed: x", dropped="recheck"
    )
    records = [
        *lines("slow", "baseline", STEADY),
        *lines("fast", "candidate", [5.0] * 5),
        *[{**r, "trial": 5} for r in wrong],
        *lines("slow", "control", STEADY),
    ]
    found = next(r for r in summarise(records) if r.role == "candidate")
    assert (found.state, found.verdict, found.reason) == ("invalid", "", "invalid: recheck failed: x")


def test_baseline_without_a_cold_time_takes_all_verdicts(lines: Lines) -> None:
    """A ratio over a warm baseline is no verdict."""
    records = [
        *lines("slow", "baseline", STEADY, state="warm", state_reason="warm: small"),
        *lines("fast", "candidate", [5.0] * 5),
        *lines("slow", "control", STEADY),
    ]
    found = next(r for r in summarise(records) if r.role == "candidate")
    assert (found.verdict, found.reason) == ("", "the baseline 'slow' has no cold time: warm: small")


def test_eager_times_have_no_verdict(rivals: Any) -> None:
    """A time with the host's launch cost in it decides nothing."""
    found = rivals([5.0] * 5, timer="eager, events")["candidate"]
    assert found.verdict == ""
    assert found.reason == (
        "timed by eager, events: the host's launch cost is in the time; a verdict needs cuda graph, events"
    )


def refusal(arm: str, role: str) -> dict[str, Any]:
    return {
        "kind": "refused",
        "op": "fake.double",
        "row": "W64",
        "axes": {"W": 64},
        "arm": arm,
        "role": role,
        "reason": "unavailable, because of x",
    }


def test_refused_arm_stays_in_with_its_reason(lines: Lines) -> None:
    """An arm that could not run is a result without numbers."""
    records = [*lines("slow", "baseline", STEADY), refusal("peer", "peer"), *lines("slow", "control", STEADY)]
    found = next(r for r in summarise(records) if r.arm == "peer")
    assert (found.state, found.verdict, found.reason) == ("refused", "", "unavailable, because of x")
    assert (found.ratio, found.arm_us, found.roof_us, found.bandwidth_gb_s, found.trials) == (None, None, None, None, 0)


def test_refused_baseline_leaves_times_without_ratios(lines: Lines) -> None:
    """When the baseline could not run, the others keep their times."""
    found = summarise([refusal("slow", "baseline"), *lines("fast", "candidate", [5.0] * 5)])[1]
    assert (found.arm_us, found.ratio, found.verdict) == (5.0, None, "")
    assert found.reason == "the baseline 'slow' has no cold time: unavailable, because of x"


def test_rows_without_any_baseline_say_so(lines: Lines) -> None:
    """Records without a baseline are not compared; a named baseline that is absent is named."""
    records = lines("fast", "candidate", [5.0] * 5)
    assert summarise(records)[0].reason == "no baseline was timed on this row"
    assert summarise(records, baseline="other")[0].reason == "the baseline 'other' was not timed on this row"


def test_another_baseline_can_be_named(lines: Lines) -> None:
    """Ratios against a peer divide by the peer; the noise band stays the control's."""
    records = [
        *lines("slow", "baseline", STEADY),
        *lines("fast", "candidate", [5.0] * 5),
        *lines("peer", "peer", [7.5] * 5),
        *lines("slow", "control", STEADY),
    ]
    found = {(r.arm, r.role): r for r in summarise(records, baseline="peer")}
    assert found["fast", "candidate"].ratio == 1.5
    assert found["fast", "candidate"].baseline == "peer"
    assert found["slow", "baseline"].verdict == "slower"
    assert found["peer", "peer"].verdict == ""


def test_other_lines_are_ignored_and_rows_stay_apart(lines: Lines) -> None:
    """Lines of another kind are skipped; two rows are compared each for itself, in their order."""
    records = [{"kind": "note"}]
    for label, scale in (("B", 2), ("A", 4)):
        records += lines("slow", "baseline", STEADY, row=label)
        records += lines("fast", "candidate", [us / scale for us in STEADY], row=label)
        records += lines("slow", "control", STEADY, row=label)
    found = [r for r in summarise(records) if r.role == "candidate"]
    assert [(r.row, r.ratio) for r in found] == [("B", 2.0), ("A", 4.0)]
    done = headline(found, "fast")
    assert done is not None
    assert (done.baseline, done.count, done.minimum) == ("slow", 2, 2.0)
    assert done.geomean == pytest.approx(8**0.5)


def test_headline_counts_only_rows_with_a_verdict(rivals: Any) -> None:
    """Without a verdict a row is not in the headline; with none there is no headline."""
    warm = rivals([5.0] * 5, state="warm", state_reason="warm: x")["candidate"]
    assert headline([warm], "fast") is None
    assert headline([], "fast") is None


def test_headline_over_two_baselines_is_refused(rivals: Any) -> None:
    """Ratios over different baselines have no common mean."""
    found = rivals([us / 2 for us in STEADY])["candidate"]
    other = dataclasses.replace(found, baseline="peer")
    with pytest.raises(
        ParameterError, match=r"baseline is \['peer', 'slow'\]; allowed: one baseline\. Summarise each alone\."
    ):
        headline([found, other], "fast")


def test_a_warm_bandwidth_is_judged_by_the_present_allowance(rivals: Any) -> None:
    """4350 GB/s against 4300 was warm without an allowance and is cold within 2 %; 4400 GB/s stays warm."""
    fields = {"state": "warm", "state_reason": "warm: then", "bytes_rotated": 25600, "l2_bytes": 4096}
    near = rivals([5.0] * 5, bandwidth_gb_s=4350.0, **fields)["candidate"]
    assert (near.state, near.verdict, near.reason) == ("cold", "faster", "")
    far = rivals([5.0] * 5, bandwidth_gb_s=4400.0, **fields)["candidate"]
    assert (far.state, far.verdict) == ("warm", "")
    assert "4400 GB/s, above the memory rate of 4300" in far.reason
