"""The limits inside replay records, held against the op's own gates: a record may be stricter, never laxer."""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

from kda_lab.errors import ExportError, ParameterError, Reason
from kda_lab.export.run_records import is_finite_number
from kda_lab.ops.registry import load_op

Record = dict[str, Any]
TOLERANCE = 1e-9
"""Relative excess allowed to a recorded limit over the recomputed one: rounding, no more; a limit of 0 has none."""


def check_limits(record: Record) -> None:
    """Refuse a replay record whose checks are doubled, are no numbers, or were judged more mildly than the op says.

    Args:
        record: a `replay` record whose fields `export.run_records` has checked.

    Raises:
        ExportError: gate `replays`: each fault with capture and check.
    """
    where = f"{record['arm']} on {record['capture']}"
    counts = Counter(check["name"] for check in record["checks"])
    reasons = [Reason(f"{where}: check {n}", f"{c} times", "once") for n, c in counts.items() if c > 1]
    allowed = _allowed(record, where)
    for check in record["checks"]:
        name, limit = check["name"], check.get("limit")
        for field in ("value", "limit"):
            # None stands for a value that is not finite, which the verdict refuses in its own words.
            if check.get(field) is not None and not is_finite_number(check[field]):
                reasons.append(Reason(f"{where}: {field} of {name}", repr(check[field]), "a finite number"))
        if name in allowed and is_finite_number(limit) and limit > allowed[name] * (1 + TOLERANCE):
            remedy = f"The gates of {record['op']} give that limit for this capture."
            reasons.append(Reason(f"{where}: limit of {name}", repr(limit), f"at most {allowed[name]:.6g}", remedy))
    if reasons:
        raise ExportError("export.replays", reasons[:5])


def _allowed(record: Record, where: str) -> dict[str, float]:
    """Check name to the largest limit that the record's own floors justify."""
    floor, row_floor = record["errors"].get("floor"), record["errors"].get("floor_row_max")
    if not is_finite_number(floor) or not (row_floor is None or is_finite_number(row_floor)):
        given = {"floor": floor, "floor_row_max": row_floor}
        raise ExportError("export.replays", [Reason(f"{where}: errors", repr(given), "finite floors")])
    try:
        gates = load_op(record["op"]).gates
        limits = gates.limits(record["capture_kind"], floor, row_floor)
    except ParameterError as error:
        raise ExportError("export.replays", f"{where}: {error}") from error
    allowed = {"error_fp32": limits.error, "row_max": limits.row_max}
    if any(check["name"] == "error_updated" for check in record["checks"]):
        allowed["error_updated"] = _allowed_updated(record, where, gates)
    exact = {gate.gate: 0.0 for gate in gates.TOLERANCES if gate.real == 0 == gate.synthetic}
    element = {
        gate.gate: getattr(gate, record["capture_kind"]) for gate in gates.TOLERANCES if gate.gate == "element_max"
    }
    return {"launch": 0.0, **exact, **element, **allowed}


def _allowed_updated(record: Record, where: str, gates: ModuleType) -> float:
    """The largest limit of what is updated in place that its own floor justifies."""
    floor = record["errors"].get("floor_updated")
    if not is_finite_number(floor):
        reason = Reason(
            f"{where}: errors", repr({"floor_updated": floor}), "a finite floor of what is updated in place"
        )
        raise ExportError("export.replays", [reason])
    return float(gates.updated_limit(record["capture_kind"], floor))
