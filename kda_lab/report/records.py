"""Reading of a run's files, whatever state they are in: what cannot be read is named, never fatal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kda_lab.errors import TimingError
from kda_lab.report.numbers import measured
from kda_lab.run_folder import RunFolder
from kda_lab.timing.chain.records import chain_records, validated

_NEEDED = {
    "replay": ("op", "capture", "arm", "checks", "errors"),
    "power": ("capture", "killed", "total", "mutants"),
    "timing": ("op", "row", "axes", "arm", "role", "trial", "median_us"),
    "stress": ("capture", "arm", "launches"),
    "refused": ("arm", "reason"),
}
_SHAPES: dict[str, type | tuple[type, ...]] = {
    "op": str, "capture": str, "row": str, "arm": str, "role": str, "reason": str, "axes": dict, "errors": dict,
    "checks": list, "mutants": list, "median_us": (int, float), "trial": int, "launches": int, "killed": int, "total": int,
}  # fmt: skip
NOT_TIMED_INTERPRETER = "not timed (interpreter)"
NOT_TIMED = "not timed (this run has no timing records)"
TRACE_FILE = "trace.jsonl"


@dataclass(frozen=True)
class RunRecords:
    """Everything a page says of a run. `problems` holds one sentence for each thing that could not be read."""

    name: str
    verify: tuple[dict[str, Any], ...]
    """Lines of verify.jsonl of any kind."""
    timing: tuple[dict[str, Any], ...]
    """Lines of timing.jsonl of any kind."""
    parameters: dict[str, Any]
    provenance: dict[str, Any]
    verdict: dict[str, Any] | None
    """None where there is no verdict, or none that can be read."""
    problems: tuple[str, ...]
    chain: tuple[dict[str, Any], ...] = ()
    """Lines of chain.jsonl of any kind, each as `timing.chain.records.validated` gives it."""
    own_times: bool = False
    """The notebook recorded times of its own kind, which its figures and its verdict tell."""

    @property
    def replays(self) -> list[dict[str, Any]]:
        return [r for r in self.verify if r["kind"] == "replay"]

    @property
    def power(self) -> list[dict[str, Any]]:
        return [r for r in self.verify if r["kind"] == "power"]

    @property
    def stress(self) -> list[dict[str, Any]]:
        return [r for r in self.verify if r["kind"] == "stress"]

    @property
    def refused(self) -> list[dict[str, Any]]:
        """Arms that could not run, of all files, each once."""
        found = [r for r in self._lines if r["kind"] == "refused"]
        return list({json.dumps(r, sort_keys=True): r for r in found}.values())

    @property
    def trials(self) -> list[dict[str, Any]]:
        return [r for r in self.timing if r["kind"] == "timing"]

    @property
    def chained(self) -> list[dict[str, Any]]:
        """Timed trials of chains."""
        return [r for r in self.chain if r["kind"] == "chain"]

    @property
    def _lines(self) -> tuple[dict[str, Any], ...]:
        return (*self.verify, *self.timing, *self.chain)

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the ops that the records speak of, in order of appearance."""
        return tuple(dict.fromkeys(str(r["op"]) for r in self._lines if r.get("op")))

    @property
    def device(self) -> dict[str, Any]:
        """Facts of the device: of the run's provenance, else of the first record that has any."""
        for source in (self.provenance, *(r.get("provenance") for r in (*self.timing, *self.verify, *self.chain))):
            if isinstance(source, Mapping) and isinstance(source.get("device"), dict) and source["device"]:
                return dict(source["device"])
        return {}

    @property
    def not_timed(self) -> str:
        """Why there are no times; empty where there are some."""
        if self.trials or self.chained or self.own_times:
            return ""
        on_cpu = self.device.get("interpreter") or self.device.get("type") == "cpu"
        on_cpu = on_cpu or any(r.get("interpreter") for r in (*self.replays, *self.chain))
        return NOT_TIMED_INTERPRETER if on_cpu else NOT_TIMED

    @property
    def captures_sha256(self) -> str:
        """One hash over the hashes of all captures that were replayed; empty without replays."""
        found = sorted({str(r.get("capture_sha256", "")) for r in self.replays} - {""})
        return hashlib.sha256("".join(found).encode()).hexdigest() if found else ""


def read_run(run: RunFolder) -> RunRecords:
    """Read all records of a run; missing files are empty, broken ones are named in `problems`."""
    problems: list[str] = []
    verify = _read_lines(run.verify_records, problems)
    timing = _read_lines(run.timing_records, problems)
    chain = _read_lines(chain_records(run), problems, _chain_fault)
    parameters = _read_object(run.parameters, problems)
    provenance = _read_object(run.provenance, problems)
    verdict = _read_object(run.verdict, problems)
    if verdict is not None and not isinstance(verdict.get("passed"), bool):
        problems.append(
            f"{run.verdict.name}: passed is {verdict.get('passed')!r}; allowed: true, false. Run the verdict cell again."
        )
        verdict = None
    return RunRecords(
        run.name,
        tuple(verify),
        tuple(timing),
        parameters or {},
        provenance or {},
        verdict,
        tuple(problems),
        tuple(map(validated, chain)),
        own_times=(run.path / TRACE_FILE).is_file(),
    )


def _read_object(path: Path, problems: list[str]) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.name}: cannot be read: {first_line(error)}")
        return None
    if not isinstance(value, dict):
        problems.append(f"{path.name}: holds {type(value).__name__}; allowed: a JSON object.")
        return None
    return value


def _read_lines(path: Path, problems: list[str], fault_of: Callable[[Any], str] | None = None) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        problems.append(f"{path.name}: cannot be read: {first_line(error)}")
        return []
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            problems.append(f"{path.name} line {number}: cannot be read: {first_line(error)}")
            continue
        fault = (fault_of or _fault)(record)
        if fault:
            problems.append(f"{path.name} line {number}: {fault}")
        else:
            records.append(record)
    return records


def _fault(record: Any) -> str:
    """What keeps a record from being used; empty when nothing does."""
    if not isinstance(record, dict):
        return f"holds {type(record).__name__}; allowed: a JSON object."
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in _NEEDED:
        return f"kind is {kind!r}; allowed: {', '.join(_NEEDED)}."
    needed = _NEEDED[kind]
    missing = [name for name in needed if name not in record]
    if missing:
        return f"a {kind} record without {', '.join(missing)}."
    wrong = [n for n in needed if not isinstance(record[n], _SHAPES[n])]
    if wrong:
        return f"a {kind} record whose {', '.join(wrong)} has the wrong type."
    if kind == "timing" and not (measured(record["median_us"]) and record["median_us"] > 0):
        return f"median_us is {record['median_us']!r}; allowed: a finite time above 0."
    items = [item for n in needed if n in ("checks", "mutants") for item in record[n]]
    named = all(isinstance(item, dict) and "name" in item for item in items)
    return "" if named else f"a {kind} record with an entry without name."


def _chain_fault(record: Any) -> str:
    """What keeps a line of chain.jsonl from being used; empty when nothing does."""
    if not isinstance(record, dict):
        return f"holds {type(record).__name__}; allowed: a JSON object."
    try:
        axes = validated(record)["axes"]
    except TimingError as error:
        return first_line(error)
    rows = axes.get("rows")
    named = isinstance(rows, list) and rows and all(isinstance(row, str) for row in rows)
    return "" if named else f"axes.rows is {rows!r}; allowed: the labels of the layer's products."


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its class where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def started(provenance: Mapping[str, Any]) -> str:
    """When the run started, as its provenance says; empty where it does not."""
    for key in ("started_utc", "start_utc", "utc", "started", "date"):
        if isinstance(provenance.get(key), str):
            return str(provenance[key])
    return ""


def flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A nested mapping as (dotted name, text) pairs, in the order of the names."""
    pairs: list[tuple[str, str]] = []
    for key in sorted(value, key=str):
        item, name = value[key], f"{prefix}{key}"
        if isinstance(item, Mapping) and item:
            pairs += flat(item, f"{name}.")
        else:
            pairs.append((name, _plain(item)))
    return pairs


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return ", ".join(_plain(v) for v in value)
    return json.dumps(value, sort_keys=True, default=str)
