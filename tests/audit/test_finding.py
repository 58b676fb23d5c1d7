"""Findings and audits as records: what fails, in which order, in which words."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kda_lab.audit.finding import RULES, Audit, Evidence, FileState, Finding, Severity, in_order


def finding(file: str = "a.py", severity: Severity = "crash", allowed: str = "", lost: str = "gone") -> Finding:
    """A finding with the fields that a test cares about."""
    return Finding(
        rule="AUD-2", category="missing symbol", file=file, severity=severity, lost=lost, test="t", allowed=allowed
    )


def audit(*findings: Finding, semantic: bool = False, stale: tuple[str, ...] = ()) -> Audit:
    """An audit of one file."""
    files = (FileState(path="a.py", state="differs"),)
    return Audit(source="s", export="e", semantic=semantic, files=files, findings=findings, stale=stale)


def test_the_json_calls_the_category_class() -> None:
    """A record that was written is read back as the same finding."""
    record = finding().model_dump_json(by_alias=True)
    assert '"class":"missing symbol"' in record
    assert Finding.model_validate_json(record) == finding()


def test_an_unknown_field_or_rule_is_refused() -> None:
    """A record with a field of its own is not read half."""
    with pytest.raises(ValidationError, match="Extra inputs"):
        Finding.model_validate({**finding().model_dump(), "more": 1})
    with pytest.raises(ValidationError, match="AUD-99"):
        Finding.model_validate({**finding().model_dump(), "rule": "AUD-99"})


def test_what_fails_an_audit() -> None:
    """A finding fails, an allowed one does not, a cosmetic one does outside semantic mode, a stale entry does."""
    cosmetic = finding(severity="cosmetic")
    assert not audit(finding()).passed
    assert audit(finding(allowed="wanted")).passed
    assert not audit(cosmetic).passed
    assert audit(cosmetic, semantic=True).passed
    assert not audit(finding(), semantic=True).passed
    assert not audit(stale=("line 1",)).passed


def test_the_sentence_counts_by_severity() -> None:
    """The verdict says how many, how bad, how many allowed and how many stale."""
    found = audit(finding(), finding("b.py", "performance"), finding("c.py", allowed="x"), stale=("line 1",))
    assert found.sentence == "2 findings in 1 files (1 crash, 1 performance); 1 allowed; 1 stale allow-list entries"
    assert audit().sentence == "clean: 1 files, no finding stands"


def test_findings_are_sorted_and_unique() -> None:
    """By file, then rule number, then symbol; the same finding once."""
    ten = finding().model_copy(update={"rule": "AUD-10"})
    assert in_order([ten, finding("b.py"), finding(), finding()]) == (finding(), ten, finding("b.py"))


def test_evidence_reads_as_a_place() -> None:
    """Tree, path and line; a line of 0 is the whole file."""
    assert str(Evidence(tree="export", path="a.py", line=3)) == "export a.py:3"
    assert str(Evidence(tree="base", path="a.py")) == "base a.py"


def test_every_rule_has_words() -> None:
    """The rules are numbered from 1 to 13 without a gap."""
    assert list(RULES) == [f"AUD-{n}" for n in range(1, 14)]


def test_control_characters_of_a_source_are_not_printed() -> None:
    """An escape sequence in somebody's string does not reach the terminal."""
    assert finding(lost="a\x1b[31mb\n").lost == "a [31mb "
    assert Evidence(tree="source", path="a", text="x\ty").text == "x y"
