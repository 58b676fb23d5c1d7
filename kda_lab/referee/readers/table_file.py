"""Claims as a CSV table: one run a row, units in the names of the columns.

```
claim,arm,role,round,concurrency,throughput_tok_s,e2e_mean_s,resolved.tp,published.change.throughput_tok_s
fusion,unfused,baseline,1,512,3038.33,161.229,16,
fusion,fused,candidate,1,512,3106.03,157.630,16,+2.23%
```

Fixed columns: `arm` (needed) and any of `FIXED`. Every other column is a metric with its unit, `resolved.<key>`, or
`published.<statistic>.<metric>` with a printed number. `role` is `baseline`, `candidate` or `control`; without it the
arms have these names. Rows of one `claim` are one comparison; without that column the whole file is. An empty cell
says nothing. A table with a `score_percent` column holds accuracy scores: `arm,name,score_percent,correct,questions`.
A table with `variant` and `step` is the summary of a trace comparison: one slice a row.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from kda_lab.referee.claim import Claim, Published
from kda_lab.referee.readers.claim_file import refuse_duplicates
from kda_lab.referee.readers.quantities import column_of, columns_of, metrics_of, number, printed_at
from kda_lab.referee.readers.text import complaint, refuse, short_name, table_rows

WHOLE = ("round", "order", "concurrency", "input_tokens", "output_tokens", "summarises")
TEXTS = ("claim", "arm", "role", "commit", "hardware", "cache_state", "mode", "summary", "note")
FIXED = (*TEXTS, *WHOLE, "superseded")
SCORE_COLUMNS = ("claim", "arm", "role", "name", "score_percent", "correct", "questions", "round", "commit", "note")
TRACE_COLUMNS = {"wall": "wall_us", "union": "union_us", "busy_us": "union_us"}
ROLES = ("baseline", "candidate", "control")
Row = tuple[int, dict[str, str]]


def read_table(path: Path) -> list[Claim]:
    """The claims of a CSV file, in the order in which they first appear.

    Raises:
        RefereeError: file and line of the first row, cell or column that is not as the head of this module says.
    """
    header, rows = table_rows(path)
    if {"variant", "step"} <= set(header):
        return [_trace(path, list(rows))]
    is_score = "score_percent" in header
    _check_header(path, header, SCORE_COLUMNS if is_score else FIXED, is_score)
    grouped: dict[str, list[Row]] = {}
    for line, row in rows:
        grouped.setdefault(row.get("claim") or path.stem, []).append((line, row))
    return [(_scores if is_score else _speed)(path, name, members) for name, members in grouped.items()]


def _check_header(path: Path, header: Sequence[str], fixed: Sequence[str], is_score: bool) -> None:
    if "arm" not in header:
        refuse(path, 1, "header", repr(list(header)), "a column `arm`", "Name the arm of each row.")
    others = [n for n in header if n not in fixed and not n.startswith(("resolved.", "published."))]
    if is_score:
        for name in others:
            refuse(path, 1, "column", repr(name), ", ".join(fixed))
    columns_of(path, 1, others)


def _speed(path: Path, name: str, rows: Sequence[Row]) -> Claim:
    roles = _roles(path, rows)
    runs = [_run(path, line, row) for line, row in rows]
    shown = [p for line, row in rows for p in _published(path, line, row)]
    metrics = {m for run in runs for m in run["metrics"]}
    if not metrics:
        refuse(path, rows[0][0], "metrics", "none", "at least one column with a unit and a value")
    first = next(iter(p.metric for p in shown if p.metric in metrics), "") or next(
        m for run in runs for m in run["metrics"]
    )
    controls = [{"arm": arm, "repeats": roles["baseline"][0], "adjacent": True} for arm in roles["control"]]
    fields = {
        "name": name, "metric": first, "baseline": roles["baseline"][0], "candidate": roles["candidate"][0],
        "runs": runs, "controls": controls, "published": shown, "source": _source(path, rows[0][0], ""),
    }  # fmt: skip
    return _claim(path, [line for line, _ in rows], fields)


def _roles(path: Path, rows: Sequence[Row]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {role: [] for role in ROLES}
    for line, row in rows:
        role = row.get("role") or row["arm"]
        if role not in ROLES:
            refuse(path, line, "role", repr(role), ", ".join(ROLES), "Add a column `role`, or name the arms so.")
        if row["arm"] not in found[role]:
            found[role].append(row["arm"])
    for role in ("baseline", "candidate"):
        if len(found[role]) != 1:
            refuse(path, rows[0][0], f"{role} arms", repr(found[role]), "exactly one", "Split the table by `claim`.")
    return found


def _run(path: Path, line: int, row: Mapping[str, str]) -> dict[str, Any]:
    typed = {n: v for n, v in row.items() if n not in FIXED and not n.startswith(("resolved.", "published."))}
    run: dict[str, Any] = {
        "metrics": metrics_of(path, line, typed),
        "resolved": {n.removeprefix("resolved."): v for n, v in row.items() if n.startswith("resolved.") and v},
        "source": _source(path, line, row.get("note", "")),
    }
    run |= {n: row[n] for n in ("arm", "commit", "hardware", "cache_state", "mode", "summary") if row.get(n)}
    run |= {n: _whole(path, line, n, row[n]) for n in WHOLE if row.get(n)}
    if row.get("superseded"):
        if row["superseded"] not in ("yes", "no"):
            refuse(path, line, "superseded", repr(row["superseded"]), "yes, no or empty")
        run["superseded"] = row["superseded"] == "yes"
    if "arm" not in run:
        refuse(path, line, "arm", "''", "a name")
    return run


def _whole(path: Path, line: int, field: str, text: str) -> int:
    value = number(path, line, field, text)
    if math.isnan(value) or value != int(value):
        refuse(path, line, field, repr(text), "a whole number")
    return int(value)


def _published(path: Path, line: int, row: Mapping[str, str]) -> list[Published]:
    found = []
    for name, text in row.items():
        if not name.startswith("published.") or not text:
            continue
        parts = name.split(".")
        allowed = get_args(Published.model_fields["statistic"].annotation)
        if len(parts) != 3 or parts[1] not in allowed or column_of(parts[2]) is None:
            refuse(path, 1, "column", repr(name), f"published.<statistic>.<metric>, with {', '.join(allowed)}")
        value = printed_at(path, line, name, text)
        fields = {"metric": column_of(parts[2]).metric, "statistic": parts[1], "arm": row["arm"]}  # type: ignore[union-attr]
        fields |= {"value": value.value, "unit": value.unit, "digits": value.digits}
        found.append(Published.model_validate(fields | {"source": _source(path, line, "")}))
    return found


def _scores(path: Path, name: str, rows: Sequence[Row]) -> Claim:
    roles = _roles(path, rows)
    scores = []
    for line, row in rows:
        shown = printed_at(path, line, "score_percent", row["score_percent"])
        if shown.unit not in ("percent", "count"):
            refuse(path, line, "score_percent", repr(row["score_percent"]), "a percentage, such as 95.814")
        score: dict[str, Any] = {"arm": row["arm"], "name": row.get("name") or name, "value": shown.value}
        score |= {"digits": shown.digits, "source": _source(path, line, row.get("note", ""))}
        score |= {n: _whole(path, line, n, row[n]) for n in ("correct", "questions", "round") if row.get(n)}
        scores.append(score | ({"commit": row["commit"]} if row.get("commit") else {}))
    fields = {
        "name": name, "question": "score", "baseline": roles["baseline"][0], "candidate": roles["candidate"][0],
        "scores": scores, "source": _source(path, rows[0][0], ""),
    }  # fmt: skip
    return _claim(path, [line for line, _ in rows], fields, "scores")


def _trace(path: Path, rows: Sequence[Row]) -> Claim:
    """One run a variant: medians over its slices, since slices of one process are no independent runs."""
    by_arm: dict[str, list[dict[str, float]]] = {}
    for line, row in rows:
        if row["variant"] not in ROLES:
            refuse(path, line, "variant", repr(row["variant"]), ", ".join(ROLES))
        typed = {TRACE_COLUMNS.get(n, n): v for n, v in row.items() if column_of(TRACE_COLUMNS.get(n, n))}
        by_arm.setdefault(row["variant"], []).append(metrics_of(path, line, typed))
    for role in ("baseline", "candidate"):
        if role not in by_arm:
            refuse(path, rows[0][0], "variants", repr(sorted(by_arm)), "baseline and candidate")
        if "wall_us" not in by_arm[role][0]:
            refuse(path, 1, "header", "no wall_us", "a column wall_us", "The sum of kernels is no time that passed.")
    runs = []
    for arm, slices in by_arm.items():
        metrics = {m: statistics.median(s[m] for s in slices if m in s) for m in slices[0]}
        many = {"summarises": len(slices), "summary": "median"} if len(slices) > 1 else {}
        runs.append({"arm": arm, "metrics": metrics, "source": _source(path, rows[0][0], "slices of a trace"), **many})
    fields = {"name": path.stem, "metric": "wall_us", "runs": runs, "source": _source(path, 1, "")}
    return _claim(path, [rows[0][0]] * len(runs), fields)


def _source(path: Path, line: int, note: str) -> dict[str, Any]:
    return {"file": short_name(path), "line": line, "note": note}


def _claim(path: Path, lines: Sequence[int], fields: dict[str, Any], part: str = "runs") -> Claim:
    try:
        claim = Claim.model_validate(fields)
    except ValidationError as error:
        where, given, allowed = complaint(error.errors(include_url=False)[0])
        inside = len(where) > 1 and where[0] == part and isinstance(where[1], int)
        line = lines[int(where[1])] if inside else lines[0]
        field = ".".join(str(p) for p in where[2 if inside else 0 :]) or "row"
        refuse(path, line, field, given, allowed)
    refuse_duplicates(claim, lambda n: (path, lines[n]))
    return claim
