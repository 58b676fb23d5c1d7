"""What a handful of runs can say: exact relabelling test, intervals, equivalence, power and smallest visible effect.

The test asks how often a random relabelling of the runs moves the arms as far apart as they are. Runs of the same
round are relabelled among themselves, so that a drift from round to round cancels. It holds for any noise, because
under no effect the labels carry nothing; its price is a floor under p: 0.10 at three runs against three.

Everything is relative: values are compared by their logarithms, noise and effects are in percent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from typing import Any, Literal, cast

import numpy as np
import scipy.stats

from kda_lab.errors import Reason, RefereeError

ALPHA = 0.05
DECIDED_AT = 0.04
"""A p up to this one decides. It lies below 5 % by twice the counting error of 2,000 experiments, so that these give
a false verdict in fewer than 5 of 100, not in 5 of 100 on average."""
POWER = 0.80
CONFIDENCE = 0.95
ENUMERATED = 6_000
"""Relabellings up to which all are tried; above, `DRAWN` random ones stand for them."""
DRAWN = 1_999
EXPERIMENTS = 2_000
RESAMPLES = 2_000
SEED = 20_260_901
CHUNK = 250
ROUND_SPREAD = 0.03
"""Spread of the rounds' levels, relative, up to which runs of different rounds may be relabelled together."""
# Two statistics this close are the same number rounded differently.
TIE = 1e-12
LARGEST_LOG = 700.0
LARGEST_FACTOR = 1e6
"""Between the largest and the smallest value of a comparison; beyond it lie mixed units, not measurements."""

Strata = tuple[tuple[int, int], ...]
"""Baseline and candidate runs of each round; one entry without rounds."""
Round = tuple[tuple[float, ...], tuple[float, ...]]
"""Baseline and candidate values of one round."""
Word = Literal["higher", "lower", "equivalent", "undecided"]


@dataclass(frozen=True)
class Comparison:
    """Candidate against baseline in one metric. Changes are candidate / baseline - 1, in percent.

    With rounds they are those of the rounds' own ratios, since rounds may be different operating points.
    """

    strata: Strata
    paired: bool
    """Whether runs were relabelled within rounds."""
    change_percent: float
    """By the arms' medians; with rounds, the median of their ratios."""
    decided_percent: float
    """By the arms' geometric means, rounds weighing the same: what the test and the margin are about."""
    change_of_means_percent: float
    """By the arms' means; with rounds, the geometric mean of their ratios."""
    interval_percent: tuple[float, float] | None
    """Percentile bootstrap of `change_percent`, 95 %; None with fewer than two runs in an arm or two rounds."""
    p: float
    attainable_p: float
    """The smallest p that this number of runs can give."""
    separated: bool
    """Whether every run of one arm lies above every run of the other, within each round the same way."""
    noise_percent: float | None
    """Standard deviation of one run, within arms and rounds; None where no spread is known."""
    equivalence_percent: tuple[float, float] | None
    """90 % interval of the change: inside the margin, the two one-sided tests both pass."""
    mde_percent: float | None
    """Smallest change that would be found with 80 % power at this noise; None when no size of it would be."""
    word: Word

    @property
    def decidable(self) -> bool:
        """Whether this many runs could have given a p that decides."""
        return self.attainable_p <= DECIDED_AT


def compare(rounds: Sequence[Round], margin_percent: float) -> Comparison:
    """Compare two arms.

    Args:
        rounds: positive finite values of each round, at least one of either arm in every one; all in one entry
            where there are no rounds.
        margin_percent: change that counts as none.

    Rounds are kept where relabelling within them can reach a p that decides, or where their levels lie far apart. Otherwise
    all runs are relabelled together; a drift shared by a round makes that more careful, never less. The choice looks
    at no label, so it favours no arm.

    Raises:
        RefereeError: no round, a round without one of the arms, a value that is not positive and finite, or values
            further apart than `LARGEST_FACTOR`.
    """
    _refuse_unusable(rounds)
    used = _strata_that_decide(rounds)
    strata = tuple((len(b), len(c)) for b, c in used)
    logs = np.log(np.array([v for b, c in used for v in (*b, *c)]))[:, None]
    p = float(p_values(strata, logs)[0])
    noise = noise_of(strata, logs)
    bounds = _bounds(strata, logs)
    equivalence = None if bounds is None else (_percent(bounds[0][0]), _percent(bounds[1][0]))
    median, mean, interval = _changes(used)
    return Comparison(
        strata=strata,
        paired=len(strata) > 1,
        change_percent=median,
        decided_percent=_percent(float((_weights(strata)[0] @ logs)[0])),
        change_of_means_percent=mean,
        interval_percent=interval,
        p=p,
        attainable_p=attainable_p(strata),
        separated=all(max(b) < min(c) for b, c in used) or all(max(c) < min(b) for b, c in used),
        noise_percent=noise,
        equivalence_percent=equivalence,
        mde_percent=None if noise is None else mde_percent(strata, noise),
        word=words(strata, logs, margin_percent)[0],
    )


def relabellings(strata: Strata) -> int:
    """How many ways there are to hand the labels out within the rounds."""
    return math.prod(math.comb(b + c, c) for b, c in strata)


def attainable_p(strata: Strata) -> float:
    """The smallest two-sided p that these numbers of runs can give."""
    total = relabellings(strata)
    return min(1.0, 2 / (total if total <= ENUMERATED else DRAWN + 1))


def p_values(strata: Strata, logs: np.ndarray) -> np.ndarray:
    """Two-sided p of each experiment: twice the smaller tail, the observed labelling counted.

    Args:
        strata: runs of each round.
        logs: [runs, experiments] logarithms; in each round the baseline's, then the candidate's.
    """
    weights = _weights(strata)
    found = []
    for start in range(0, logs.shape[1], CHUNK):
        moved = weights @ logs[:, start : start + CHUNK]
        above = (moved >= moved[0] - TIE).mean(axis=0)
        below = (moved <= moved[0] + TIE).mean(axis=0)
        found.append(np.minimum(1.0, 2 * np.minimum(above, below)))
    return np.concatenate(found)


def words(strata: Strata, logs: np.ndarray, margin_percent: float | None) -> list[Word]:
    """The rule itself, for each experiment: inside the margin, else decided by p, else undecided.

    A single run of an arm decides nothing, and neither do values without any spread: what their noise is nobody knows.

    Args:
        strata: runs of each round.
        logs: [runs, experiments] logarithms, ordered as for `p_values`.
        margin_percent: change that counts as none; None asks for no equivalence.
    """
    error = _standard_error(strata, logs)
    if error is None or min(sum(b for b, _ in strata), sum(c for _, c in strata)) < 2:
        return ["undecided"] * logs.shape[1]
    spread = error[0] > TIE
    effect = _weights(strata)[0] @ logs
    decided = (p_values(strata, logs) <= DECIDED_AT) & (effect != 0) & spread
    found = np.where(decided, np.where(effect > 0, "higher", "lower"), "undecided")
    bounds = _bounds(strata, logs)
    if bounds is not None and margin_percent is not None:
        # An end computed as the margin itself is inside, whatever the last bit says.
        low, high = math.log1p(-margin_percent / 100) - TIE, math.log1p(margin_percent / 100) + TIE
        found = np.where(spread & (bounds[0] >= low) & (bounds[1] <= high), "equivalent", found)
    return [cast("Word", str(word)) for word in found]


def noise_of(strata: Strata, logs: np.ndarray) -> float | None:
    """Standard deviation of one run, in percent: of the residuals left by arm and round; None without any."""
    error = _standard_error(strata, logs)
    if error is None:
        return None
    # The error of the mean difference, back to that of one run.
    return 100 * float(error[0][0]) / math.sqrt(_variance_factor(strata))


def power(strata: Strata, effect_percent: float, noise_percent: float, margin_percent: float | None = None) -> float:
    """Share of experiments in which a true change is found, normal noise, by simulation with a fixed seed.

    With a margin, an experiment whose 90 % interval lies inside it counts as equivalent, not as found.
    """
    if noise_percent <= 0:
        return float(attainable_p(strata) <= DECIDED_AT and effect_percent != 0)
    shifted = _noise(strata) * noise_percent / 100 + math.log1p(effect_percent / 100) * _is_candidate(strata)[:, None]
    found = words(strata, shifted, margin_percent)
    return sum(word in ("higher", "lower") for word in found) / len(found)


def mde_percent(strata: Strata, noise_percent: float) -> float | None:
    """Smallest change found with 80 % power at this noise of a run; None when no change, however large, is."""
    standard = _standard_mde(strata)
    return None if standard is None else _percent(standard * noise_percent / 100)


def runs_needed(effect_percent: float, noise_percent: float, rounds: bool = False) -> int | None:
    """Runs of each arm that find a change with 80 % power, in as many rounds of one pair where there are rounds.

    Above six runs a t test at the same level stands for the relabelling test. None when 40 are not enough.
    """
    wanted = abs(math.log1p(effect_percent / 100))
    for runs in (4, 5, 6, 8, 10, 12, 15, 20, 30, 40):
        strata: Strata = ((1, 1),) * runs if rounds else ((runs, runs),)
        freedom = runs - 1 if rounds else 2 * runs - 2
        standard = _standard_mde(strata) if runs <= 6 else _textbook_mde(strata, freedom)
        if standard is not None and standard * noise_percent / 100 <= wanted:
            return runs
    return None


def _refuse_unusable(rounds: Sequence[Round]) -> None:
    if not rounds or not all(b and c for b, c in rounds):
        runs = [(len(b), len(c)) for b, c in rounds]
        raise RefereeError("referee", [Reason("rounds", repr(runs), "at least one run of either arm in each round")])
    wrong = [v for b, c in rounds for v in (*b, *c) if not (math.isfinite(v) and v > 0)]
    if wrong:
        raise RefereeError("referee", [Reason("value", repr(wrong[0]), "positive and finite")])
    values = [v for b, c in rounds for v in (*b, *c)]
    if max(values) > LARGEST_FACTOR * min(values):
        shown = f"{min(values):g} to {max(values):g}"
        raise RefereeError("referee", [Reason("values", shown, f"all within a factor {LARGEST_FACTOR:g}")])


def _strata_that_decide(rounds: Sequence[Round]) -> list[Round]:
    whole = [(tuple(v for b, _ in rounds for v in b), tuple(v for _, c in rounds for v in c))]
    kept = tuple((len(b), len(c)) for b, c in rounds)
    levels = [np.mean(np.log([*b, *c])) for b, c in rounds]
    far_apart = len(levels) > 1 and float(np.std(levels, ddof=1)) > ROUND_SPREAD
    return list(rounds) if far_apart or attainable_p(kept) <= DECIDED_AT else whole


@lru_cache(maxsize=64)
def _weights(strata: Strata) -> np.ndarray:
    """[relabellings, runs] weights whose product with the logarithms is the mean difference; the first is observed."""
    if relabellings(strata) <= ENUMERATED:
        per_round = [_all_rows(b, c) for b, c in strata]
        made = np.array([np.concatenate(rows) for rows in product(*per_round)])
    else:
        generator = np.random.default_rng(SEED)
        observed = [_all_rows(b, c, first_only=True)[0] for b, c in strata]
        drawn = [generator.permuted(np.tile(row, (DRAWN, 1)), axis=1) for row in observed]
        made = np.vstack([np.concatenate(observed), np.hstack(drawn)])
    return np.asarray(made / len(strata))


def _all_rows(baseline: int, candidate: int, first_only: bool = False) -> list[np.ndarray]:
    runs = baseline + candidate
    rows = []
    # Counted from the end, so that the first labelling is the observed one: the candidate's runs come last.
    for chosen in combinations(range(runs - 1, -1, -1), candidate):
        row = np.full(runs, -1 / baseline)
        row[list(chosen)] = 1 / candidate
        rows.append(row)
        if first_only:
            break
    return rows


def _is_candidate(strata: Strata) -> np.ndarray:
    return np.concatenate([[0.0] * b + [1.0] * c for b, c in strata])


def _variance_factor(strata: Strata) -> float:
    return sum(1 / b + 1 / c for b, c in strata) / len(strata) ** 2


def _standard_error(strata: Strata, logs: np.ndarray) -> tuple[np.ndarray, int] | None:
    """Standard error of the mean difference, one an experiment, and its degrees of freedom; None with none."""
    pieces = np.split(logs, np.cumsum([b + c for b, c in strata])[:-1])
    if len(strata) > 1:
        each = np.array([p[b:].mean(0) - p[:b].mean(0) for p, (b, _) in zip(pieces, strata, strict=True)])
        return each.std(axis=0, ddof=1) / math.sqrt(len(strata)), len(strata) - 1
    ((base, cand),) = strata
    freedom = base + cand - 2
    if freedom == 0:
        return None
    squares = sum(((part - part.mean(0)) ** 2).sum(0) for part in (logs[:base], logs[base:]))
    return np.sqrt(squares / freedom * (1 / base + 1 / cand)), freedom


def _bounds(strata: Strata, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Ends of the 90 % t interval of the mean difference of logarithms, one an experiment."""
    error = _standard_error(strata, logs)
    if error is None:
        return None
    half = error[0] * scipy.stats.t.ppf(1 - ALPHA, error[1])
    centre = _weights(strata)[0] @ logs
    return centre - half, centre + half


def _changes(used: Sequence[Round]) -> tuple[float, float, tuple[float, float] | None]:
    """Change of medians, change of means, and the interval of the first, in percent."""
    if len(used) > 1:
        ratios = np.array([np.mean(np.log(c)) - np.mean(np.log(b)) for b, c in used])
        by_round = _bootstrap((ratios,), lambda r, axis=-1: np.exp(np.median(r, axis=axis)))
        return _percent(np.median(ratios)), _percent(np.mean(ratios)), by_round
    base, cand = (np.array(side) for side in used[0])
    interval = None if min(len(base), len(cand)) < 2 else _bootstrap((cand, base), _ratio_of_medians)
    return 100 * float(_ratio_of_medians(cand, base) - 1), 100 * float(np.mean(cand) / np.mean(base) - 1), interval


def _bootstrap(samples: tuple[np.ndarray, ...], statistic: Callable[..., Any]) -> tuple[float, float]:
    found = scipy.stats.bootstrap(
        samples,
        statistic,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        random_state=np.random.default_rng(SEED),
    ).confidence_interval
    return 100 * (float(found.low) - 1), 100 * (float(found.high) - 1)


def _ratio_of_medians(over: np.ndarray, under: np.ndarray, axis: int = -1) -> Any:
    return np.median(over, axis=axis) / np.median(under, axis=axis)


@lru_cache(maxsize=64)
def _noise(strata: Strata) -> np.ndarray:
    return np.random.default_rng(SEED + 1).standard_normal((sum(b + c for b, c in strata), EXPERIMENTS))


@lru_cache(maxsize=64)
def _standard_mde(strata: Strata) -> float | None:
    """Smallest visible effect in standard deviations of one run, by bisection over one set of simulated noise."""
    if attainable_p(strata) > DECIDED_AT:
        return None
    noise, shift = _noise(strata)[:, : EXPERIMENTS // 2], _is_candidate(strata)[:, None]
    low, high = 0.7 * _textbook_mde(strata), 4 * _textbook_mde(strata)
    for _ in range(9):
        middle = (low + high) / 2
        found = float((p_values(strata, noise + middle * shift) <= DECIDED_AT).mean())
        low, high = (low, middle) if found >= POWER else (middle, high)
    return high


def _textbook_mde(strata: Strata, freedom: float = math.inf) -> float:
    """Smallest effect that a t test finds with 80 % power, in standard deviations of one run."""
    level, found = scipy.stats.t.ppf((1 - DECIDED_AT / 2, POWER), freedom)
    return float(level + found) * math.sqrt(_variance_factor(strata))


def _percent(log: float) -> float:
    # Beyond the largest double there is no change to print.
    return 100 * math.expm1(float(log)) if log < LARGEST_LOG else math.inf
