"""The audit of our exports on paper: every check is there, findings carry their test, cells stay cells."""

from __future__ import annotations

import json

from kda_lab.audit.exported_model import ExportedAudit, Outcome, finding_of
from kda_lab.audit.exported_render import as_markdown, as_record, rows

FINDING = finding_of("k", "sources", "crash", "kernel.py | is\nmissing", "export again", "kernel.py")
AUDIT = ExportedAudit(
    kernels=("k",),
    scope="everything",
    compilers={"triton": "3.7"},
    outcomes=(
        Outcome(kernel="k", check="contract", status="passed", words="valid"),
        Outcome(kernel="k", check="sources", status="failed", words="kernel.py is missing", findings=(FINDING,)),
        Outcome(kernel="k", check="replay", status="not run", words="no GPU"),
    ),
)


def test_every_outcome_is_a_row() -> None:
    """Nothing is left out of the table, whatever its status."""
    assert rows(AUDIT)[2] == ("k", "replay", "not run", "no GPU")
    page = as_markdown(AUDIT)
    assert "| k | replay | not run | no GPU |" in page
    assert "Compiled and replayed: everything. Compilers here: triton 3.7." in page


def test_a_finding_says_what_was_lost_and_how_to_confirm_it() -> None:
    """A bar or a line end in the words cannot break the table."""
    line = "| AUD-1 | sources | crash | `k/kernel.py` | kernel.py \\| is missing | export again |"
    assert line in as_markdown(AUDIT).splitlines()
    clean = ExportedAudit(kernels=("k",), scope="", compilers={}, outcomes=AUDIT.outcomes[:1])
    assert "Findings" not in as_markdown(clean)


def test_the_record_is_json_and_reads_back() -> None:
    """The JSON holds the verdict beside the outcomes, with `class` as the name of a finding's kind."""
    record = json.loads(json.dumps(as_record(AUDIT), allow_nan=False))
    assert record["passed"] is False
    assert record["sentence"] == (
        "1 findings in 1 failed checks of 1 exported kernels; 1 checks passed, 0 noted, 1 not run"
    )
    assert record["outcomes"][1]["findings"][0]["class"] == "sources"
    del record["passed"], record["sentence"]
    assert ExportedAudit.model_validate(record) == AUDIT
