"""From the records of a serving A/B to claims: one a candidate, a concurrency and a metric."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kda_lab.referee.claim import Claim, Control, Run, Source
from kda_lab.referee.readers.claim_file import write_claims
from kda_lab.referee.readers.text import short_name
from kda_lab.referee.serving.cell_records import RUNS, CellRecord, read_records, read_requests
from kda_lab.referee.serving.plan import CONTROL_SUFFIX, Plan

SAMPLES = 20_000
"""Values of single requests that a claim file holds at most; with more they stay in the request files."""
_STEMS = ("ttft", "tpot", "e2e")


def claims_of(folder: Path, plan: Plan) -> list[Claim]:
    """The claims that a folder's finished cells make, with the baseline's repeat as control.

    A failed cell stays in as a run that has counts and no rates, its reason in the source.

    Raises:
        RefereeError: the records are missing or damaged.
    """
    lines = list(enumerate(read_records(folder), 1))
    latest = {record.key: (line, record) for line, record in lines}
    failures = {r.key: r.failure for _, r in lines if r.status == "failed" and latest[r.key][1] is not r}
    sittings: dict[tuple[int, int], set[int]] = {}
    for _, record in latest.values():
        sittings.setdefault((record.concurrency, record.round), set()).add(record.sitting)
    runs = []
    for line, record in sorted(latest.values(), key=lambda pair: pair[1].order):
        notes = [f"failed: {record.failure}"] if record.failure else []
        notes += [f"attempt {record.attempt}, before it: {failures[record.key]}"] if record.key in failures else []
        split = len(sittings[record.concurrency, record.round])
        notes += [f"its round was measured in {split} sittings"] if split > 1 else []
        source = Source(file=short_name(folder / RUNS), line=line, note="; ".join([*notes, *record.notes]))
        runs.append(_run(folder, plan, record, source))
    return _without_many_samples(list(_claims(plan, runs)))


def write_claim_file(folder: Path, plan: Plan) -> Path:
    """Write `claims.yaml` into the folder, whole or not at all.

    Raises:
        RefereeError: the records are missing or damaged.
    """
    path = folder / "claims.yaml"
    write_claims(path, claims_of(folder, plan))
    return path


def _claims(plan: Plan, runs: list[Run]) -> Iterable[Claim]:
    candidates = [arm.name for arm in plan.arms if arm.name != plan.baseline]
    control = plan.baseline + CONTROL_SUFFIX
    for candidate in candidates:
        for concurrency in plan.concurrency:
            arms = (plan.baseline, candidate, control)
            here = tuple(r for r in runs if r.concurrency == concurrency and r.arm in arms)
            for metric in plan.metrics if here else ():
                yield Claim(
                    name=f"{candidate}-c{concurrency}-{metric}",
                    title=f"{plan.name}: {candidate} against {plan.baseline} at concurrency {concurrency}",
                    metric=metric,
                    baseline=plan.baseline,
                    candidate=candidate,
                    runs=here,
                    controls=(Control(arm=control, repeats=plan.baseline, adjacent=len(candidates) == 1),),
                    requires=("control", "rounds"),
                    margin_percent=plan.margin_percent,
                )


def _run(folder: Path, plan: Plan, record: CellRecord, source: Source) -> Run:
    arm = plan.arm(record.arm)
    requests = read_requests(folder, record) if record.status == "ok" else []
    return Run(
        arm=record.arm,
        round=record.round,
        order=record.order,
        commit=arm.commit,
        hardware=arm.hardware,
        concurrency=record.concurrency,
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
        metrics=record.metrics,
        samples={f"{stem}_mean_ms": _values(requests, f"{stem}_ms") for stem in _STEMS} if requests else {},
        resolved=record.resolved,
        cache_state=record.cache_state,
        mode=plan.mode,
        source=source,
    )


def _values(requests: list[dict[str, Any]], field: str) -> tuple[float, ...]:
    return tuple(float(r[field]) for r in requests if r.get(field) is not None)


def _without_many_samples(claims: list[Claim]) -> list[Claim]:
    count = sum(len(values) for claim in claims for run in claim.runs for values in run.samples.values())
    if count <= SAMPLES:
        return claims
    return [c.model_copy(update={"runs": tuple(r.model_copy(update={"samples": {}}) for r in c.runs)}) for c in claims]
