"""The allow-list: differences somebody has looked at, each with one reason; a stale entry fails the audit."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args

import yaml

from kda_lab.audit.finding import Finding, Frozen, Rule
from kda_lab.errors import AuditError, Reason

KEYS = ("rule", "file", "symbol", "class", "reason")
REQUIRED = ("rule", "file", "reason")
MAXIMUM_BYTES = 1 << 20


class Entry(Frozen):
    """One allowed difference."""

    rule: str
    file: str
    """Path or glob."""
    symbol: str = ""
    """Empty: any symbol of the file."""
    category: str = ""
    """The finding's class; empty: any."""
    reason: str
    line: int = 0
    """Where it stands in the allow-list."""

    def allows(self, finding: Finding) -> bool:
        """Whether the entry names this finding."""
        return (
            finding.rule == self.rule
            and (finding.file == self.file or fnmatchcase(finding.file, self.file))
            and self.symbol in ("", finding.symbol)
            and self.category in ("", finding.category)
        )

    def __str__(self) -> str:
        return " ".join(filter(None, [f"line {self.line}:", self.rule, self.file, self.symbol, self.category]))


def read_allow_list(path: str | Path) -> tuple[Entry, ...]:
    """Read an allow-list: a YAML list of mappings with `rule`, `file`, `reason` and, optionally, `symbol` and `class`.

    Raises:
        AuditError: no such file, no YAML, an unknown or doubled key, an entry without reason, two equal entries.
    """
    place = Path(path)
    try:
        content = place.read_bytes()
        if len(content) > MAXIMUM_BYTES:
            raise AuditError("audit", [Reason(str(place), f"{len(content)} bytes", f"at most {MAXIMUM_BYTES}")])
        document = yaml.compose(content.decode("utf-8-sig"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise AuditError("audit", f"allow-list {place} cannot be read: {error}.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it is no YAML"
        raise AuditError("audit", f"allow-list {place}{where}: {problem}.") from error
    if document is None:
        return ()
    if not isinstance(document, yaml.SequenceNode):
        raise AuditError("audit", [Reason(f"{place}:1", "no list", "a list of entries with rule, file and reason")])
    entries = [_entry(place, node) for node in document.value]
    _require_unique(place, entries)
    return tuple(entries)


def _entry(place: Path, node: yaml.Node) -> Entry:
    line = node.start_mark.line + 1
    where = f"{place}:{line}"
    if not isinstance(node, yaml.MappingNode):
        raise AuditError("audit", [Reason(where, "no mapping", f"a mapping with {', '.join(KEYS)}")])
    values: dict[str, str] = {}
    for key, value in node.value:
        if not isinstance(value, yaml.ScalarNode) or key.value not in KEYS:
            raise AuditError("audit", [Reason(where, repr(key.value), f"the keys {', '.join(KEYS)}, each with a text")])
        if not value.tag.endswith((":str", ":null")):
            raise AuditError("audit", [Reason(f"{where} {key.value}", value.value, "a text", "Put it in quotes.")])
        if key.value in values:
            raise AuditError("audit", [Reason(where, f"{key.value!r} twice", "each key once")])
        values[key.value] = "" if value.tag.endswith(":null") else value.value.strip()
    for name in REQUIRED:
        if not values.get(name):
            remedy = "Say in one sentence why the difference is wanted." if name == "reason" else ""
            raise AuditError("audit", [Reason(f"{where} {name}", repr(values.get(name, "")), "a text", remedy)])
    if values["rule"] not in get_args(Rule):
        raise AuditError("audit", [Reason(f"{where} rule", repr(values["rule"]), ", ".join(get_args(Rule)))])
    values["category"] = values.pop("class", "")
    return Entry(**values, line=line)


def _require_unique(place: Path, entries: Sequence[Entry]) -> None:
    seen: dict[tuple[str, str, str, str], Entry] = {}
    for entry in entries:
        key = (entry.rule, entry.file, entry.symbol, entry.category)
        if key in seen:
            reason = Reason(f"{place}:{entry.line}", f"the entry of line {seen[key].line} again", "each entry once")
            raise AuditError("audit", [reason])
        seen[key] = entry


def apply(entries: Sequence[Entry], findings: Sequence[Finding]) -> tuple[list[Finding], tuple[str, ...]]:
    """The findings with the reasons of the entries that allow them, and the entries that allowed nothing."""
    used: set[int] = set()
    judged = []
    for finding in findings:
        fitting = [i for i, entry in enumerate(entries) if entry.allows(finding)]
        used |= set(fitting)
        judged.append(finding.model_copy(update={"allowed": entries[fitting[0]].reason}) if fitting else finding)
    return judged, tuple(str(e) for i, e in enumerate(entries) if i not in used)
