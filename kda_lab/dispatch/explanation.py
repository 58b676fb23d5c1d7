"""The printable answer to: which kernel would this call get, and why not the others?"""

from __future__ import annotations

from dataclasses import dataclass

from kda_lab.dispatch.fallback import FallbackVerdict
from kda_lab.dispatch.selection import Choice, KernelVerdict


@dataclass(frozen=True)
class Explanation:
    """A choice with what would happen; nothing was launched or imported to make it."""

    choice: Choice
    outcome: str
    """`kernel grouped`, `fallback torch` or `raises ContractError`."""
    not_asked: tuple[str, ...] = ()
    """Fallbacks of the op that were not asked, since something before them decides."""

    @property
    def kernel(self) -> str:
        """The kernel that would run; empty when none would."""
        return self.choice.kernel

    def __str__(self) -> str:
        forced = f" (forced: {self.choice.forced})" if self.choice.forced else ""
        lines = [f"{self.choice.op}: {self.outcome}{forced}"]
        lines += [f"  every kernel: {reason}" for reason in self.choice.general]
        for verdict in self.choice.verdicts:
            lines += _verdict_lines(verdict)
        for asked in self.choice.chain:
            lines += _fallback_lines(asked)
        if self.not_asked:
            lines.append(f"  fallback {', '.join(self.not_asked)}: not asked")
        if len(self.choice.accepted) > 1:
            lines += [f"  {reason}" for reason in self.choice.reasons()]
        return "\n".join(lines)


def _verdict_lines(verdict: KernelVerdict) -> list[str]:
    answer = "accepts" if verdict.accepted else "rejects"
    head = f"  {verdict.kernel} version {verdict.version} {answer} ({verdict.shapes} shapes)"
    return [head, *(f"    {reason}" for reason in verdict.reasons)]


def _fallback_lines(asked: FallbackVerdict) -> list[str]:
    what = {"function": "", "kernel": " (callable shapes)", "absent": ""}[asked.kind]
    head = f"  fallback {asked.name} {'accepts' if asked.accepted else 'rejects'}{what}"
    return [head, *(f"    {reason}" for reason in asked.reasons)]
