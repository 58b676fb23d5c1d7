"""Verdicts of several runs side by side, for the end of a command: word, sentence, page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kda_lab.report.html import verdict_words
from kda_lab.report.records import read_run
from kda_lab.run_folder import RunFolder


@dataclass(frozen=True)
class RunVerdict:
    """One run in one line."""

    run: str
    passed: bool
    word: str
    """`PASSED`, `FAILED` or `NO VERDICT`."""
    sentence: str
    page: str
    """Path of the page; empty where none was written."""


def verdicts(runs: Iterable[Path]) -> list[RunVerdict]:
    """Verdict and page of each run folder, in order; a missing or broken verdict never counts as passed."""
    return [_one(RunFolder(path)) for path in runs]


def _one(run: RunFolder) -> RunVerdict:
    records = read_run(run)
    words = verdict_words(records)
    passed = bool(records.verdict and records.verdict["passed"])
    return RunVerdict(run.name, passed, words.word, words.sentence, str(run.page) if run.page.is_file() else "")
