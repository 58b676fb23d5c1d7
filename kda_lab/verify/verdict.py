"""The verdict of a run: passed only on evidence, with one sentence, counts and every failure.

`judge` trusts no summary in a record: it derives each answer from the checks and mutants listed there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kda_lab.errors import VerificationError
from kda_lab.run_folder import RunFolder, write_json
from kda_lab.verify.checks import Check, checks_of_name

Record = dict[str, Any]
REQUIRED_ROLES = ("candidate", "baseline")
"""Roles whose replays must pass; a failing peer is a finding about the peer."""


@dataclass(frozen=True)
class Verdict:
    """What a run concluded.

    Attributes:
        passed: no failure, and there is evidence.
        sentence: one line that opens with `pass`, `fail` or `ambiguous`.
        evidence: counts by name.
        failures: one sentence each.
    """

    passed: bool
    sentence: str
    evidence: dict[str, int]
    failures: tuple[str, ...] = ()

    @classmethod
    def of(cls, finding: str, evidence: dict[str, int], failures: Sequence[str] = ()) -> Verdict:
        """Build a verdict from a finding; without any evidence (all counts 0) it is ambiguous, never a pass."""
        seen = any(count > 0 for count in evidence.values())
        word = "fail" if failures else ("pass" if seen else "ambiguous")
        because = "" if failures or seen else "no evidence: "
        return cls(word == "pass", f"{word}: {because}{finding}", dict(evidence), tuple(failures))

    @property
    def word(self) -> str:
        """`pass`, `fail` or `ambiguous`."""
        return self.sentence.split(":", 1)[0]

    def write(self, run: RunFolder) -> None:
        """Write `verdict.json` into the run's folder."""
        content = {
            "passed": self.passed,
            "sentence": self.sentence,
            "evidence": self.evidence,
            "failures": list(self.failures),
        }
        write_json(run.verdict, content)

    def raise_if_failed(self) -> None:
        """Raise unless the verdict is a pass.

        Raises:
            VerificationError: the sentence and the first ten failures.
        """
        if not self.passed:
            more = [f"… and {len(self.failures) - 10} more"] if len(self.failures) > 10 else []
            raise VerificationError("verify", " | ".join([self.sentence, *self.failures[:10], *more]))


def judge(records: Iterable[Record], required_roles: Sequence[str] = REQUIRED_ROLES) -> Verdict:
    """Judge the records of a run's `verify.jsonl`.

    A pass needs: at least one candidate replay; every replay of a required role complete and passed; for each
    capture that was replayed, a gate power with its control passed and every applicable mutant killed; every
    stress record of a required role passed. Refused arms are counted: they are no evidence and no failure.

    Args:
        records: as `records.to_record` and its neighbours make them.
        required_roles: roles whose failures fail the run.
    """
    records = list(records)
    replays = _of_kind(records, "replay")
    judged = [r for r in replays if r["role"] in required_roles]
    powers, stresses = _of_kind(records, "power"), _of_kind(records, "stress")
    failures = [f"{_where(r)}: {text}" for r in judged for text in _replay_failures(r)]
    failures += [
        f"{_where(s)}: stress failed" for s in stresses if s["role"] in required_roles and not _stress_passed(s)
    ]
    failures += [f"{p['capture']}: {text}" for p in powers for text in _power_failures(p)]
    failures += _missing_power(judged, powers)
    passed = sum(not _replay_failures(r) for r in replays)
    mutants = [m for p in powers for m in p["mutants"] if m["applies"]]
    evidence = {
        "replays": len(replays),
        "replays_passed": passed,
        "captures": len({(r["capture"], r["capture_sha256"]) for r in replays}),
        "killed": sum(bool(m["killed"]) for m in mutants),
        "mutants": len(mutants),
        "stressed_launches": sum(s["launches"] for s in stresses),
        "refused": len(_of_kind(records, "refused")),
    }
    return _conclude(evidence, failures, _by_role(replays), _stand_ins(replays))


def _stand_ins(replays: list[Record]) -> str:
    """`; streamed through its torch twin`; empty where every kernel ran itself or in the interpreter."""
    found = dict.fromkeys((r["arm"], r["stand_in"]) for r in replays if r.get("stand_in"))
    return "".join(f"; {arm} through its {what}" for arm, what in found)


def _by_role(replays: list[Record]) -> dict[str, tuple[int, int]]:
    """Role to how many of its replays passed, and how many there are, in order of appearance."""
    counts: dict[str, tuple[int, int]] = {}
    for record in replays:
        passed, total = counts.get(record["role"], (0, 0))
        counts[record["role"]] = (passed + (not _replay_failures(record)), total + 1)
    return counts


def _conclude(
    evidence: dict[str, int], failures: list[str], by_role: dict[str, tuple[int, int]], stand_ins: str
) -> Verdict:
    words = [f"{role} passed {passed} of {total} replays" for role, (passed, total) in by_role.items()]
    finding = (
        f"{', '.join(words) or 'no replay'} on {evidence['captures']} captures;"
        f" killed {evidence['killed']}/{evidence['mutants']} mutants; {evidence['refused']} refused{stand_ins}"
    )
    if not failures and "candidate" not in by_role:
        return Verdict(False, f"ambiguous: no evidence, since no candidate was replayed: {finding}", evidence)
    return Verdict.of(finding, evidence, failures)


def _of_kind(records: list[Record], kind: str) -> list[Record]:
    return [r for r in records if r.get("kind") == kind]


def _where(record: Record) -> str:
    return f"{record['arm']} on {record['capture']}"


def _replay_failures(record: Record) -> list[str]:
    found = {c["name"]: c for c in record["checks"]}
    wanted = checks_of_name(record["op"])
    absent = [c.name for c in wanted if c.name not in found and not _excused(record, c)]
    failed = [
        f"{n} failed: value {c['value']!r}, limit {c['limit']!r}. {c['detail']}" for n, c in found.items() if not _ok(c)
    ]
    return failed + [f"check {n} is missing" for n in absent]


def _excused(record: Record, check: Check) -> bool:
    """Whether a check may be absent: for a stated reason, and never what this record could have shown."""
    if not check.optional or not record["skipped"].get(check.name):
        return False
    if check.name == "error_pinned":
        return record["errors"].get("pinned") is None
    return bool(record["role"] != "candidate")


def _ok(check: Record) -> bool:
    value, limit = check["value"], check["limit"]
    return bool(check["passed"]) and value is not None and limit is not None and value <= limit


def _stress_passed(record: Record) -> bool:
    clean = not record["failure"] and not record["nonzero_state"] and record["differing"] == 0
    return clean and record["launches"] > 0


def _power_failures(record: Record) -> list[str]:
    applied = [m for m in record["mutants"] if m["applies"]]
    survivors = [m["name"] for m in applied if not m["killed"]]
    failures = []
    if not record["control"]["passed"]:
        failed = ", ".join(record["control"]["failed"])
        failures.append(f"gate power is void: the emulated arithmetic itself fails {failed}")
    if not applied:
        failures.append("no mutant applies, so the gates have no proved power")
    if survivors:
        failures.append(f"killed {len(applied) - len(survivors)}/{len(applied)}; survivors: {', '.join(survivors)}")
    return failures


def _missing_power(judged: list[Record], powers: list[Record]) -> list[str]:
    have = {(p["op"], p["capture"], p["capture_sha256"]) for p in powers}
    need = {(r["op"], r["capture"], r["capture_sha256"]): r["capture"] for r in judged}
    return [f"{name}: gate power is missing" for key, name in sorted(need.items()) if key not in have]
