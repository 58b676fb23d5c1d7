"""What an audit hands back: evidence, one finding, the class of each file, and the audit with its verdict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field

Rule = Literal[
    "AUD-1",
    "AUD-2",
    "AUD-3",
    "AUD-4",
    "AUD-5",
    "AUD-6",
    "AUD-7",
    "AUD-8",
    "AUD-9",
    "AUD-10",
    "AUD-11",
    "AUD-12",
    "AUD-13",
]
Severity = Literal["crash", "silent-wrong", "performance", "cosmetic"]
SEVERITIES: tuple[Severity, ...] = ("crash", "silent-wrong", "performance", "cosmetic")
"""From the worst to the mildest."""

FileClass = Literal["identical", "differs", "missing", "extra", "equals-merge-base"]

RULES: dict[Rule, str] = {
    "AUD-1": "byte identity",
    "AUD-2": "symbols",
    "AUD-3": "signatures",
    "AUD-4": "call-site binding",
    "AUD-5": "decorators, launches, flags",
    "AUD-6": "guards, masks, branches",
    "AUD-7": "live callers",
    "AUD-8": "superset files",
    "AUD-9": "cold compile and replay",
    "AUD-10": "path proof",
    "AUD-11": "moved or retyped",
    "AUD-12": "self-comparison",
    "AUD-13": "architectures in the artifact",
}


def _one_line(text: str) -> str:
    """Text of somebody's source as it may be printed: no line breaks, no control characters."""
    return "".join(c if c.isprintable() else " " for c in text)


Words = Annotated[str, AfterValidator(_one_line)]


class Frozen(BaseModel):
    """Base of the audit's records: immutable, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Evidence(Frozen):
    """One place that a finding rests on."""

    tree: str
    """`source`, `export` or `base`; of our own exports `package`, `candidate` or `artifact`."""
    path: str
    """Relative to the root of the tree, with forward slashes."""
    line: int = 0
    """Counted from 1; 0 means the file as a whole."""
    text: Words = ""
    """The line, or the condition that guards it; at most 160 characters are printed."""

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{self.tree} {place}"


class Finding(Frozen):
    """One loss, or one difference that nobody has explained yet."""

    rule: Rule
    category: str = Field(serialization_alias="class", validation_alias=AliasChoices("class", "category"))
    """What kind of difference: `missing symbol`, `lost guard`; `class` in the JSON."""
    file: str
    """Relative path of the file that the finding is about."""
    symbol: str = ""
    """Qualified name in the file (`Outer.method`); empty: the file as a whole."""
    severity: Severity
    lost: Words
    """One sentence: what was lost or changed."""
    test: str
    """The cheapest test that confirms or refutes it."""
    evidence: tuple[Evidence, ...] = ()
    allowed: str = ""
    """The allow-list's reason; empty: nobody has allowed it."""

    @property
    def order(self) -> tuple[str, int, str, str, str]:
        """Sort key: file, rule, symbol, category, words; the same audit has the same order everywhere."""
        return (self.file, int(self.rule.split("-")[1]), self.symbol, self.category, self.lost)


class FileState(Frozen):
    """The class of one file (AUD-1)."""

    path: str
    state: FileClass
    cosmetic: bool = False
    """The bytes differ, the code does not: comments, formatting, docstrings, names of locals."""
    sha256: dict[str, str] = {}
    """Tree to the hash of the file there; a tree without the file is left out."""


class Audit(Frozen):
    """The outcome of one audit: every file's class and every finding, in a fixed order."""

    source: str
    """What was audited, as it was named: a folder or `REPO@REV`."""
    export: str
    base: str = ""
    scope: tuple[str, ...] = ()
    semantic: bool = False
    """Cosmetic findings are listed and do not fail the audit."""
    files: tuple[FileState, ...] = ()
    findings: tuple[Finding, ...] = ()
    stale: tuple[str, ...] = ()
    """Entries of the allow-list that allowed nothing; each fails the audit."""
    notes: tuple[str, ...] = ()
    """What was not judged, and why: `AUD-8 not judged: no base was given`."""

    @property
    def failing(self) -> tuple[Finding, ...]:
        """The findings that fail the audit: neither allowed nor, in semantic mode, cosmetic."""
        return tuple(f for f in self.findings if not f.allowed and not (self.semantic and f.severity == "cosmetic"))

    @property
    def passed(self) -> bool:
        """Whether nothing fails: no finding that stands and no stale entry."""
        return not self.failing and not self.stale

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        counts = [f"{n} {s}" for s in SEVERITIES if (n := sum(f.severity == s for f in self.failing))]
        allowed = sum(bool(f.allowed) for f in self.findings)
        tail = f"; {allowed} allowed" if allowed else ""
        stale = f"; {len(self.stale)} stale allow-list entries" if self.stale else ""
        if self.passed:
            return f"clean: {len(self.files)} files, no finding stands{tail}"
        return f"{len(self.failing)} findings in {len(self.files)} files ({', '.join(counts) or 'none'}){tail}{stale}"


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings sorted by file, rule and symbol, exact duplicates once."""
    unique = {finding.model_dump_json(): finding for finding in findings}
    return tuple(sorted(unique.values(), key=lambda finding: finding.order))
