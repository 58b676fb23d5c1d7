"""Composite arms (REF-1): the files of the two arms differ inside the declared scope, and nowhere else."""

from __future__ import annotations

from fnmatch import fnmatchcase

from kda_lab.referee.claim import Claim, Run
from kda_lab.referee.finding import Finding

CHECK = "composite arms"
NAMED = 8


def check(claim: Claim) -> tuple[Finding, ...]:
    """Compare the arms' file hashes, and the files of one arm's runs among themselves."""
    arms = {arm: [r for r in claim.of(arm) if r.files] for arm in (claim.baseline, claim.candidate)}
    found = [f for arm, runs in arms.items() for f in _one_tree(arm, runs)]
    base, cand = (arms[a][0].files if arms[a] else {} for a in (claim.baseline, claim.candidate))
    if found or not base or not cand:
        return tuple(found)
    differing = sorted(p for p in base.keys() | cand.keys() if base.get(p) != cand.get(p))
    outside = [p for p in differing if not any(fnmatchcase(p, pattern) for pattern in claim.scope)]
    lines = tuple(f"{p}: {_hash(base, p)} -> {_hash(cand, p)}" for p in differing[:NAMED])
    if outside:
        words = (
            f"{len(outside)} files differ outside the scope: {', '.join(outside[:NAMED])}. Reset them to one commit."
        )
        return (_finding("not comparable", "arms differ outside the scope", words, lines),)
    settings = [] if differing else _settings(claim)
    if settings:
        words = f"The arms are the same files and differ in the scope's settings: {', '.join(settings[:NAMED])}."
        return (_finding("passed", "arms differ in a setting only", words, lines),)
    if not differing:
        return (_finding("invalid", "the arms are the same files", "Both arms have the same files.", lines),)
    words = f"The arms differ in {len(differing)} of {len(base.keys() | cand.keys())} files, all in the scope."
    return (_finding("passed", "arms differ in the scope only", words, lines),)


def _settings(claim: Claim) -> list[str]:
    """Settings of the scope whose values at run time are not the same in the two arms."""
    base, cand = (_resolved(claim.of(arm)) for arm in (claim.baseline, claim.candidate))
    scoped = [k for k in sorted(base.keys() & cand.keys()) if any(fnmatchcase(f"setting:{k}", p) for p in claim.scope)]
    return [key for key in scoped if not base[key] & cand[key]]


def _resolved(runs: tuple[Run, ...]) -> dict[str, set[str]]:
    keys = {k for r in runs for k in r.resolved}
    return {key: {repr(r.resolved[key]) for r in runs if key in r.resolved} for key in keys}


def _one_tree(arm: str, runs: list[Run]) -> list[Finding]:
    if len({tuple(sorted(r.files.items())) for r in runs}) < 2:
        return []
    return [_finding("invalid", "an arm changed its files", f"Runs of {arm} have different files.", ())]


def _hash(files: dict[str, str], path: str) -> str:
    return files.get(path, "absent")[:12]


def _finding(severity: str, short: str, sentence: str, lines: tuple[str, ...]) -> Finding:
    return Finding.model_validate(
        {"check": CHECK, "severity": severity, "short": short, "sentence": sentence, "arithmetic": lines}
    )
