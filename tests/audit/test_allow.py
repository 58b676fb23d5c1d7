"""The allow-list: one reason an entry, nothing unknown, nothing twice, nothing stale."""

from __future__ import annotations

from pathlib import Path

import pytest

from kda_lab.audit import allow
from kda_lab.audit.allow import read_allow_list
from kda_lab.audit.trees import audit_trees
from kda_lab.errors import AuditError


def listed(tmp_path: Path, text: str) -> Path:
    """An allow-list with this text."""
    path = tmp_path / "allow.yaml"
    path.write_text(text)
    return path


def trees(tmp_path: Path) -> tuple[Path, Path]:
    """A source with two names and an export that lost both."""
    for name, text in (("source", "A = 1\nB = 1\nC = 1\n"), ("export", "C = 1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(text)
    return tmp_path / "source", tmp_path / "export"


def test_allowed_findings_do_not_fail(tmp_path: Path) -> None:
    """By symbol, by class, by glob; the reason stands beside the finding."""
    text = """
- {rule: AUD-1, file: "*.py", class: differs, reason: the names moved to the runtime}
- {rule: AUD-2, file: a.py, symbol: A, reason: nobody reads A on this branch}
- rule: AUD-2
  file: a.py
  symbol: B
  class: missing symbol
  reason: "B: replaced by C"
"""
    found = audit_trees(*trees(tmp_path), allow=listed(tmp_path, text))
    assert found.passed
    assert [f.allowed for f in found.findings if f.symbol == "B"] == ["B: replaced by C"]


def test_a_finding_that_no_entry_names_still_fails(tmp_path: Path) -> None:
    """The entry for A does not excuse B."""
    text = "- {rule: AUD-1, file: a.py, reason: x}\n- {rule: AUD-2, file: a.py, symbol: A, reason: x}\n"
    found = audit_trees(*trees(tmp_path), allow=listed(tmp_path, text))
    assert [f.symbol for f in found.failing] == ["B"]


def test_a_stale_entry_fails(tmp_path: Path) -> None:
    """It is named with its line."""
    text = "- {rule: AUD-1, file: a.py, reason: x}\n- {rule: AUD-2, file: a.py, reason: x}\n- {rule: AUD-2, file: b.py, symbol: Z, reason: x}\n"
    found = audit_trees(*trees(tmp_path), allow=listed(tmp_path, text))
    assert found.failing == ()
    assert not found.passed
    assert found.stale == ("line 3: AUD-2 b.py Z",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- {rule: AUD-1, file: a.py}\n", r":1 reason is ''; allowed: a text. Say in one sentence why"),
        ("- {rule: AUD-1, file: a.py, reason: ''}\n", r":1 reason is ''"),
        ("- {rule: AUD-1, file: a.py, reason: '  '}\n", r":1 reason is ''"),
        ("- {rule: AUD-1, file: a.py, reason: }\n", r":1 reason is ''"),
        ("- {rule: AUD-1, file: a.py, reason: null}\n", r":1 reason is ''"),
        ("- {file: a.py, reason: x}\n", r":1 rule is ''; allowed: a text"),
        ("\n- {rule: AUD-77, file: a.py, reason: x}\n", r":2 rule is 'AUD-77'; allowed: AUD-1, AUD-2"),
        ("- {rule: AUD-1, file: a.py, why: x}\n", r":1 is 'why'; allowed: the keys rule, file, symbol, class, reason"),
        ("- {rule: AUD-1, file: a.py, file: b.py, reason: x}\n", r":1 is 'file' twice; allowed: each key once"),
        ("- {rule: AUD-1, file: [a.py], reason: x}\n", r":1 is 'file'; allowed: the keys"),
        ("- {rule: AUD-1, file: a, reason: x}\n" * 2, r":2 is the entry of line 1 again; allowed: each entry once"),
        ("- {rule: AUD-1, file: 5, reason: x}\n", r":1 file is 5; allowed: a text"),
        ("- {rule: AUD-1, file: a, reason: yes}\n", r":1 reason is yes; allowed: a text"),
        ("- AUD-1\n", r":1 is no mapping; allowed: a mapping with rule"),
        ("rule: AUD-1\n", r":1 is no list; allowed: a list of entries"),
        ("- {rule: AUD-1\n", r"allow-list .+:2: "),
        ("- \x01\n", r"allow-list .+: "),
    ],
)
def test_a_bad_list_is_one_error_with_its_line(text: str, words: str, tmp_path: Path) -> None:
    """Missing, empty, unknown and doubled things, and text that is no YAML."""
    with pytest.raises(AuditError, match=words):
        read_allow_list(listed(tmp_path, text))


def test_a_list_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent, not UTF-8, too large."""
    with pytest.raises(AuditError, match=r"allow-list .+nowhere\.yaml cannot be read: "):
        read_allow_list(tmp_path / "nowhere.yaml")
    path = tmp_path / "allow.yaml"
    path.write_bytes(b"\xff")
    with pytest.raises(AuditError, match=r"allow\.yaml cannot be read: "):
        read_allow_list(path)
    monkeypatch.setattr(allow, "MAXIMUM_BYTES", 3)
    path.write_text("- {}\n")
    with pytest.raises(AuditError, match=r"allow\.yaml is 5 bytes; allowed: at most 3"):
        read_allow_list(path)


def test_an_empty_list_allows_nothing(tmp_path: Path) -> None:
    """An empty file is a list without entries."""
    assert read_allow_list(listed(tmp_path, "# nothing yet\n")) == ()
