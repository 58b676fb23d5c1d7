"""Records of `chain.jsonl`: checks, timed trials and refusals of chains, each believable or refused."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kda_lab.errors import Reason, TimingError
from kda_lab.run_folder import RunFolder
from kda_lab.timing.protocol import COLD_L2_MULTIPLE
from kda_lab.timing.records import Recheck, TelemetryRecord, checked

FILE = "chain.jsonl"
Role = Literal["reference", "control", "policy", "baseline", "peer", "state"]
"""`reference`: the policy that others are compared with. `control`: it again (A/A). `state`: no products."""


def chain_records(run: RunFolder) -> Path:
    """Where a run keeps its chain records."""
    return run.path / FILE


class _Shared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    op: str
    axes: dict[str, Any]
    layers: int = Field(ge=2)
    state_bytes: int = Field(ge=0)
    """Of one layer, as planned."""
    arm: str
    role: Role
    source_sha256: str = ""
    provenance: dict[str, Any]


class RefusedChain(_Shared):
    """An arm that could not run in the chain."""

    kind: Literal["refused"] = "refused"
    device: str = ""
    reason: str = Field(min_length=1)


class CheckRecord(_Shared):
    """One pass of an arm's chain, untimed, judged."""

    kind: Literal["check"] = "check"
    device: str
    interpreter: bool
    recheck: Recheck
    outputs_sha256: str
    """Over the outputs of every product; empty for the chain without products."""


class ChainRecord(_Shared):
    """One trial of one arm's chain."""

    kind: Literal["chain"] = "chain"
    reference: str
    trial: int = Field(ge=0)
    order: int = Field(ge=0)
    """Position within the trial."""
    dropped: str = ""
    """Why the trial does not count; empty when it does."""
    samples_us: tuple[float, ...] = Field(min_length=1)
    """Time per layer of each replay, unrounded."""
    median_us: float = Field(gt=0)
    passes_per_graph: int = Field(ge=1)
    """Passes over all layers in one graph."""
    product_bytes: int = Field(ge=0)
    """Least bytes that the products of one layer move; 0 for the chain without products."""
    touches_per_layer: int = Field(ge=0)
    l2_bytes: int = Field(gt=0)
    cold_products: bool
    """Whether a pass moves at least 5 x L2 of weights, so that none survive to the next pass."""
    l2_reset_reason: str
    """Why lines that another arm asked the L2 to keep were not given back before the trial; empty when they were."""
    copy_bandwidth_gb_s: float = Field(gt=0)
    roof_us: float = Field(ge=0)
    """Time of one layer's products at the copy rate."""
    kernels: dict[str, dict[str, int] | None]
    """Step kind to the device activities of one such step; `chain` has those of a whole pass."""
    kernels_reason: str = ""
    timer: str
    telemetry: TelemetryRecord
    recheck: Recheck
    outputs_sha256: str
    protocol: str

    @model_validator(mode="after")
    def _believable(self) -> ChainRecord:
        for holds, sentence in self._rules():
            if not holds:
                raise ValueError(sentence)
        return self

    def _rules(self) -> list[tuple[bool, str]]:
        interpreted = bool(self.provenance.get("device", {}).get("interpreter", False))
        cold = self.layers * self.product_bytes >= COLD_L2_MULTIPLE * self.l2_bytes
        silent = any(counts is None for counts in self.kernels.values())
        return [
            (not interpreted, "provenance says interpreter; a time of the interpreter is never recorded"),
            (all(s > 0 for s in self.samples_us), "samples_us holds a time that is not above 0"),
            (
                math.isclose(self.median_us, statistics.median(self.samples_us)),
                "median_us is not the median of samples_us",
            ),
            (self.cold_products == cold, "cold_products is not layers x product_bytes >= 5 x l2_bytes"),
            (self.recheck.passed == (self.recheck.detail == ""), "recheck.detail must say what failed, and only then"),
            (self.recheck.passed or bool(self.dropped), "recheck failed and the trial is not dropped"),
            (silent == bool(self.kernels_reason), "kernels are missing without kernels_reason, or the reverse"),
            ((self.role == "state") == (self.outputs_sha256 == ""), "outputs_sha256 is empty where there are products"),
        ]


_MODELS: dict[str, type[_Shared]] = {"chain": ChainRecord, "check": CheckRecord, "refused": RefusedChain}


def validated(record: dict[str, Any]) -> dict[str, Any]:
    """The record, checked and completed with its defaults; JSON types only.

    Raises:
        TimingError: one reason for each field that is wrong.
    """
    model = _MODELS.get(str(record.get("kind")))
    if model is None:
        raise TimingError("timing", [Reason("record.kind", repr(record.get("kind")), ", ".join(_MODELS))])
    return checked(model, record)
