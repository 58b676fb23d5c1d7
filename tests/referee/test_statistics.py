"""The referee's statistics, on samples with known answers: size, power, floors, intervals."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import RefereeError
from kda_lab.referee import statistics
from kda_lab.referee.statistics import Round, Strata, attainable_p, compare, mde_percent, p_values, power, words

EXPERIMENTS = 2_000
PAIRS = {n: ((1, 1),) * n for n in (3, 4, 6, 8, 10)}
PLAIN = {n: ((n, n),) for n in (3, 4, 6, 8, 10)}
DESIGNS = [PLAIN[n] for n in PLAIN] + [PAIRS[n] for n in PAIRS] + [((6, 3),), ((2, 1),) * 4]
FUSION: Round = ((3038.33, 3055.28, 3061.53), (3106.03, 3133.26, 3122.06))


def label(strata: Strata) -> str:
    """Runs of each arm, and rounds."""
    return "+".join(f"{b}v{c}" for b, c in strata[:1]) + f"x{len(strata)}"


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Noise as in a textbook."""
    return rng.standard_normal(shape)


def heavy(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Noise with outliers: its variance is infinite."""
    return rng.standard_t(2, shape)


def drifted(logs: np.ndarray, strata: Strata, rng: np.random.Generator) -> np.ndarray:
    """The experiments with a random walk of their rounds added; run i of either arm lies in round i."""
    if len(strata) > 1:
        places = np.repeat(np.arange(len(strata)), [b + c for b, c in strata])
    else:
        places = np.concatenate([np.arange(n) for n in strata[0]])
    walk = rng.standard_normal((places.max() + 1, logs.shape[1])).cumsum(axis=0)
    return logs + 0.01 * walk[places]


@pytest.mark.parametrize("strata", DESIGNS, ids=label)
@pytest.mark.parametrize("draw", [normal, heavy])
def test_equal_arms_are_rarely_told_apart(strata: Strata, draw: Callable[..., np.ndarray]) -> None:
    """A/A arms fed as A/B are called faster or slower in at most 5 % of 2,000 experiments, with a drift too."""
    rng = np.random.default_rng(7)
    logs = 0.01 * draw(rng, (sum(b + c for b, c in strata), EXPERIMENTS))
    for experiments in (logs, drifted(logs, strata, rng)):
        found = words(strata, experiments, 1.0)
        assert sum(w in ("higher", "lower") for w in found) <= 0.05 * EXPERIMENTS


@pytest.mark.parametrize("noise_percent", [0.5, 1.0])
@pytest.mark.parametrize("strata", [PLAIN[4], PLAIN[6], PLAIN[8], PAIRS[6], PAIRS[8], PAIRS[10]], ids=label)
def test_a_true_change_is_found_as_often_as_stated(strata: Strata, noise_percent: float) -> None:
    """Of 2,000 experiments with 2 % more, the share found is the stated power within its counting error."""
    rng = np.random.default_rng(11)
    logs = noise_percent / 100 * normal(rng, (sum(b + c for b, c in strata), EXPERIMENTS))
    is_candidate = np.concatenate([[0.0] * b + [1.0] * c for b, c in strata])
    found = words(strata, logs + math.log(1.02) * is_candidate[:, None], 1.0)
    share = sum(w == "higher" for w in found) / EXPERIMENTS
    stated = power(strata, 2.0, noise_percent, 1.0)
    error = math.sqrt(2 * max(stated * (1 - stated), 1e-3) / EXPERIMENTS)
    assert abs(share - stated) <= 3 * error
    assert stated > 0.4


@pytest.mark.parametrize("strata", [PLAIN[4], PLAIN[8], PAIRS[8]], ids=label)
def test_the_smallest_visible_change_has_the_stated_power(strata: Strata) -> None:
    """A change of the MDE is found in 80 % of experiments."""
    smallest = mde_percent(strata, 1.0)
    assert smallest is not None
    assert power(strata, smallest, 1.0) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("strata", [PLAIN[3], PAIRS[4], ((1, 3),)], ids=label)
def test_too_few_runs_never_decide(strata: Strata) -> None:
    """Where p has its floor above the level, no effect is found and there is no smallest one."""
    assert mde_percent(strata, 1.0) is None
    assert power(strata, 50.0, 1.0) == 0.0


@pytest.mark.parametrize(
    ("strata", "floor"),
    [
        (PLAIN[3], 0.10),
        (((5, 5),), 2 / 252),
        (((6, 3),), 2 / 84),
        (PAIRS[6], 2 / 64),
        (((1, 1),), 1.0),
        (((10, 10),), 2 / 2000),
    ],
    ids=["3v3", "5v5", "6v3", "6 rounds", "1v1", "drawn"],
)
def test_p_has_a_floor(strata: Strata, floor: float) -> None:
    """The smallest p is two over the number of relabellings, and complete separation reaches it."""
    assert attainable_p(strata) == pytest.approx(floor)
    is_candidate = np.concatenate([[0.0] * b + [1.0] * c for b, c in strata])
    jitter = np.arange(len(is_candidate)) * 1e-4
    reached = p_values(strata, (is_candidate + jitter)[:, None])[0]
    assert reached == pytest.approx(floor, rel=0.01)


@given(
    st.lists(st.floats(0.5, 2.0), min_size=2, max_size=5),
    st.lists(st.floats(0.5, 2.0), min_size=2, max_size=5),
)
@settings(max_examples=25)
def test_p_is_scipys(base: list[float], cand: list[float]) -> None:
    """The exact p of two arms is that of SciPy's permutation test of the same statistic."""
    logs = np.log(np.array([*base, *cand]))
    peer = scipy.stats.permutation_test(
        (logs[len(base) :], logs[: len(base)]),
        lambda x, y, axis=-1: np.mean(x, axis=axis) - np.mean(y, axis=axis),
        vectorized=True,
        n_resamples=np.inf,
    )
    mine = p_values(((len(base), len(cand)),), logs[:, None])[0]
    assert mine == pytest.approx(min(1.0, peer.pvalue), abs=1e-12)


def test_p_of_rounds_is_scipys() -> None:
    """Relabelling within pairs is SciPy's permutation of samples."""
    rng = np.random.default_rng(3)
    pairs = rng.lognormal(0, 0.1, (7, 2))
    peer = scipy.stats.permutation_test(
        (np.log(pairs[:, 1]), np.log(pairs[:, 0])),
        lambda x, y, axis=-1: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    )
    assert p_values(((1, 1),) * 7, np.log(pairs).reshape(14, 1))[0] == pytest.approx(peer.pvalue)


def test_three_separated_runs_stay_undecided() -> None:
    """The fusion thread's six throughputs: separated, p = 0.10, a change of +2.19 %, no verdict."""
    found = compare([FUSION], 1.0)
    assert (found.separated, found.word, found.decidable) == (True, "undecided", False)
    assert found.p == pytest.approx(0.1)
    assert round(found.change_percent, 2) == 2.19
    assert found.interval_percent == pytest.approx((1.45, 3.12), abs=0.01)
    assert found.mde_percent is None


def test_a_control_makes_three_runs_decide() -> None:
    """Three more runs of the baseline bring the floor to 0.024, and the same candidate is found."""
    found = compare([((*FUSION[0], 3049.1, 3060.2, 3044.7), FUSION[1])], 1.0)
    assert (found.word, found.strata) == ("higher", ((6, 3),))
    assert found.p == pytest.approx(2 / 84)


def test_equal_runs_are_equivalent_by_their_margin() -> None:
    """A 90 % interval inside the margin is equivalence; inside a smaller margin it is not."""
    rounds: list[Round] = [((100.0, 100.1, 99.9, 100.05), (100.1, 100.0, 99.95, 100.15))]
    assert compare(rounds, 1.0).word == "equivalent"
    assert compare(rounds, 0.01).word == "undecided"


def test_identical_values_decide_nothing_and_warn_of_nothing() -> None:
    """No spread at all: p is 1, noise 0, and nothing divides by it."""
    found = compare([((5.0, 5.0, 5.0), (5.0, 5.0, 5.0))], 1.0)
    assert (found.word, found.p, found.noise_percent) == ("undecided", 1.0, 0.0)


def test_a_drift_over_rounds_cancels() -> None:
    """Eight rounds far apart, each 2 % faster: found by pairs, with the change of the rounds' own ratios."""
    levels = [100 * 1.5**i for i in range(8)]
    rounds: list[Round] = [((v,), (v * (1.02 + 0.001 * (i % 3)),)) for i, v in enumerate(levels)]
    found = compare(rounds, 1.0)
    assert (found.word, found.paired) == ("higher", True)
    assert found.change_percent == pytest.approx(2.1, abs=0.05)
    assert found.p == pytest.approx(2 / 256)


def test_five_near_rounds_are_relabelled_together() -> None:
    """Five pairs alone cannot decide; at one operating point their ten runs can."""
    rounds: list[Round] = [((v,), (v * 1.05,)) for v in (100.0, 100.2, 99.9, 100.1, 99.8)]
    assert compare(rounds, 1.0).strata == ((5, 5),)
    far: list[Round] = [((v,), (v * 1.05,)) for v in (100.0, 200.0, 300.0, 400.0, 500.0)]
    assert (compare(far, 1.0).strata, compare(far, 1.0).word) == (((1, 1),) * 5, "undecided")


def test_one_run_an_arm_says_nothing() -> None:
    """No spread, no interval, no smallest change."""
    found = compare([((100.0,), (150.0,))], 1.0)
    assert (found.noise_percent, found.interval_percent, found.mde_percent, found.p) == (None, None, None, 1.0)


def test_the_number_of_runs_needed() -> None:
    """2 % at 1 % of noise needs 6 runs an arm; a tenth of the noise cannot be had."""
    assert statistics.runs_needed(2.0, 1.0) == 6
    assert statistics.runs_needed(2.0, 1.0, rounds=True) == 8
    assert statistics.runs_needed(0.01, 1.0) is None


def test_the_noise_is_that_of_one_run() -> None:
    """Of simulated runs of 1 % the noise comes back, with and without rounds."""
    logs = 0.01 * np.random.default_rng(5).standard_normal((16, EXPERIMENTS))
    for strata in (PLAIN[8], PAIRS[8]):
        each = [statistics.noise_of(strata, logs[:, [i]]) for i in range(150)]
        assert math.sqrt(np.mean(np.square(np.array(each, dtype=float)))) == pytest.approx(1.0, abs=0.06)


def test_without_noise_every_change_is_found() -> None:
    """Noise of zero: any change is found where p can decide."""
    assert power(PLAIN[4], 0.1, 0.0) == 1.0
    assert power(PLAIN[3], 0.1, 0.0) == 0.0


def test_the_same_data_give_the_same_comparison() -> None:
    """Bootstrap and drawn relabellings have a fixed seed."""
    rng = np.random.default_rng(1)
    base, cand = (tuple(float(v) for v in rng.lognormal(0, 0.01, 10)) for _ in range(2))
    assert compare([(base, cand)], 1.0) == compare([(base, cand)], 1.0)


@pytest.mark.parametrize(
    ("rounds", "given"),
    [
        ([], r"rounds is \[\]; allowed: at least one run of either arm in each round"),
        ([((1.0,), ())], r"rounds is \[\(1, 0\)\]"),
        ([((1.0, 0.0), (1.0,))], "value is 0.0; allowed: positive and finite"),
        ([((1.0, math.nan), (1.0,))], "value is nan"),
    ],
    ids=["no round", "no candidate", "zero", "nan"],
)
def test_values_that_cannot_be_compared_are_refused(rounds: list[Round], given: str) -> None:
    """Nothing is compared with an empty arm, and nothing divides by zero."""
    with pytest.raises(RefereeError, match=given):
        compare(rounds, 1.0)


def test_many_rounds_are_drawn_quickly() -> None:
    """Three hundred rounds are relabelled at random, the observed labelling included."""
    found = compare([((1.0,), (1.02 + 0.001 * (i % 2),)) for i in range(300)], 1.0)
    assert (found.word, found.p) == ("higher", pytest.approx(2 / 2000))


@pytest.mark.parametrize(
    ("base", "cand"),
    [((100.0, 100.0), (100.5,)), ((100.0, 100.1, 100.05), (100.02,)), ((100.0,) * 6, (103.0,) * 6)],
    ids=["two copies against one run", "one run", "copies"],
)
def test_a_single_run_or_no_spread_never_decides(base: tuple[float, ...], cand: tuple[float, ...]) -> None:
    """Neither equivalence nor a difference follows where the noise of a run, or of an arm, is unknown."""
    assert compare([(base, cand)], 1.0).word == "undecided"
    assert compare([(cand, base)], 10.0).word == "undecided"


def test_the_decided_change_has_the_sign_of_the_word() -> None:
    """The medians rise while the geometric means, which the test is about, fall."""
    base = (100, 100.1, 100.2, 99.9, 99.8, 100.05, 99.95, 100.15, 99.85, 100.12, 99.88, 100.01)
    cand = (101, 101.1, 101.2, 100.9, 100.8, 101.05, 100.95, 30, 31, 29, 30.5, 29.5)
    found = compare([(base, cand)], 1.0)
    assert (found.word, found.change_percent > 0, found.decided_percent < 0) == ("lower", True, True)


def test_values_that_no_measurement_gives_are_refused() -> None:
    """What would overflow is refused where it enters, with its range."""
    with pytest.raises(RefereeError, match=r"values is 1e-250 to 1e\+250; allowed: all within a factor 1e\+06"):
        compare([((1e-250, 1e250, 1.0, 2.0), (1e-250, 1e250, 3.0, 4.0))], 1.0)
