"""The audit of our exports for people: Markdown with every check, and the rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

from kda_lab.audit.exported_model import ExportedAudit


def rows(audit: ExportedAudit) -> list[tuple[str, str, str, str]]:
    """Kernel, check, status and words of every outcome, in order."""
    return [(o.kernel, o.check, o.status, o.words) for o in audit.outcomes]


def as_record(audit: ExportedAudit) -> dict[str, object]:
    """The audit as JSON types, with its verdict."""
    return {**audit.model_dump(mode="json", by_alias=True), "passed": audit.passed, "sentence": audit.sentence}


def as_markdown(audit: ExportedAudit) -> str:
    """One page: the verdict, what was compiled and replayed, every check, every finding with its cheapest test."""
    compilers = ", ".join(f"{name} {version}" for name, version in audit.compilers.items())
    lines = ["# Audit of the exported kernels", "", f"{audit.sentence}.", ""]
    lines += [f"Compiled and replayed: {audit.scope}. Compilers here: {compilers}.", ""]
    lines += _table(("kernel", "check", "status", "what was found"), rows(audit))
    if audit.findings:
        told = [
            (f.rule, f.category, f.severity, f"`{f.file}` {f.symbol}".strip(), f.lost, f.test) for f in audit.findings
        ]
        lines += ["", "## Findings", ""]
        lines += _table(("rule", "check", "severity", "where", "what was lost", "cheapest test"), told)
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(_cell(text) for text in row) + " |" for row in body]


def _cell(text: str) -> str:
    """Text that keeps to one cell."""
    return " ".join(text.split()).replace("|", "\\|")
