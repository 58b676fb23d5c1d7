"""The list of runs: reports/index.html, one line a run, robust to runs that are not finished."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kda_lab.report.chain_part import chain_part
from kda_lab.report.comparisons import compare
from kda_lab.report.html import FILES, summary, timing_sha256, verdict_words
from kda_lab.report.numbers import DASH, measured, times
from kda_lab.report.records import read_run, started
from kda_lab.report.rendering import render
from kda_lab.run_folder import RunFolder, write_atomic

_MARKS = ("executed.ipynb", "verdict.json", "verify.jsonl", "timing.jsonl", "chain.jsonl", "parameters.json")
_LINKED = ("executed.ipynb", "rows.csv", "rows.parquet", "verify.jsonl", "timing.jsonl", "chain.jsonl")


def write_index(reports: Path) -> Path:
    """Write index.html into `reports`: every run in it, or one folder below, sorted by name.

    A run is a folder with any of a run's files. One without a readable verdict is listed as `no verdict`.
    """
    runs = [_line(reports, folder) for folder in sorted(run_folders(reports), key=lambda f: f.as_posix())]
    page = reports / "index.html"
    write_atomic(page, render("index.html.j2", title="Runs", runs=runs))
    return page


def run_folders(reports: Path) -> Iterator[Path]:
    """Folders in `reports` that hold a run, down to two levels; hidden ones and links are passed by."""
    for folder in _folders(reports):
        if _is_run(folder):
            yield folder
        else:
            yield from (inner for inner in _folders(folder) if _is_run(inner))


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return [p for p in sorted(parent.iterdir()) if p.is_dir() and not p.is_symlink() and not p.name.startswith(".")]


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _MARKS)


def _line(reports: Path, folder: Path) -> dict[str, Any]:
    run = RunFolder(folder)
    records = read_run(run)
    name = folder.relative_to(reports).as_posix()
    words = verdict_words(records)
    speedups = [_speedup_words(s) for s in _speedups(run)]
    return {
        "name": name,
        "link": f"{name}/index.html" if run.page.is_file() else f"{name}/",
        "op": ", ".join(records.ops) or DASH,
        "device": str(records.device.get("name", DASH)),
        "date": started(records.provenance) or DASH,
        "word": words.word,
        "sentence": words.sentence,
        "speedups": speedups or [records.not_timed or DASH],
        "files": [f for f in FILES if f in _LINKED and (folder / f).is_file()],
    }


def _speedups(run: RunFolder) -> list[Mapping[str, Any]]:
    """Of summary.json while it still belongs to the timing records; else computed from them."""
    try:
        found = json.loads((run.path / "summary.json").read_bytes())
        if found["timing_sha256"] == timing_sha256(run) and all(_is_speedup(s) for s in found["speedups"]):
            return list(found["speedups"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # No summary yet, or a broken one: the records decide.
    records = read_run(run)
    return list(summary(run, compare(records).rows, chain_part(records))["speedups"])


def _is_speedup(value: Any) -> bool:
    return {"arm", "baseline"} <= value.keys() and all(measured(value[n]) for n in ("geomean", "minimum", "count"))


def _speedup_words(value: Mapping[str, Any]) -> str:
    numbers = f"geomean {times(value['geomean'])}, min {times(value['minimum'])}, n = {value['count']}"
    return f"{value['arm']}: {numbers} (against {value['baseline']})"
