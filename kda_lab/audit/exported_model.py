"""What the audit of our own exports is made of: where things stand, one exported kernel, one outcome, the whole audit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import kda_lab
from kda_lab.audit.finding import Evidence, Finding, Frozen, Rule, Severity
from kda_lab.contracts.model import Contract

Status = Literal["passed", "failed", "noted", "not run"]

CHECKS: dict[str, Rule] = {
    "contract": "AUD-1",
    "sources": "AUD-1",
    "candidate": "AUD-1",
    "licence": "AUD-1",
    "evidence": "AUD-10",
    "claims": "AUD-10",
    "imports": "AUD-12",
    "declaration": "AUD-3",
    "signature": "AUD-3",
    "door": "AUD-4",
    "compile": "AUD-9",
    "resources": "AUD-9",
    "cubins": "AUD-9",
    "architectures": "AUD-13",
    "replay": "AUD-9",
    "path": "AUD-10",
    "gates": "AUD-9",
}
"""Every check of an exported kernel, in the order in which it runs, with the rule that it applies."""


@dataclass(frozen=True)
class Places:
    """Where an audit of our exports looks."""

    root: Path
    """The checkout: contracts cite evidence relative to it."""
    kernels: Path
    """Folder of exported kernels."""

    @classmethod
    def of_package(cls) -> Places:
        """The installed package and the checkout around it."""
        package = Path(kda_lab.__file__).parent
        return cls(package.parent, package / "kernels")

    @property
    def candidates(self) -> Path:
        """Candidate sources, one folder an op."""
        return self.root / "notebooks" / "candidates"

    @property
    def captures(self) -> Path:
        """Capture sets, one folder an op."""
        return self.root / "data" / "captures"

    @property
    def doors(self) -> Path:
        """Folder of the public doors, one module a family."""
        return self.root / "kda_lab"


class Outcome(Frozen):
    """What one check said of one kernel."""

    kernel: str
    check: str
    status: Status
    """`noted`: true, worth knowing and no fault. `not run`: nothing was judged, which is never a pass."""
    words: str
    findings: tuple[Finding, ...] = ()
    """What stands against it; not empty exactly when the status is `failed`."""


@dataclass(frozen=True)
class Exported:
    """One exported kernel whose contract is valid, as the checks see it."""

    folder: Path
    contract: Contract
    places: Places

    @property
    def name(self) -> str:
        """The kernel's name, which is its folder's."""
        return self.contract.kernel

    @property
    def host(self) -> Path:
        """The Python file that holds the entry."""
        python = [s.path for s in self.contract.sources if s.path.endswith(".py")]
        return self.folder / ("kernel.py" if "kernel.py" in python or not python else python[0])

    @property
    def compiled(self) -> Path:
        """The file that the compile units name functions of."""
        suffix = ".cu" if self.contract.language == "cuda" else ".py"
        return next((self.folder / s.path for s in self.contract.sources if s.path.endswith(suffix)), self.host)

    def passed(self, check: str, words: str) -> Outcome:
        """The check found what it should."""
        return Outcome(kernel=self.name, check=check, status="passed", words=words)

    def noted(self, check: str, words: str) -> Outcome:
        """The check found something that is no fault and should be known."""
        return Outcome(kernel=self.name, check=check, status="noted", words=words)

    def not_run(self, check: str, reason: str) -> Outcome:
        """The check judged nothing."""
        return Outcome(kernel=self.name, check=check, status="not run", words=reason)

    def judged(self, check: str, findings: Sequence[Finding], words: str) -> Outcome:
        """Failed when there are findings, otherwise passed with `words`."""
        if not findings:
            return self.passed(check, words)
        said = findings[0].lost if len(findings) == 1 else f"{findings[0].lost} (and {len(findings) - 1} more)"
        return Outcome(kernel=self.name, check=check, status="failed", words=said, findings=tuple(findings))

    def finding(
        self, check: str, severity: Severity, lost: str, test: str, file: str = "contract.json", symbol: str = ""
    ) -> Finding:
        """A finding of a check about one file of the kernel's folder."""
        return finding_of(self.name, check, severity, lost, test, file, symbol)


def finding_of(
    kernel: str, check: str, severity: Severity, lost: str, test: str, file: str, symbol: str = ""
) -> Finding:
    """A finding about a file of an exported kernel's folder, whether or not its contract can be read."""
    path = f"{kernel}/{file}"
    evidence = (Evidence(tree="package", path=path),)
    return Finding(
        rule=CHECKS[check],
        category=check,
        file=path,
        symbol=symbol,
        severity=severity,
        lost=lost,
        test=test,
        evidence=evidence,
    )


class ExportedAudit(Frozen):
    """The outcome of every check of every exported kernel, in a fixed order."""

    kernels: tuple[str, ...]
    scope: str
    """What was compiled and replayed, in words: a part, or everything."""
    compilers: dict[str, str]
    """Versions of the compilers of this machine."""
    outcomes: tuple[Outcome, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, kernel by kernel in the order of the checks."""
        return tuple(finding for outcome in self.outcomes for finding in outcome.findings)

    @property
    def passed(self) -> bool:
        """Whether no check failed. What was not run is counted beside it, never as a pass."""
        return not any(outcome.status == "failed" for outcome in self.outcomes)

    @property
    def sentence(self) -> str:
        """The verdict in one line, with what was not judged."""
        counts = {s: sum(o.status == s for o in self.outcomes) for s in ("passed", "failed", "noted", "not run")}
        told = f"{counts['passed']} checks passed, {counts['noted']} noted, {counts['not run']} not run"
        names = f"{len(self.kernels)} exported kernels"
        if self.passed:
            return f"clean: {names}, {told}"
        return f"{len(self.findings)} findings in {counts['failed']} failed checks of {names}; {told}"


def sha256_of(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
