"""Two versions of one function side by side: what a check reads, and the multiset difference that every check takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kda_lab.audit.finding import Evidence, Finding, Rule, Severity
from kda_lab.audit.normal import Expressions
from kda_lab.audit.parsing import PythonFile, Unit

CONFIRM = {
    "lost guard": "Call it with an input that the guard refused (a wrong stride, shape or dtype): it must raise.",
    "lost mask": "Run it at an extent that is no power of two, beside poisoned memory, and compare with the oracle.",
    "weaker mask": "Run it at an extent that is no power of two, beside poisoned memory, and compare with the oracle.",
    "lost branch": "Time a shape that took the branch in both trees, and compare the outputs bit by bit.",
    "lost call": "Time a shape that took this path in both trees, and compare the outputs bit by bit.",
    "lost arch condition": "Run, or compile for, an architecture on either side of the condition.",
    "changed decorator": "Count the compilations over 20 lengths in both trees, and time one shape.",
    "changed launch": "Time one shape in both trees; read num_warps, num_stages and PDL from the compiled kernel.",
    "changed grid": "Compare outputs bit by bit at a size that the tile does not divide.",
    "lost PDL": "Look for griddepcontrol in the PTX, and time two dependent launches in one graph.",
    "lost environment variable": "Set the variable and show that the behaviour follows it.",
    "changed compile flags": "Print the compiler's command line on each platform in both trees.",
}


@dataclass(frozen=True)
class Item:
    """One thing that a function has: a guard, a mask, an option."""

    category: str
    key: str
    """Equal for the same thing in both versions."""
    words: str
    line: int
    parts: frozenset[str] = field(default=frozenset(), compare=False)
    """Keys of the conditions that it stands under."""


@dataclass(frozen=True)
class Version:
    """One function in one tree."""

    role: str
    path: str
    file: PythonFile
    unit: Unit

    @cached_property
    def expressions(self) -> Expressions:
        return Expressions(self.unit.function)

    def evidence(self, line: int = 0, text: str = "") -> Evidence:
        """A line of this version; the line of the definition where none is named."""
        at = line or self.unit.line
        return Evidence(tree=self.role, path=self.path, line=at, text=text or self.file.line_text(at))


@dataclass(frozen=True)
class Pair:
    """A function of the source and what the export has under its name."""

    source: Version
    export: Version

    def finding(self, rule: Rule, severity: Severity, item: Item, extra: Sequence[Evidence] = ()) -> Finding:
        """A finding about one item of the source, with the export's definition beside it."""
        return Finding(
            rule=rule,
            category=item.category,
            file=self.source.path,
            symbol=self.source.unit.name,
            severity=severity,
            lost=item.words,
            test=CONFIRM[item.category],
            evidence=(self.source.evidence(item.line), *(extra or (self.export.evidence(),))),
        )


def lost(source: Iterable[Item], export: Iterable[Item]) -> list[Item]:
    """The items of the source that the export does not have as often, in order."""
    left = Counter((i.category, i.key) for i in export)
    found = []
    for item in source:
        if left[item.category, item.key] > 0:
            left[item.category, item.key] -= 1
        else:
            found.append(item)
    return found
