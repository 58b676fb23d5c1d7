"""The loop a notebook calls: every capture through every arm, with gate power, written as it goes.

`verify.jsonl` is rewritten whole after each capture, so a killed run leaves finished captures behind.
On resume a record is kept when capture, arm source, device and the judging code are all the same,
whether it passed or failed: a failure is not tried again until it passes by chance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from kda_lab import runtime
from kda_lab.errors import ParameterError, Reason
from kda_lab.ops import protocol
from kda_lab.ops.protocol import Arm
from kda_lab.ops.registry import load_op
from kda_lab.run_folder import RunFolder, write_json_lines
from kda_lab.verify.launching import one_thread
from kda_lab.verify.observation import ROLES, Settings
from kda_lab.verify.power import gate_power
from kda_lab.verify.records import Record, power_record, refused_record, stress_record, to_record
from kda_lab.verify.reference import Reference, make_reference
from kda_lab.verify.replay import replay
from kda_lab.verify.stress import stress
from kda_lab.verify.verdict import Verdict, judge


@dataclass(frozen=True)
class ReplayRun:
    """What `run_replays` did. `records` holds only the records of its own captures and arms."""

    records: list[Record]
    path: Path
    """The `verify.jsonl` that was written."""
    kept: int
    """Records taken over from an earlier run of the same inputs."""

    def verdict(self) -> Verdict:
        """`judge` of these records."""
        return judge(self.records)


@dataclass
class _Sweep:
    """One call of `run_replays`: what stays the same over its captures."""

    op: Any
    device: torch.device
    arms: Sequence[tuple[Arm, str]]
    identity: Record
    """Fields that every record carries; a record with other values is not kept."""
    provenance: Record
    kept: int = 0
    earlier: dict[tuple[str, ...], Record] = field(default_factory=dict)

    def capture(self, capture: Any) -> list[Record]:
        """Records of one capture: one an arm, and its gate power."""
        wanted = [self._key(capture, "replay", arm) for arm, _ in self.arms] + [self._key(capture, "power")]
        found = {key: self.earlier[key] for key in wanted if key in self.earlier}
        self.kept += len(found)
        fresh = _Fresh(self, capture)
        records = [found.get(self._key(capture, "replay", arm)) or fresh.arm(arm, role) for arm, role in self.arms]
        return [*records, found.get(wanted[-1]) or fresh.power()]

    def _key(self, capture: Any, kind: str, arm: Arm | None = None) -> tuple[str, ...]:
        role = next((r for a, r in self.arms if a is arm), "")
        own = (arm.name, role, arm.source_sha256) if arm is not None else ("", "", "")
        return (kind, capture.name, capture.sha256, *own)


@dataclass
class _Fresh:
    """Replays of one capture that are not on record; the reference is made when the first needs it."""

    sweep: _Sweep
    capture: Any
    reference: Reference | None = None

    def arm(self, arm: Arm, role: str) -> Record:
        reason = arm.unavailable(self.sweep.device)
        if reason:
            return self._stamp(refused_record(self.capture, arm, role, reason, self.sweep.provenance))
        settings = Settings(role=role)
        done = replay(self.sweep.op, arm, self.capture, self.sweep.device, settings, reference=self._reference())
        return self._stamp(to_record(done, role, self.sweep.provenance, _twin(arm, self.sweep.device)))

    def power(self) -> Record:
        power = gate_power(self.sweep.op, self.capture, self.sweep.device, reference=self._reference())
        return self._stamp(power_record(power, self.sweep.provenance))

    def _reference(self) -> Reference:
        if self.reference is None:
            self.reference = make_reference(self.sweep.op, self.capture, self.sweep.device)
        return self.reference

    def _stamp(self, record: Record) -> Record:
        return {**record, **self.sweep.identity}


def run_replays(
    op_name: str,
    captures: Any,
    arms: Sequence[tuple[Arm, str]],
    device: torch.device | str,
    run: RunFolder,
    progress: bool = True,
    resume: bool = True,
) -> ReplayRun:
    """Replay captures through arms, measure gate power on each capture, and write `verify.jsonl`.

    Args:
        op_name: dotted name of the op.
        captures: a capture set: `.names()` and `.load(name, device)`.
        arms: (arm, role) pairs; role is `candidate`, `baseline`, `control` or `peer`.
        device: where everything runs.
        run: folder of the run; records of other captures or arms in its `verify.jsonl` stay.
        progress: show a tqdm bar.
        resume: keep records that were made from the same capture, source, device and judging code.

    Raises:
        ParameterError: no capture, no arm, an unknown role, or two arms of one name.
        VerificationError: an oracle is not sound; the records so far are on disk.
    """
    names = list(captures.names())
    _check_request(names, arms)
    op, device = load_op(op_name), torch.device(device)
    provenance = runtime.provenance(device)
    sweep = _Sweep(op, device, arms, _identity(op, device, provenance), provenance)
    before = run.read_verify()
    sweep.earlier = _reusable(before, sweep.identity) if resume else {}
    others = [r for r in before if not _replaced(r, op_name, names, arms)]
    records: list[Record] = []
    for name in tqdm(names, desc=f"replay {op_name}", unit="capture", disable=not progress):
        with one_thread(device):
            records += sweep.capture(captures.load(name))
        write_json_lines(run.verify_records, others + records)
    return ReplayRun(records, run.verify_records, sweep.kept)


def run_stress(
    op_name: str,
    captures: Any,
    arms: Sequence[tuple[Arm, str]],
    device: torch.device | str,
    run: RunFolder,
    launches: int,
) -> list[Record]:
    """Launch every candidate many times on every capture, and add the records to `verify.jsonl`.

    Args:
        op_name, captures, arms, device, run: as for `run_replays`; arms of other roles are left alone.
        launches: compared launches a capture, at least 1.

    Raises:
        VerificationError: `launches` is below 1, or an oracle is not sound.
    """
    op, device = load_op(op_name), torch.device(device)
    provenance = runtime.provenance(device)
    stamp = _identity(op, device, provenance)
    candidates = [(arm, role) for arm, role in arms if role == "candidate" and not arm.unavailable(device)]
    records = []
    for name in tqdm(captures.names(), desc=f"stress {op_name}", unit="capture"):
        reference = make_reference(op, captures.load(name), device)
        done = [(stress(arm, reference, launches), role) for arm, role in candidates]
        records += [{**stress_record(op_name, found, role, provenance), **stamp} for found, role in done]
    others = [r for r in run.read_verify() if r.get("kind") != "stress"]
    write_json_lines(run.verify_records, others + records)
    return records


def judging_sha256(op: Any) -> str:
    """SHA-256 over the source of the checks, of the op's folder and of what ops share: what a record's answer rests on."""
    ops = Path(protocol.__file__).parent
    # A folder beside the ops that is none itself is what several of them share.
    shared = {path.parent for path in ops.glob("*/*.py") if not (path.parent / "spec.py").exists()}
    files = {path for folder in {Path(__file__).parent, ops, *shared} for path in folder.glob("*.py")}
    oracle = getattr(op.oracle, "__file__", None)
    files |= set(Path(oracle).parent.glob("*.py")) if oracle else set()
    digest = hashlib.sha256()
    for path in sorted(files, key=str):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _identity(op: Any, device: torch.device, provenance: Record) -> Record:
    return {
        "judging_sha256": judging_sha256(op),
        "device": device.type,
        "device_name": provenance["device"]["name"],
        "torch": provenance["versions"]["torch"],
        "triton": provenance["versions"]["triton"],
    }


def _reusable(records: list[Record], identity: Record) -> dict[tuple[str, ...], Record]:
    """Records of replays and powers with the same identity, by key; refusals are always asked again."""
    kept = {}
    for record in records:
        if record["kind"] in ("replay", "power") and all(record.get(n) == v for n, v in identity.items()):
            own = [record.get(n, "") for n in ("arm", "role", "source_sha256")]
            key = (record["kind"], record["capture"], record["capture_sha256"], *own)
            kept[key] = record
    return kept


def _replaced(record: Record, op_name: str, names: list[str], arms: Sequence[tuple[Arm, str]]) -> bool:
    """Whether this call makes the record anew."""
    mine = record.get("op") == op_name and record.get("capture") in names
    if record.get("kind") == "power":
        return mine
    return mine and record.get("arm") in {arm.name for arm, _ in arms}


def _check_request(names: list[str], arms: Sequence[tuple[Arm, str]]) -> None:
    reasons = []
    if not names:
        reasons.append(Reason("captures", "an empty set", "at least one capture"))
    if not arms:
        reasons.append(Reason("arms", "an empty list", "at least one (arm, role) pair"))
    reasons += [
        Reason(f"role of {arm.name}", repr(role), ", ".join(ROLES), "")
        for arm, role in arms
        if role not in ROLES or role == "mutant"
    ]
    every = [arm.name for arm, _ in arms]
    twice = sorted({n for n in every if every.count(n) > 1})
    if twice:
        reasons.append(Reason("arms", repr(twice), "each name once", "Rename one of the arms."))
    if reasons:
        raise ParameterError("verify", reasons)


def _twin(arm: Arm, device: torch.device) -> str:
    """`torch twin` where one is judged in the kernel's place; the interpreter has a field of its own."""
    ask = getattr(arm, "stand_in", None)
    found = ask(device) if ask is not None else ""
    return "" if found == "interpreter" else found
