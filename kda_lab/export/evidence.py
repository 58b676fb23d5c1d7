"""The run records that speak for one candidate source, per architecture, and the gates re-checked on them.

Nothing is believed because a run says it passed: replays and gate power are judged again from their
checks and mutants, and every record must carry the SHA-256 of the very source that is exported.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kda_lab.contracts.model import Declaration
from kda_lab.errors import ExportError, Reason
from kda_lab.export.candidate import Candidate
from kda_lab.export.limits import check_limits
from kda_lab.export.run_records import check_distinct, read_records
from kda_lab.run_folder import RunFolder
from kda_lab.timing import statistics
from kda_lab.timing.protocol import Protocol
from kda_lab.verify import verdict

Record = dict[str, Any]
Capability = tuple[int, int]
SIZE_LIMIT_BYTES = 1_000_000


@dataclass
class ArchitectureEvidence:
    """Records of one compute capability, on real hardware, for one source."""

    capability: Capability
    replays: list[Record] = field(default_factory=list)
    powers: list[Record] = field(default_factory=list)
    stresses: list[Record] = field(default_factory=list)
    """Of the candidate's arm; a run may have none."""
    timings: list[Record] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    """`timing.statistics.RowResult` of the candidate against the baseline, one a row: these decide what is dispatched."""
    peer_rows: list[Any] = field(default_factory=list)
    """The same against each peer: shown beside, deciding nothing."""
    runs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Run name to the SHA-256 of each record file that was read."""

    @property
    def name(self) -> str:
        """`sm90` for (9, 0)."""
        return "sm{}{}".format(*self.capability)

    @property
    def provenance(self) -> Record:
        """Provenance of the first replay: code, packages, device."""
        found: Record = self.replays[0]["provenance"]
        return found


def collect(runs: Sequence[RunFolder], candidate: Candidate) -> dict[Capability, ArchitectureEvidence]:
    """Sort the records of all runs that concern the candidate by the capability they ran on.

    Records from a CPU or the interpreter qualify nothing and are left out, but a failed one still fails.

    Raises:
        ExportError: gate `evidence`: no run given, two runs of one name or with the same records, a record that
            cannot be read, no record of this source, or a record of the same arm with another source.
    """
    if not runs:
        raise ExportError("export.evidence", [Reason("runs", "()", "at least one run folder")])
    names = [run.name for run in runs]
    if len(set(names)) != len(names):
        raise ExportError("export.evidence", [Reason("runs", repr(names), "runs with different names")])
    check_distinct(runs)
    found: dict[Capability, ArchitectureEvidence] = {}
    for run in runs:
        _collect_run(run, candidate, found)
    if not found:
        remedy = f"Run verification and timing of {candidate.path.name} on a GPU, as the file is now."
        given = f"no GPU record with source_sha256 {candidate.sha256[:12]}…"
        raise ExportError("export.evidence", [Reason("runs", given, "records of this very source", remedy)])
    return found


def _collect_run(run: RunFolder, candidate: Candidate, found: dict[Capability, ArchitectureEvidence]) -> None:
    verify, timing = read_records(run.verify_records), read_records(run.timing_records)
    arms = _arm_names([*verify, *timing], candidate, run.name)
    for kind, words in (("replay", "replays"), ("stress", "stress")):
        failed = [r["capture"] for r in verify if r["kind"] == kind and r["arm"] in arms and not r["passed"]]
        if failed:
            raise ExportError(
                "export.replays", f"{run.name}: {words} of {candidate.path.name} failed on {', '.join(failed)}"
            )
    for record in [*verify, *timing]:
        capability = _hardware(record)
        if capability is None or (record.get("role") == "candidate" and record["arm"] not in arms):
            continue
        evidence = found.setdefault(capability, ArchitectureEvidence(capability))
        evidence.runs.setdefault(run.name, _file_hashes(run))
        _keep(evidence, record, arms)
    for evidence in found.values():
        if run.name in evidence.runs:
            _summarise(evidence, [r for r in timing if _counts(r, evidence.capability)], arms)
    for capability in [c for c, e in found.items() if not (e.replays or e.timings)]:
        del found[capability]


def _summarise(evidence: ArchitectureEvidence, timing: Sequence[Record], arms: set[str]) -> None:
    evidence.rows += [r for r in statistics.summarise(timing) if r.arm in arms]
    for peer in dict.fromkeys(r["arm"] for r in timing if r["kind"] == "timing" and r["role"] == "peer"):
        concerned = [r for r in timing if r["arm"] == peer or r["arm"] in arms or r["role"] in ("baseline", "control")]
        evidence.peer_rows += [r for r in statistics.summarise(concerned, baseline=peer) if r.arm in arms]


def _counts(record: Record, capability: Capability) -> bool:
    """Whether a timing record may support a claim: cold graph protocol, this architecture. Warm and eager rows are context."""
    return _hardware(record) in (capability, None) and record.get("protocol") in (Protocol().name, "")


def _keep(evidence: ArchitectureEvidence, record: Record, arms: set[str]) -> None:
    if record["kind"] == "replay" and record["arm"] in arms:
        evidence.replays.append(record)
    elif record["kind"] == "stress" and record["arm"] in arms:
        evidence.stresses.append(record)
    elif record["kind"] == "power":
        evidence.powers.append(record)
    elif record["kind"] == "timing" and record["arm"] in arms:
        evidence.timings.append(record)


def _arm_names(records: Iterable[Record], candidate: Candidate, run: str) -> set[str]:
    """Names under which this source was judged in a run; a name with two sources is stale evidence."""
    sources: dict[str, set[str]] = {}
    for record in records:
        if record.get("role") == "candidate" and record["kind"] in ("replay", "timing", "stress"):
            sources.setdefault(record["arm"], set()).add(record.get("source_sha256", ""))
    mine = {arm for arm, found in sources.items() if candidate.sha256 in found}
    stale = {arm: found for arm, found in sources.items() if arm == candidate.path.stem and found != {candidate.sha256}}
    stale |= {arm: sources[arm] for arm in mine if sources[arm] != {candidate.sha256}}
    if stale:
        given = ", ".join(f"{arm}: {sorted(s[:12] or 'absent' for s in found)}" for arm, found in sorted(stale.items()))
        remedy = f"{run} judged another version of {candidate.path.name}: run it again."
        raise ExportError("export.evidence", [Reason("source_sha256", repr(given), candidate.sha256[:12], remedy)])
    return mine


def _hardware(record: Record) -> Capability | None:
    """Capability that a record ran on; None for the CPU, the interpreter, a twin and records without provenance."""
    device = record.get("provenance", {}).get("device", {})
    if device.get("type") != "cuda" or device.get("interpreter") or record.get("interpreter"):
        return None
    # On a machine with a GPU a replay may have run on the CPU, where a kernel's torch twin answers.
    if record.get("stand_in") or not str(record.get("device", "cuda")).startswith("cuda"):
        return None
    major, minor = device["capability"]
    return int(major), int(minor)


def _file_hashes(run: RunFolder) -> dict[str, str]:
    files = (run.verify_records, run.timing_records, run.verdict, run.parameters, run.provenance)
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files if p.exists()}


def check_replays(evidence: ArchitectureEvidence, captures: dict[str, str]) -> None:
    """Gate `replays`: judged again from the checks, and every capture of the sets was replayed.

    Args:
        captures: name to SHA-256 of every capture that the export knows.

    Raises:
        ExportError: a check failed, is missing or had a laxer limit than the op's gates give, a stress failed, a
            mutant survived, or a capture has no replay of these bytes.
    """
    for record in evidence.replays:
        check_limits(record)
    judged = verdict.judge([*evidence.replays, *evidence.powers, *evidence.stresses])
    if not judged.passed:
        raise ExportError("export.replays", f"{evidence.name}: {' | '.join([judged.sentence, *judged.failures[:5]])}")
    seen = {(r["capture"], r["capture_sha256"]) for r in evidence.replays}
    missing = [name for name, digest in captures.items() if (name, digest) not in seen]
    if missing or not captures:
        given = f"no replay of {', '.join(missing)}" if missing else "no captures"
        reason = Reason(
            f"{evidence.name} replays", repr(given), "a replay of every capture", "Run verification on all of them."
        )
        raise ExportError("export.replays", [reason])


def check_scalars(evidence: ArchitectureEvidence, declaration: Declaration) -> None:
    """Gate `replays`: every allowed value of a scalar that is a dtype was replayed, on this architecture.

    A kernel may write FP32 by another path than BF16; replays of one say nothing of the other. A record without
    the field `scalars` counts for no value.

    Raises:
        ExportError: a value has no passed replay; the value and the run to add are named.
    """
    reasons = []
    replayed = [r.get("scalars", {}) for r in evidence.replays if r["passed"]]
    for name, gate in declaration.scalars.items():
        values = gate.allowed or ()
        if gate.kind != "dtype" or len(set(values)) < 2:
            continue
        missing = [v for v in values if all(scalars.get(name) != v for scalars in replayed)]
        if missing:
            wanted = " and ".join(f"{name}={v}" for v in missing)
            remedy = f"Add a run that verifies rows or captures with {wanted}, or narrow CONTRACT.scalars.{name}."
            allowed = f"a passed replay of each of {', '.join(map(str, values))}"
            reasons.append(Reason(f"{evidence.name} {name}", f"no replay of {missing}", allowed, remedy))
    if reasons:
        raise ExportError("export.replays", reasons)


def check_power(evidence: ArchitectureEvidence) -> None:
    """Gate `power`: every capture's gates killed every mutant that applies.

    Raises:
        ExportError: fewer killed than there are, or a count of zero.
    """
    weak = [
        f"{p['capture']} {p['killed']}/{p['total']}"
        for p in evidence.powers
        if p["killed"] != p["total"] or not p["total"]
    ]
    if weak or not evidence.powers:
        given = ", ".join(weak) or "no power record"
        raise ExportError(
            "export.power", [Reason(f"{evidence.name} killed", repr(given), "every mutant, and at least one")]
        )


def check_timing(evidence: ArchitectureEvidence, declaration: Declaration) -> None:
    """Gate `timing`: every trial was judged again after timing and launched the declared kernels.

    Raises:
        ExportError: no trial, a failed recheck, another count of kernels than `kernels_per_call`, or none of the
            functions that the compile units name.
    """
    named = sorted({unit.function.split("<")[0].strip() for unit in declaration.compile_units})
    kept = [r for r in evidence.timings if not r["dropped"]]
    reasons = [] if kept else [Reason(f"{evidence.name} trials", "0", "at least one kept trial")]
    for record in evidence.timings:
        where = f"{evidence.name} {record['row']} trial {record['trial']}"
        # A trial dropped for its wrong result is still a wrong result.
        if not record["recheck"]["passed"]:
            reasons.append(Reason(f"{where} recheck", repr(record["recheck"]), "a passed recheck"))
        seen = record["kernels"] or {}
        # A profiler shows C++ names mangled or with their arguments, so the name is looked for inside.
        if seen and not any(name in kernel for kernel in seen for name in named):
            reasons.append(Reason(f"{where} kernels", repr(seen)[:200], f"a function of compile_units: {named}"))
        if sum(seen.values()) != declaration.kernels_per_call:
            remedy = "CONTRACT.kernels_per_call must be what the profiler saw."
            allowed = f"{declaration.kernels_per_call} a call"
            reasons.append(Reason(f"{where} kernels", repr(record["kernels"]), allowed, remedy))
    if reasons:
        raise ExportError("export.timing", reasons[:5])


def consolidated(evidence: ArchitectureEvidence, candidate: Candidate) -> bytes:
    """The committed evidence file of one architecture: compact JSON of what the contract's claims rest on.

    Raises:
        ExportError: it would be larger than `SIZE_LIMIT_BYTES`.
    """
    content = {
        "kernel": candidate.declaration.kernel,
        "op": candidate.declaration.op,
        "capability": list(evidence.capability),
        "source_sha256": candidate.sha256,
        "runs": evidence.runs,
        "provenance": evidence.provenance,
        "replays": [_replay_summary(r) for r in evidence.replays],
        "power": [{k: p[k] for k in ("capture", "killed", "total", "mutants")} for p in evidence.powers],
        "rows": [dataclasses.asdict(r) for r in evidence.rows],
    }
    data = (json.dumps(content, sort_keys=True, allow_nan=False, separators=(",", ":")) + "\n").encode()
    if len(data) > SIZE_LIMIT_BYTES:
        reason = Reason(
            f"{evidence.name} evidence bytes", repr(len(data)), f"at most {SIZE_LIMIT_BYTES}", "Name fewer runs."
        )
        raise ExportError("export.evidence", [reason])
    return data


def _replay_summary(record: Record) -> Record:
    kept = {k: record[k] for k in ("capture", "capture_sha256", "capture_kind", "axes", "errors", "passed")}
    # Of ops whose scalars include a dtype only.
    kept |= {k: record[k] for k in ("scalars",) if k in record}
    return {**kept, "checks": {c["name"]: [c["value"], c["limit"]] for c in record["checks"]}}
