"""The record files of runs as the export reads them: whole lines with the fields that the gates use, each run once.

A record file may be torn, edited or written by something else, so nothing of it is used before its shape is known.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kda_lab.errors import ExportError, Reason
from kda_lab.run_folder import RunFolder

Record = dict[str, Any]
Types = type | tuple[type, ...]
NUMBER = (int, float)

_REPLAYED: Mapping[str, Types] = {"op": str, "capture": str, "capture_sha256": str}
_ARM: Mapping[str, Types] = {"arm": str, "role": str}
FIELDS: Mapping[str, Mapping[str, Types]] = {
    "replay": {
        **_REPLAYED,
        **_ARM,
        "capture_kind": str,
        "axes": dict,
        "checks": list,
        "skipped": dict,
        "passed": bool,
        "errors": dict,
    },
    "power": {**_REPLAYED, "killed": int, "total": int, "control": dict, "mutants": list},
    "stress": {
        **_REPLAYED,
        **_ARM,
        "launches": int,
        "differing": int,
        "nonzero_state": dict,
        "failure": str,
        "passed": bool,
    },
    "timing": {
        "op": str,
        "row": str,
        **_ARM,
        "axes": dict,
        "baseline": str,
        "trial": int,
        "dropped": str,
        "median_us": NUMBER,
        "state": str,
        "kernels": (dict, type(None)),
        "recheck": dict,
    },
}
"""Kind to the fields that the export reads, with their types; other kinds need none."""
_ANY: Mapping[str, Types] = {
    "provenance": dict,
    "source_sha256": str,
    "interpreter": bool,
    "protocol": str,
    "stand_in": str,
    "scalars": dict,
}
"""Fields that a record of any kind may lack, but not hold as another type."""
_PARTS: Mapping[str, tuple[str, Mapping[str, Types]]] = {
    "replay": ("checks", {"name": str, "passed": bool, "detail": str}),
    "power": ("mutants", {"name": str, "killed": bool, "by": str, "applies": bool}),
}
_NESTED: Mapping[str, tuple[str, Mapping[str, Types]]] = {
    "power": ("control", {"passed": bool, "failed": list}),
    "timing": ("recheck", {"passed": bool}),
}


def read_records(file: Path) -> list[Record]:
    """Records of `verify.jsonl` or `timing.jsonl`; a missing file has none.

    Raises:
        ExportError: gate `evidence`: the file cannot be read, or a line is torn, is no object, or lacks a field
            that the export uses; file and line are named.
    """
    try:
        lines = file.read_bytes().splitlines() if file.exists() else []
    except OSError as error:
        reason = Reason(str(file), repr(str(error)), "a file that can be read")
        raise ExportError("export.evidence", [reason]) from error
    return [_record(line, f"{file} line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _record(line: bytes, where: str) -> Record:
    try:
        record = json.loads(line)
    # ValueError: torn, or not UTF-8. RecursionError: nested deeper than any record.
    except (ValueError, RecursionError) as error:
        remedy = f"The run was cut short or the file edited ({type(error).__name__}): run it again."
        raise ExportError("export.evidence", [Reason(where, repr(line[:60]), "one JSON object", remedy)]) from error
    faults = list(_faults(record, where)) if isinstance(record, dict) else [_reason(where, record, dict)]
    if faults:
        raise ExportError("export.evidence", faults[:5])
    found: Record = record
    return found


def _faults(record: Record, where: str) -> Iterator[Reason]:
    yield from _wrong(record, {"kind": str}, where)
    yield from _wrong({**record}, {n: t for n, t in _ANY.items() if n in record}, where)
    device = record["provenance"].get("device", {}) if isinstance(record.get("provenance"), dict) else {}
    if not isinstance(device, dict) or (device.get("type") == "cuda" and not _is_capability(device.get("capability"))):
        yield Reason(f"{where}: provenance.device", repr(device)[:120], "an object; a GPU with [major, minor]")
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        return
    yield from _wrong(record, FIELDS[kind], where)
    if kind in _NESTED:
        name, types = _NESTED[kind]
        yield from _wrong(record.get(name), types, f"{where}: {name}")
    if kind in _PARTS:
        name, types = _PARTS[kind]
        parts = record.get(name)
        for index, part in enumerate(parts if isinstance(parts, list) else []):
            yield from _wrong(part, types, f"{where}: {name}[{index}]")
    time_us: Any = record.get("median_us")
    if kind == "timing" and not (is_finite_number(time_us) and time_us > 0):
        yield Reason(f"{where}: median_us", repr(time_us), "a finite time above 0")


def _wrong(values: Any, types: Mapping[str, Types], where: str) -> Iterator[Reason]:
    if not isinstance(values, dict):
        yield _reason(where, values, dict)
        return
    for name, wanted in types.items():
        value = values.get(name)
        # True is an int to Python, but no count and no time.
        if name not in values or not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            yield _reason(f"{where}: {name}", value if name in values else "absent", wanted)


def _reason(where: str, given: object, wanted: Types) -> Reason:
    names = [t.__name__ for t in (wanted if isinstance(wanted, tuple) else (wanted,))]
    return Reason(where, repr(given)[:120], " or ".join(names))


def _is_capability(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(part) is int for part in value)


def is_finite_number(value: Any) -> bool:
    """Whether a JSON value is a number that a float can hold; true and false are none."""
    return isinstance(value, NUMBER) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def check_distinct(runs: Sequence[RunFolder]) -> None:
    """Refuse the same records under two run names: they would count twice.

    Raises:
        ExportError: gate `evidence`: two runs have a record file with the same bytes.
    """
    seen: dict[str, str] = {}
    for run in runs:
        for file in (run.verify_records, run.timing_records):
            # An empty file holds no evidence that could count twice.
            if not file.is_file() or not file.stat().st_size:
                continue
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            if digest in seen:
                given = f"{seen[digest]}, {run.name}: the same {file.name}"
                raise ExportError(
                    "export.evidence", [Reason("runs", repr(given), "each run once", "Name one of them.")]
                )
            seen[digest] = run.name
