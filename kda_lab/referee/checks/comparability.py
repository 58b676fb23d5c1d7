"""Comparability (REF-2, REF-11): same machine, same load, same configuration that held at run time.

A setting that is the change itself is declared in the claim's scope as `setting:NAME`.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from kda_lab.referee.arms import baseline_arms
from kda_lab.referee.claim import Claim, Run
from kda_lab.referee.finding import Finding

CHECK = "comparability"
NAMED = 8
LOAD = ("hardware", "concurrency", "input_tokens", "output_tokens")


def check(claim: Claim) -> tuple[Finding, ...]:
    """Compare load, hardware and resolved settings; name each that differs."""
    if claim.question != "speed":
        return ()
    runs = [r for arm in (*baseline_arms(claim), claim.candidate) for r in claim.of(arm, claim.metric)]
    base = [r for r in runs if r.arm != claim.candidate]
    cand = [r for r in runs if r.arm == claim.candidate]
    if not base or not cand:
        return ()
    differing = [*_load(base, cand), *_settings(claim, base, cand)]
    found = []
    if differing:
        words = f"The arms differ in {'; '.join(differing[:NAMED])}. Run both the same way, or declare it in the scope."
        short = f"differs in {', '.join(d.split(' ')[0] for d in differing[:NAMED])}"
        found.append(Finding(check=CHECK, severity="not comparable", short=short, sentence=words))
    unknown = _unstated(claim, base, cand)
    if unknown:
        needed = {"resolved": "resolved settings", "hardware": "hardware", "commit": "commit"}
        required = any(needed.get(r) in unknown for r in claim.requires)
        words = f"Not stated for both arms: {', '.join(unknown)}."
        severity = "inconclusive" if required else "note"
        found.append(
            Finding.model_validate(
                {"check": CHECK, "severity": severity, "short": "settings unknown", "sentence": words}
            )
        )
    if not found:
        words = f"Load, hardware and {len(_keys(base) | _keys(cand))} resolved settings agree."
        found.append(Finding(check=CHECK, severity="passed", short="comparable", sentence=words))
    return tuple(found)


def _load(base: list[Run], cand: list[Run]) -> list[str]:
    """Load facts that differ; where rounds hold operating points, within a round."""
    rounds = {r.round for r in base} & {r.round for r in cand}
    pairs = [([r for r in base if r.round == n], [r for r in cand if r.round == n]) for n in sorted(rounds, key=str)]
    found = []
    for name in LOAD:
        for left, right in pairs or [(base, cand)]:
            values = [{getattr(r, name) for r in side} - {None, ""} for side in (left, right)]
            if values[0] and values[1] and (values[0] != values[1] or len(values[0]) > 1):
                found.append(f"{name} ({_shown(values[0])} against {_shown(values[1])})")
                break
    return found


def _settings(claim: Claim, base: list[Run], cand: list[Run]) -> list[str]:
    found = []
    for key in sorted(_keys(base) & _keys(cand)):
        if any(fnmatchcase(f"setting:{key}", pattern) for pattern in claim.scope):
            continue
        values = [{repr(r.resolved[key]) for r in side if key in r.resolved} for side in (base, cand)]
        if values[0] != values[1] or len(values[0]) > 1:
            found.append(f"{key} ({_shown(values[0])} against {_shown(values[1])})")
    return found


def _unstated(claim: Claim, base: list[Run], cand: list[Run]) -> list[str]:
    found = [n for n in ("hardware", "commit") if not (_all_state(base, n) and _all_state(cand, n))]
    # One arm's word alone cannot be compared; that neither said anything is no difference.
    found += [n.replace("_", " ") for n in LOAD[1:] if _any_states(base, n) != _any_states(cand, n)]
    if not _keys(base) or not _keys(cand):
        return [*found, "resolved settings"]
    one_sided = sorted(_keys(base) ^ _keys(cand))
    scoped = [k for k in one_sided if not any(fnmatchcase(f"setting:{k}", p) for p in claim.scope)]
    return [*found, *(f"setting {k}" for k in scoped[:NAMED])]


def _all_state(runs: list[Run], name: str) -> bool:
    return all(getattr(r, name) for r in runs)


def _any_states(runs: list[Run], name: str) -> bool:
    return any(getattr(r, name) is not None for r in runs)


def _keys(runs: list[Run]) -> set[str]:
    return {k for r in runs for k in r.resolved}


def _shown(values: Iterable[object]) -> str:
    return ", ".join(sorted(str(v) for v in values))
