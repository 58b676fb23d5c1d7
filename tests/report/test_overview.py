"""Verdicts side by side: what cannot be read never counts as passed."""

from __future__ import annotations

from pathlib import Path

from kda_lab.report.overview import verdicts
from kda_lab.run_folder import RunFolder, write_json


def test_each_run_in_one_line(tmp_path: Path) -> None:
    """Passed, failed, broken and missing, in the order asked for."""
    good, bad, broken = (RunFolder.at(tmp_path / name) for name in ("good", "bad", "broken"))
    write_json(good.verdict, {"passed": True, "sentence": "pass: 3 of 3", "evidence": {}, "failures": []})
    good.page.write_text("page")
    write_json(bad.verdict, {"passed": False, "sentence": "fail: 1 of 3", "evidence": {}, "failures": ["x"]})
    broken.verdict.write_text("{")
    found = verdicts([good.path, bad.path, broken.path, tmp_path / "missing"])
    assert [(v.run, v.passed, v.word) for v in found] == [
        ("good", True, "PASSED"),
        ("bad", False, "FAILED"),
        ("broken", False, "no verdict"),
        ("missing", False, "no verdict"),
    ]
    assert (found[0].sentence, found[0].page) == ("3 of 3", str(good.page))
    assert found[1].page == ""
