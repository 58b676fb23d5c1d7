"""An audit as JSON and Markdown: complete, the same bytes every time, harmless in a browser."""

from __future__ import annotations

import json
from collections.abc import Callable

from kda_lab.audit.finding import Audit
from kda_lab.audit.render import as_markdown, as_record

Run = Callable[..., Audit]
PAIR = ({"a.py": "def f(a, b): ...\n"}, {"a.py": "def f(a): ...\n", "b.md": "x\n"})


def test_the_record_holds_what_a_finding_needs(audit: Run) -> None:
    """Class, file, symbol, lines of both trees, severity, words, test; verdict and classes beside them."""
    record = json.loads(json.dumps(as_record(audit(*PAIR))))
    (finding,) = [f for f in record["findings"] if f["rule"] == "AUD-3"]
    assert set(finding) == {"rule", "class", "file", "symbol", "severity", "lost", "test", "evidence", "allowed"}
    assert [(e["tree"], e["line"]) for e in finding["evidence"]] == [("source", 1), ("export", 1)]
    assert record["passed"] is False
    assert record["sentence"].startswith("3 findings in 2 files")
    assert [f["state"] for f in record["files"]] == ["differs", "extra"]


def test_the_page_says_the_same(audit: Run) -> None:
    """Verdict first, findings by severity with their evidence and test, then what was not judged."""
    page = as_markdown(audit(*PAIR))
    order = [
        page.index(part) for part in ("3 findings", "Files: 0 identical, 1 differs", "## crash (1)", "## Not judged")
    ]
    assert order == sorted(order)
    assert "* **AUD-3 signatures**, lost parameter, `a.py f`: the parameter b (positional) is gone.\n" in page
    assert "  * source a.py:1: `def f(a, b): ...`\n" in page
    assert page == as_markdown(audit(*PAIR))


def test_allowed_and_stale_entries_are_listed(audit: Run) -> None:
    """With their reasons."""
    found = audit(*PAIR)
    allowed = tuple(f.model_copy(update={"allowed": "wanted"}) for f in found.findings)
    page = as_markdown(found.model_copy(update={"findings": allowed, "stale": ("line 9: AUD-1 x",)}))
    assert "## Allowed (3)" in page
    assert "Reason: wanted" in page
    assert "* line 9: AUD-1 x" in page


def test_markup_of_the_sources_stays_text(audit: Run) -> None:
    """A constant that holds HTML, or back ticks, does not become markup."""
    page = as_markdown(audit({"a.py": "X = '<script>`'\n"}, {"a.py": "X = '<b>`'\n"}))
    assert "<script>" not in page.replace("`X = '<script>'`", "").replace("`X = '<script>''`", "")
    assert "&lt;script>" in page
