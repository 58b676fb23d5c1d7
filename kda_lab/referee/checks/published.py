"""Published numbers: each change, ratio, mean or median that was printed, recomputed from the printed inputs.

Printed inputs are rounded too. A number *agrees* where they give its digits as they stand, agrees *within rounding*
where some unrounded inputs would, and else does not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Literal

from kda_lab.referee.arms import typical
from kda_lab.referee.claim import Claim, Published
from kda_lab.referee.finding import Finding, figure
from kda_lab.referee.metrics import METRICS, UNITS, convert

CHECK = "published"


def check(claim: Claim) -> tuple[Finding, ...]:
    """One finding for each published number; what cannot be recomputed here is named, not passed over."""
    return tuple(_judge(claim, item) for item in claim.published)


def _judge(claim: Claim, item: Published) -> Finding:
    made = _recomputed(claim, item)
    if made is None:
        words = f"{item.metric} {item.statistic}: the claim holds no values from which it follows; not recomputed."
        return _told(item, "note", "printed number not recomputed", words)
    value, line, ends = made
    own, allowed = _own_unit(item)
    unit = item.unit if "unit" in item.model_fields_set else own
    if unit not in allowed:
        words = f"{item.metric} {item.statistic}: unit is {item.unit!r}; allowed: {', '.join(allowed)}. Not recomputed."
        return _told(item, "warning", "printed number in a wrong unit", words)
    value, ends = _in_unit(value, own, unit), tuple(_in_unit(v, own, unit) for v in ends)
    if unit != own:
        line = f"{line} {own} = {value:.6g} {unit}"
    # Binary fractions: a value that lies on the edge must not fall off it.
    step = 0.5 * 10.0**-item.digits * (1 + 1e-9) + 1e-12
    if abs(value - item.value) <= step:
        severity, told, short = "passed", "agrees to the printed digit", "printed number holds"
    elif min(ends) - step <= item.value <= max(ends) + step:
        severity, told, short = "note", "agrees within the rounding of its inputs", "printed number holds by rounding"
    else:
        severity, told, short = "warning", "does not agree", "printed number disagrees"
    printed = f"{item.value:.{item.digits}f} {unit}".strip()
    words = f"{item.metric} {item.statistic}: printed {printed}, recomputed {value:.{item.digits + 1}f}: {told}."
    return Finding.model_validate(
        {
            "check": CHECK,
            "severity": severity,
            "short": short,
            "sentence": words,
            "arithmetic": (line,),
            "numbers": {"printed": item.value, "recomputed": value, "least": min(ends), "most": max(ends)},
            "sources": (item.source,),
        }
    )


def _told(item: Published, severity: Literal["note", "warning"], short: str, words: str) -> Finding:
    return Finding(check=CHECK, severity=severity, short=short, sentence=words, sources=(item.source,))


def _own_unit(item: Published) -> tuple[str, tuple[str, ...]]:
    """Unit in which a statistic is recomputed, and the units in which it may be printed."""
    if item.statistic in RELATIVE:
        return RELATIVE[item.statistic]
    if item.metric not in METRICS:
        return "points", ("points", "percent")
    own = METRICS[item.metric].unit
    return own, tuple(u for u, (dimension, _) in UNITS.items() if dimension == UNITS[own][0])


RELATIVE = {"change": ("percent", ("percent", "fraction")), "ratio": ("x", ("x", "percent", "fraction"))}


def _in_unit(value: float, own: str, unit: str) -> float:
    if own in UNITS and unit in UNITS:
        return convert(value, own, unit)
    return 100 * value if (own, unit) == ("x", "percent") else value


def _recomputed(claim: Claim, item: Published) -> tuple[float, str, tuple[float, ...]] | None:
    """The value, its line of arithmetic, and what it may be when the inputs were rounded; None without inputs."""
    half = _half_step(claim, item.metric)
    if item.statistic in ("mean", "median", "value") and item.arm:
        values = _values(claim, item.metric, item.arm)
        if not values:
            return None
        made = (statistics.mean if item.statistic == "mean" else statistics.median)(values)
        line = f"{item.statistic} of {', '.join(figure(v) for v in values)} = {figure(made)}"
        return made, line, (made - half, made + half)
    base, cand = _centre(claim, item.metric, claim.baseline), _centre(claim, item.metric, claim.candidate)
    if not base or not cand or half >= min(base, cand):
        return None
    higher = item.metric in METRICS and METRICS[item.metric].better == "higher"
    if item.statistic not in FORMULAS or not math.isfinite(base + cand):
        return None
    formula, words = FORMULAS[item.statistic]
    over, under = (base, cand) if item.statistic == "ratio" and not higher else (cand, base)
    value = formula(over, under)
    ends = tuple(formula(over + a, under - a) for a in (-half, half))
    return value, f"{words.format(figure(over, 8), figure(under, 8))} = {value:.6g}", ends


FORMULAS: dict[str, tuple[Callable[[float, float], float], str]] = {
    "change": (lambda over, under: 100 * (over / under - 1), "100 * ({} / {} - 1)"),
    "difference": (lambda over, under: over - under, "{} - {}"),
    "ratio": (lambda over, under: over / under, "{} / {}"),
}


def _half_step(claim: Claim, metric: str) -> float:
    """Half of the last printed digit of a metric's values: the most digits that any of them shows; counts are exact."""
    if metric not in METRICS:
        return max((0.5 * 10.0**-s.digits for s in claim.scores if s.name == metric), default=0.0)
    if METRICS[metric].unit == "count":
        return 0.0
    shown = [repr(r.metrics[metric]).partition(".")[2] for r in claim.runs if metric in r.metrics]
    return 0.5 * 10.0 ** -max((len(d) for d in shown if d.isdigit() and d != "0"), default=0)


def _values(claim: Claim, metric: str, arm: str) -> list[float]:
    if metric in METRICS:
        return [r.metrics[metric] for r in claim.of(arm, metric)]
    return [s.value for s in claim.scores if s.arm == arm and s.name == metric and not s.superseded]


def _centre(claim: Claim, metric: str, arm: str) -> float | None:
    if metric in METRICS:
        return typical(claim.of(arm, metric), metric)
    values = _values(claim, metric, arm)
    return statistics.mean(values) if values else None
