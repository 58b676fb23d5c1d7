"""All rows of a run: a progress bar, a file that is whole after every row, and resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tqdm import tqdm

from kda_lab import runtime
from kda_lab.errors import ParameterError, Reason
from kda_lab.ops import registry
from kda_lab.ops.protocol import Arm, Row
from kda_lab.run_folder import RunFolder, write_json_lines
from kda_lab.timing import records as timing_records
from kda_lab.timing.machine import machine_for, why_not_timed
from kda_lab.timing.measure import time_row
from kda_lab.timing.protocol import SUFFIXES, Protocol

PARQUET = "timing.parquet"


@dataclass(frozen=True)
class TimingRun:
    """What a run's timing left behind."""

    records: list[dict[str, Any]]
    timed_rows: int
    """Rows timed now."""
    resumed_rows: int
    """Rows whose records were already complete."""
    reason: str = ""
    """`not timed (interpreter)` or `not timed (no GPU)`; empty when rows were timed."""


def time_rows(
    op: str | registry.Op,
    rows: Sequence[Row],
    arms: Sequence[tuple[Arm, str]],
    run: RunFolder,
    *,
    device: torch.device | None = None,
    protocol: Protocol | None = None,
    progress: bool = True,
) -> TimingRun:
    """Time all arms on all rows; write `timing.jsonl` after every row and `timing.parquet` at the end.

    Rows that are complete in the file (same arms, sources, protocol and device) are not timed again.

    Args:
        op_name, rows: the op, dotted, and its cases.
        arms: (arm, role) as for `measure.time_row`.
        run: the run's folder.
        device, protocol: the current device and v1 when None.
        progress: show a bar on stderr.

    Returns:
        On a CPU or in the interpreter nothing is timed or written, and `reason` says so.

    Raises:
        ParameterError: two rows share a label, or the arms' roles are wrong.
        TimingError: an arm destroyed the device's context; the rows before are in the file.
    """
    _require_distinct(rows)
    device = device or runtime.default_device()
    reason = why_not_timed(device)
    if reason:
        return TimingRun([], 0, 0, reason)
    protocol = protocol or Protocol()
    machine = machine_for(device)
    op = registry.load_op(op) if isinstance(op, str) else op
    found = run.read_timing()
    labels = {row.label + SUFFIXES[protocol.mode]: row for row in rows}
    kept = _complete(found, list(labels), arms, protocol, machine.provenance)
    # Rows that an earlier call wrote, of other labels or in another mode, stay in the file.
    others = [record for record in found if record["row"] not in labels]
    resumed = len(kept)
    for label, row in tqdm(labels.items(), desc=f"timing {op.spec.name}", unit="row", disable=not progress):
        if label not in kept:
            kept[label] = time_row(op, row, arms, machine=machine, protocol=protocol)
            write_json_lines(run.timing_records, [*others, *_in_order(labels, kept)])
    ours = list(_in_order(labels, kept))
    if ours or others:
        timing_records.write_parquet([*others, *ours], run.path / PARQUET)
    return TimingRun(ours, len(labels) - resumed, resumed)


def _require_distinct(rows: Sequence[Row]) -> None:
    twice = sorted(label for label, count in Counter(row.label for row in rows).items() if count > 1)
    if twice:
        remedy = "Give the rows distinct labels."
        raise ParameterError("timing", [Reason("rows", repr(twice), "each label once", remedy)])


def _in_order(labels: Iterable[str], by_row: dict[str, list[dict[str, Any]]]) -> Iterable[dict[str, Any]]:
    return (record for label in labels for record in by_row.get(label, ()))


def _complete(
    found: Sequence[dict[str, Any]],
    labels: Sequence[str],
    arms: Sequence[tuple[Arm, str]],
    protocol: Protocol,
    provenance: dict[str, Any],
) -> dict[str, list[dict[str, Any]]]:
    """Records by row label, of the rows that need not be timed again."""
    by_row: dict[str, list[dict[str, Any]]] = {}
    for record in found:
        by_row.setdefault(record["row"], []).append(record)
    wanted = {(arm.name, role, getattr(arm, "source_sha256", "")) for arm, role in arms}
    baselines = [(arm.name, "control", getattr(arm, "source_sha256", "")) for arm, role in arms if role == "baseline"]
    if not any(role == "control" for _, role in arms):
        wanted.update(baselines)
    uuid = provenance.get("device", {}).get("uuid")
    return {
        label: by_row[label]
        for label in labels
        if label in by_row and _is_complete(by_row[label], wanted, protocol, uuid)
    }


def _is_complete(
    lines: Sequence[dict[str, Any]], wanted: set[tuple[str, str, str]], protocol: Protocol, uuid: str | None
) -> bool:
    seen: dict[tuple[str, str, str], int] = {}
    for line in lines:
        if line["protocol"] != protocol.label or line["provenance"].get("device", {}).get("uuid") != uuid:
            return False
        key = (line["arm"], line["role"], line["source_sha256"])
        seen[key] = seen.get(key, 0) + (protocol.trials if line["kind"] == "refused" else 1)
    return seen.keys() == wanted and all(count >= protocol.trials for count in seen.values())
