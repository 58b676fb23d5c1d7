"""An audit as JSON and as Markdown, the same bytes for the same audit."""

from __future__ import annotations

from typing import Any

from kda_lab.audit.finding import RULES, SEVERITIES, Audit, Evidence, Finding

STATES = ("identical", "differs", "missing", "extra", "equals-merge-base")


def as_record(audit: Audit) -> dict[str, Any]:
    """The whole audit as plain values for JSON, with `passed` and `sentence` beside its fields."""
    record = audit.model_dump(mode="json", by_alias=True)
    return {**record, "passed": audit.passed, "sentence": audit.sentence}


def as_markdown(audit: Audit) -> str:
    """The audit for people: verdict, classes of files, findings by severity, what was not judged."""
    counts = ", ".join(f"{sum(f.state == s for f in audit.files)} {s}" for s in STATES)
    lines = [
        "# Audit of an export",
        "",
        audit.sentence + ".",
        "",
        f"Source `{audit.source}`, export `{audit.export}`"
        + (f", merge-base `{audit.base}`" if audit.base else ", no merge-base")
        + (f"; scope {', '.join(f'`{s}`' for s in audit.scope)}" if audit.scope else "; whole trees"),
        f"Files: {counts}.",
    ]
    for severity in SEVERITIES:
        found = [f for f in audit.findings if f.severity == severity and not f.allowed]
        if found:
            lines += ["", f"## {severity} ({len(found)})", ""]
            lines += [line for finding in found for line in _entry(finding)]
    allowed = [f for f in audit.findings if f.allowed]
    if allowed:
        lines += ["", f"## Allowed ({len(allowed)})", ""]
        lines += [f"* {f.rule} `{_place(f)}`: {_escaped(f.lost)}. Reason: {_escaped(f.allowed)}" for f in allowed]
    if audit.stale:
        lines += ["", "## Stale entries of the allow-list", "", *(f"* {_escaped(entry)}" for entry in audit.stale)]
    if audit.notes:
        lines += ["", "## Not judged", "", *(f"* {_escaped(note)}" for note in audit.notes)]
    return "\n".join(lines) + "\n"


def _entry(finding: Finding) -> list[str]:
    head = f"* **{finding.rule} {RULES[finding.rule]}**, {finding.category}, `{_place(finding)}`: {_escaped(finding.lost)}."
    return [head, *(f"  * {_shown(e)}" for e in finding.evidence), f"  * Test: {_escaped(finding.test)}"]


def _place(finding: Finding) -> str:
    return f"{finding.file} {finding.symbol}" if finding.symbol else finding.file


def _shown(evidence: Evidence) -> str:
    text = evidence.text[:160].replace("`", "'")
    return f"{evidence}: `{text}`" if text else str(evidence)


def _escaped(text: str) -> str:
    """Text without line breaks, and without HTML that a reader's browser would run."""
    return " ".join(text.split()).replace("<", "&lt;")
