"""The folder of one plan's run: what is finished is there whole, what is not is absent.

    claims.yaml                           what the referee reads, made from what follows
    cells/plan.json                       the plan and its digest; another plan is refused
    cells/runs.jsonl                      one line a finished cell, appended in one write, with its requests' digest
    cells/requests/<cell>.<attempt>.jsonl one line a request, written whole before the cell's line

A process that is killed leaves at most a request file that no line names, or the beginning of a last line; both are
dropped when the run goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from kda_lab.captures.folder_lock import FolderLock
from kda_lab.contracts.fields import Data, RelativePath, Sha256
from kda_lab.errors import CaptureError, Reason, RefereeError
from kda_lab.referee.claim import CacheState, Setting
from kda_lab.referee.readers.text import complaint, json_records, parse_json, refuse
from kda_lab.referee.serving.plan import Plan
from kda_lab.referee.serving.schedule import Cell, Role
from kda_lab.referee.serving.stream import Outcome
from kda_lab.run_folder import write_atomic, write_json


class CellRecord(Data):
    """One finished cell; failed ones are finished too."""

    key: str
    order: int
    arm: str
    role: Role
    concurrency: int
    round: int
    attempt: int = Field(ge=1)
    sitting: int = Field(ge=1)
    """1 for the first start of the driver on this folder, 2 after one interruption."""
    status: Literal["ok", "failed"]
    failure: str = ""
    notes: tuple[str, ...] = ()
    started_s: float
    """Unix time."""
    metrics: dict[str, float] = Field(default_factory=dict)
    resolved: dict[str, Setting] = Field(default_factory=dict)
    cache_state: CacheState = ""
    input_tokens: int | None = None
    """A request, where every one has the same."""
    output_tokens: int | None = None
    requests_file: RelativePath
    requests_sha256: Sha256


PLAN, RUNS, REQUESTS = "cells/plan.json", "cells/runs.jsonl", "cells/requests"


class PlanFolder:
    """The records of one plan, with one writer at a time.

    Args:
        path: the folder; made when it is not there.
        plan: what is to be measured.
    Raises:
        RefereeError: another driver writes there, the folder holds another plan or something else, or its records
            are damaged.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path, self.plan = path, plan
        try:
            self._lock = FolderLock(path)
        except CaptureError as error:
            given = f"{str(path)!r}, into which another driver writes"
            raise RefereeError("referee", [Reason("folder", given, "a folder with one writer")]) from error
        try:
            _take(path, plan)
            self.records = _mended(path)
        except BaseException:
            self._lock.release()
            raise
        self.sitting = 1 + max((record.sitting for record in self.records), default=0)

    def close(self) -> None:
        """Let the next driver in."""
        self._lock.release()

    def latest(self) -> dict[str, CellRecord]:
        """Cell key to its last attempt."""
        return {record.key: record for record in self.records}

    def attempts(self, cell: Cell) -> int:
        """How often the cell was finished, failed ones counted."""
        return sum(record.key == cell.key for record in self.records)

    def add(self, record: CellRecord, outcomes: Sequence[Outcome]) -> CellRecord:
        """Keep a finished cell: its requests first, then its line."""
        text = "".join(json.dumps(_row(record, outcome), sort_keys=True) + "\n" for outcome in outcomes)
        write_atomic(self.path / record.requests_file, text)
        kept = record.model_copy(update={"requests_sha256": hashlib.sha256(text.encode()).hexdigest()})
        # Escaped to ASCII: what a server says may hold line breaks of Unicode, and a record is one line.
        _append(self.path / RUNS, json.dumps(kept.model_dump(mode="json"), sort_keys=True) + "\n")
        self.records.append(kept)
        return kept


def read_records(folder: Path) -> list[CellRecord]:
    """The finished cells of a folder, in the order of their finishing.

    Raises:
        RefereeError: no such file, or a line that is no record; file and line are named.
    """
    path = folder / RUNS
    return [_record(path, line, value) for line, value in json_records(path)]


def read_requests(folder: Path, record: CellRecord) -> list[dict[str, Any]]:
    """The requests of one cell as they were written: fields of `Outcome`, `request` its index, `error` its failure.

    Raises:
        RefereeError: the file is missing or not the one that the cell's line names.
    """
    path = folder / record.requests_file
    content = path.read_bytes() if path.is_file() else b""
    digest = hashlib.sha256(content).hexdigest()
    if digest != record.requests_sha256:
        given = f"SHA-256 {digest}" if path.is_file() else "no file"
        refuse(
            path, 0, "requests", given, f"SHA-256 {record.requests_sha256}", "Restore it, or measure the cell again."
        )
    return [parse_json(path, line, number) for number, line in enumerate(content.decode().splitlines(), 1)]


def _row(record: CellRecord, outcome: Outcome) -> dict[str, Any]:
    """One request as the referee's reader of single requests names its fields."""
    row = asdict(outcome)
    row |= {"request": row.pop("index"), "error": row.pop("failure")}
    if outcome.e2e_ms is not None:
        row["end_s"] = outcome.start_s + outcome.e2e_ms / 1e3
    place = {"arm": record.arm, "round": record.round, "order": record.order, "concurrency": record.concurrency}
    return place | row


def _record(path: Path, line: int, value: Any) -> CellRecord:
    try:
        return CellRecord.model_validate(value)
    except ValidationError as error:
        place, given, allowed = complaint(error.errors(include_url=False)[0])
        refuse(path, line, ".".join(map(str, place)) or "record", given, allowed)


def _take(path: Path, plan: Plan) -> None:
    """Make the folder this plan's, or find that it is."""
    path.mkdir(parents=True, exist_ok=True)
    file = path / PLAN
    if not file.exists():
        strangers = sorted(p.name for p in path.iterdir() if not p.name.startswith("."))
        if strangers:
            given = f"{str(path)!r}, which holds {', '.join(strangers[:3])} and no {PLAN}"
            raise RefereeError("referee", [Reason("folder", given, "a new or empty folder, or one of this plan")])
        write_json(file, {"digest": plan.digest, "plan": plan.model_dump(mode="json")})
        return
    value = parse_json(file, file.read_text(errors="replace"))
    had = value.get("plan") if isinstance(value, dict) else None
    now = plan.model_dump(mode="json")
    if had != now:
        names = sorted(k for k in now if not isinstance(had, dict) or had.get(k) != now[k]) or ["fields"]
        given = f"{str(path)!r}, which holds another plan: {', '.join(names)} differ"
        remedy = "Give each plan its own folder."
        raise RefereeError("referee", [Reason("folder", given, "a folder of this plan", remedy)])


def _mended(path: Path) -> list[CellRecord]:
    """The records, after a last line that was cut off is dropped."""
    file = path / RUNS
    if not file.exists():
        return []
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        write_atomic(file, whole)
    return read_records(path) if whole.strip() else []


def _append(path: Path, line: str) -> None:
    """Append in one write that has reached the disk when it returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        data = line.encode()
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
