"""Timing records: their fields, the rules that make a record believable, and JSON Lines, tables and Parquet."""

from __future__ import annotations

import io
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kda_lab.errors import Reason, TimingError
from kda_lab.run_folder import write_atomic
from kda_lab.timing.protocol import COLD_L2_MULTIPLE

if TYPE_CHECKING:
    import pandas

Role = Literal["baseline", "control", "candidate", "peer"]
State = Literal["cold", "warm", "invalid"]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TelemetryRecord(_Data):
    """One reading of the GPU while it worked; a field that could not be read is None and named in `reason`."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    throttle: tuple[str, ...] | None
    other_processes: int | None
    reason: str = ""


class Recheck(_Data):
    """The timed graph, replayed on changed inputs and poisoned outputs, and judged."""

    passed: bool
    error: float | None
    """Worst relative L2 error of the judged sets against the FP32 oracle; None when it is not finite."""
    limit: float
    detail: str = ""
    """What failed, in words; empty when it passed."""


class RefusedRecord(_Data):
    """An arm that could not run on a row."""

    kind: Literal["refused"] = "refused"
    op: str
    row: str
    axes: dict[str, Any]
    arm: str
    role: Role
    reason: str = Field(min_length=1)
    protocol: str = ""
    source_sha256: str = ""
    provenance: dict[str, Any] = Field(default_factory=dict)


class TimingRecord(_Data):
    """One trial of one arm on one row."""

    kind: Literal["timing"] = "timing"
    op: str
    row: str
    axes: dict[str, Any]
    arm: str
    role: Role
    baseline: str
    trial: int = Field(ge=0)
    order: int = Field(ge=0)
    """Position within the trial."""
    state: State
    state_reason: str = ""
    """Why the state is not cold."""
    dropped: str = ""
    """Why the trial does not count; empty when it does."""
    samples_us: tuple[float, ...] = Field(min_length=1)
    """Time per call of each replay, unrounded."""
    median_us: float = Field(gt=0)
    calls_per_graph: int = Field(ge=1)
    input_sets: int = Field(ge=1)
    bytes_per_call: int = Field(gt=0)
    bytes_rotated: int
    l2_bytes: int = Field(gt=0)
    flops: int = Field(ge=0)
    bandwidth_gb_s: float
    copy_bandwidth_gb_s: float = Field(gt=0)
    read_bandwidth_gb_s: float = Field(gt=0)
    roof_us: float = Field(gt=0)
    kernels: dict[str, int] | None
    kernels_reason: str = ""
    prepare_us: float = Field(ge=0)
    """Wall time of binding all input sets: plans, compiles, scratch."""
    timer: str
    telemetry: TelemetryRecord
    recheck: Recheck
    protocol: str
    source_sha256: str = ""
    """Of the arm's source; empty for libraries."""
    provenance: dict[str, Any]

    @model_validator(mode="after")
    def _believable(self) -> TimingRecord:
        for holds, sentence in self._rules():
            if not holds:
                raise ValueError(sentence)
        return self

    def _rules(self) -> list[tuple[bool, str]]:
        rotated = self.input_sets * self.bytes_per_call
        needed = COLD_L2_MULTIPLE * self.l2_bytes
        interpreted = bool(self.provenance.get("device", {}).get("interpreter", False))
        return [
            (not interpreted, "provenance says interpreter; a time of the interpreter is never recorded"),
            (all(s > 0 for s in self.samples_us), "samples_us holds a time that is not above 0"),
            (
                math.isclose(self.median_us, statistics.median(self.samples_us)),
                "median_us is not the median of samples_us",
            ),
            (self.bytes_rotated == rotated, "bytes_rotated is not input_sets x bytes_per_call"),
            (self.calls_per_graph % self.input_sets == 0, "calls_per_graph is not a multiple of input_sets"),
            (self.state != "cold" or rotated >= needed, "state is cold, but bytes_rotated is below 5 x l2_bytes"),
            (self.state == "cold" or bool(self.state_reason), "state is not cold and state_reason is empty"),
            (self.recheck.passed == (self.recheck.detail == ""), "recheck.detail must say what failed, and only then"),
            (
                not self.recheck.passed
                or (self.recheck.error is not None and self.recheck.error <= self.recheck.limit),
                "recheck passed with an error above its limit",
            ),
            (self.recheck.passed or self.state == "invalid", "recheck failed and state is not invalid"),
            (
                (self.kernels is None) == bool(self.kernels_reason),
                "kernels is None without kernels_reason, or the reverse",
            ),
        ]


def validated(record: dict[str, Any]) -> dict[str, Any]:
    """The record, checked and completed with its defaults; JSON types only.

    Raises:
        TimingError: one reason for each field that is wrong.
    """
    return checked(RefusedRecord if record.get("kind") == "refused" else TimingRecord, record)


def checked(model: type[BaseModel], record: dict[str, Any]) -> dict[str, Any]:
    """The record as its model completes it; JSON types only.

    Raises:
        TimingError: one reason for each field that is wrong.
    """
    try:
        return model.model_validate(record).model_dump(mode="json")
    except ValidationError as error:
        reasons = [
            Reason(
                ".".join(["record", *(str(part) for part in e["loc"])]),
                repr(e["input"])[:120],
                e["msg"].removeprefix("Value error, "),
            )
            for e in error.errors()
        ]
        raise TimingError("timing", reasons) from error


def to_jsonl(records: Iterable[dict[str, Any]]) -> str:
    """The records as JSON Lines, each validated first."""
    return "".join(json.dumps(validated(r), sort_keys=True, allow_nan=False) + "\n" for r in records)


def to_frame(records: Sequence[dict[str, Any]]) -> pandas.DataFrame:
    """One table row a record: telemetry and recheck become dotted columns, axes `axes.<name>`, the rest JSON text."""
    import pandas  # lazy: pandas

    return pandas.DataFrame([_flat(validated(r)) for r in records])


def write_parquet(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the table of `to_frame` as one Parquet file, whole or not at all."""
    buffer = io.BytesIO()
    to_frame(records).to_parquet(buffer, index=False)
    write_atomic(path, buffer.getvalue())


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if name in ("telemetry", "recheck"):
            flat.update({f"{name}.{key}": _cell(inner) for key, inner in value.items()})
        elif name == "axes":
            # An axis may hold a number in one row and a word in another: text keeps the column's type one.
            flat.update(
                {f"axes.{key}": inner if isinstance(inner, str) else json.dumps(inner) for key, inner in value.items()}
            )
        elif name != "samples_us":
            flat[name] = _cell(value)
        else:
            flat[name] = value
    return flat


def _cell(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, (dict, list)) else value
