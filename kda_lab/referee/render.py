"""Judgements as text: a table of verdicts, the arithmetic under each, Markdown and JSON.

The same judgements give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kda_lab.referee.finding import Finding
from kda_lab.referee.judge import Judgement

COLUMNS = ("claim", "question", "verdict", "change", "p", "MDE")
MARKS = {"passed": "ok", "note": "note", "warning": "warning"}


def rows(judgements: Sequence[Judgement]) -> list[tuple[str, ...]]:
    """One row a judgement, in the order of `COLUMNS`; a dash where a number does not exist."""
    return [(j.name, j.metric or j.question, str(j), _change(j), _p(j), _mde(j)) for j in judgements]


def plain(judgements: Sequence[Judgement], arithmetic: bool = True) -> str:
    """The findings of each judgement as indented text."""
    return "\n".join(line for j in judgements for line in (*_plain(j, arithmetic), ""))


def markdown(judgements: Sequence[Judgement]) -> str:
    """A table of verdicts, then one section a claim with its findings and arithmetic."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(_cell(c) for c in row)} |" for row in rows(judgements)]
    for judgement in judgements:
        lines += ["", f"## {judgement.name}: {judgement}", ""]
        lines += [f"{judgement.title}{f' ({judgement.thread})' if judgement.thread else ''}", ""] * bool(
            judgement.title
        )
        for finding in judgement.findings:
            lines.append(f"* **{finding.check}** ({_mark(finding)}): {finding.sentence}")
            lines += ["", "  ```text", *(f"  {a}" for a in finding.arithmetic), "  ```", ""] * bool(finding.arithmetic)
    return "\n".join(lines).rstrip() + "\n"


def as_json(judgements: Sequence[Judgement]) -> str:
    """All judgements as JSON, sorted keys; a number that is not finite is null."""
    content = [{**j.model_dump(mode="json"), "verdict_text": str(j), "reached": j.reached} for j in judgements]
    return json.dumps(_finite(content), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(judgement: Judgement, arithmetic: bool) -> list[str]:
    lines = [f"{judgement.name}: {judgement}"]
    for finding in judgement.findings:
        lines.append(f"  [{_mark(finding)}] {finding.check}: {finding.sentence}")
        lines += [f"      {line}" for line in finding.arithmetic] if arithmetic else []
    return lines


def _mark(finding: Finding) -> str:
    return MARKS.get(finding.severity, finding.severity.upper())


def _change(judgement: Judgement) -> str:
    numbers = judgement.numbers
    if "difference_points" in numbers:
        return f"{numbers['difference_points']:+.2f} points"
    return f"{numbers['change_percent']:+.2f} %" if "change_percent" in numbers else "—"


def _p(judgement: Judgement) -> str:
    return f"{judgement.numbers['p']:.2g}" if "p" in judgement.numbers else "—"


def _mde(judgement: Judgement) -> str:
    numbers = judgement.numbers
    if "mde_points" in numbers:
        return f"{numbers['mde_points']:.2f} points"
    return f"{numbers['mde_percent']:.2f} %" if "mde_percent" in numbers else "—"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value
