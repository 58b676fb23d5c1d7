"""Tolerances (REF-18): a gate must reject an all-zero output, an unchanged state and each mutant, at its own scales."""

from __future__ import annotations

from kda_lab.referee.claim import Claim, Gate
from kda_lab.referee.finding import Finding

CHECK = "gate"


def check(claim: Claim) -> tuple[Finding, ...]:
    """One finding a gate."""
    found = [_judge(gate) for gate in claim.gates]
    if claim.question == "gate" and not found:
        words = "No gate is given: name what it accepts and rejects."
        found.append(Finding(check=CHECK, severity="inconclusive", short="no gate", sentence=words))
    return tuple(found)


def _judge(gate: Gate) -> Finding:
    wrong = [name for name, accepted in gate.accepts.items() if accepted]
    lines = tuple(f"{name}: {'accepted' if accepted else 'rejected'}" for name, accepted in gate.accepts.items())
    what = f"{gate.name}{f' ({gate.tolerance})' if gate.tolerance else ''}"
    if wrong:
        severity, short = "invalid", f"vacuous: accepts {wrong[0]}"
        words = f"{what} accepts {', '.join(wrong)}: it cannot fail on these. Tighten it, or scale the inputs up."
    elif not gate.accepts:
        severity, short, words = "inconclusive", "gate power unknown", f"{what} was tried on no wrong output."
    elif gate.accepts_candidate is None:
        severity, short = "inconclusive", "gate is sound, candidate not judged"
        words = f"{what} rejects all {len(gate.accepts)} wrong outputs; no candidate was put before it."
    else:
        severity, short = (
            ("passed", gate.tolerance or gate.name) if gate.accepts_candidate else ("note", "gate rejects")
        )
        words = f"{what} rejects all {len(gate.accepts)} wrong outputs and "
        words += "accepts the candidate." if gate.accepts_candidate else "the candidate too."
    return Finding.model_validate(
        {"check": CHECK, "severity": severity, "short": short, "sentence": words, "arithmetic": lines}
    )
