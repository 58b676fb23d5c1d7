"""Equality of outputs (REF-8): a mode in which the baseline differs from itself can prove no equality.

Each mode is judged by itself; the verdict is that of the modes whose own control holds, and a difference in one of them
is the verdict, whatever another mode showed.
"""

from __future__ import annotations

from kda_lab.referee.claim import Claim, Equality
from kda_lab.referee.finding import Finding

CHECK = "equality"


def check(claim: Claim) -> tuple[Finding, ...]:
    """One finding a mode, those of valid modes first."""
    modes = dict.fromkeys(e.mode for e in claim.equality)
    found = [f for mode in modes for f in _mode(claim, mode, [e for e in claim.equality if e.mode == mode])]
    if claim.question == "equality" and not found:
        words = "No comparison of the two arms' outputs is given."
        found.append(Finding(check=CHECK, severity="inconclusive", short="outputs not compared", sentence=words))
    if any(f.severity in ("passed", "note") for f in found):
        # A mode whose oracle is void does not take away what another mode showed.
        found = [f.model_copy(update={"severity": "warning"}) if f.severity in VOID else f for f in found]
    return tuple(
        sorted(found, key=lambda f: ("passed", "note").index(f.severity) if f.severity in ("passed", "note") else 2)
    )


VOID = ("invalid", "inconclusive")


def _mode(claim: Claim, mode: str, items: list[Equality]) -> list[Finding]:
    broken = [e for e in items if _contradicts(e)]
    if broken:
        words = f"{mode} mode, {broken[0].what}: the counts contradict the word 'identical'. {broken[0].source}".strip()
        return [_finding("invalid", "counts contradict", words, items)]
    code = _code(claim)
    arms = [(e, code.get(e.left, e.left), code.get(e.right, e.right)) for e in items]
    controls = [e for e, left, right in arms if left == right]
    across = [e for e, left, right in arms if {left, right} == {claim.baseline, claim.candidate}]
    same = bool(across) and all(e.identical for e in across)
    if any(not e.identical for e in controls):
        words = f"In {mode} mode an arm differs from itself: no equality can be judged. Use a deterministic mode."
        return [_finding("invalid", f"A/A failed in {mode} mode", words, items)]
    if not across:
        return []
    if same:
        words = f"Outputs are identical in {mode} mode; this says nothing of other modes."
        words += "" if controls else " No A/A control was printed; none is needed for identity."
        return [_finding("passed", f"{mode} mode", words, items)]
    if not controls:
        words = f"Outputs differ in {mode} mode, and the baseline was not compared with itself: run that control."
        return [_finding("inconclusive", f"no A/A control in {mode} mode", words, items)]
    first = next((e.first_difference for e in across if e.first_difference), "")
    words = f"Outputs differ in {mode} mode{f', first at {first}' if first else ''}; the control is identical."
    return [_finding("note", f"{first or 'outputs'}, {mode} mode" if first else f"{mode} mode", words, items)]


def _code(claim: Claim) -> dict[str, str]:
    """A control's own arm to the arm whose code it runs; the two judged arms stand for themselves."""
    return {c.arm: c.repeats for c in claim.controls if c.arm not in (claim.baseline, claim.candidate)}


def _contradicts(item: Equality) -> bool:
    gap = item.maximum_difference
    if gap is not None and (gap != gap or (item.identical and gap != 0)):
        return True
    if item.compared is None or item.equal is None:
        return item.identical and item.equal == 0
    return item.equal > item.compared or (item.equal == item.compared) != item.identical


def _finding(severity: str, short: str, sentence: str, items: list[Equality]) -> Finding:
    lines = [
        f"{e.mode}: {e.left} against {e.right}, {e.what}: "
        + (f"{e.equal} of {e.compared} equal" if e.compared and e.equal is not None else _word(e))
        + ("" if e.maximum_difference is None else f", largest difference {e.maximum_difference:g}")
        for e in items
    ]
    return Finding.model_validate(
        {"check": CHECK, "severity": severity, "short": short, "sentence": sentence, "arithmetic": tuple(lines)}
    )


def _word(item: Equality) -> str:
    return "identical" if item.identical else "not identical"
