"""The page of one run: verdict first, then what ran, figures, tables, gate power, refusals, files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kda_lab.errors import KdaLabError
from kda_lab.report import figures, grouping, notebook_page, tables
from kda_lab.report.chain_part import ChainPart, chain_part, kernel_rows
from kda_lab.report.comparisons import Comparisons, compare
from kda_lab.report.eight_figure import rotated_shares
from kda_lab.report.foot import foot
from kda_lab.report.pipeline_figure import chain_foot
from kda_lab.report.records import RunRecords, flat, read_run, started
from kda_lab.report.rendering import PAGE_LIMIT_BYTES, DrawnFigure, inline, linked, render
from kda_lab.report.style import Picture
from kda_lab.run_folder import RunFolder, write_atomic, write_json
from kda_lab.timing.chain.records import chain_records
from kda_lab.timing.protocol import mode_of
from kda_lab.timing.statistics import RowResult, headline

FILES = {
    "executed.ipynb": "the executed notebook",
    "notebook.html": "the executed notebook as a page",
    "verify.jsonl": "one line a replay, and the gate power",
    "timing.jsonl": "one line a row, arm and trial, with raw samples",
    "chain.jsonl": "one line an arm and trial in the chain, and its untimed checks",
    "trace.jsonl": "one line an arm and trial of a decode trace, and its untimed checks",
    "suites.jsonl": "one line a suite: its cases, launches and faults",
    "stages.jsonl": "one line a check of a pipeline's stages",
    "rows.csv": "summarised rows, unrounded",
    "rows.parquet": "summarised rows, unrounded",
    "parameters.json": "parameters of the run",
    "provenance.json": "code, packages, device",
    "verdict.json": "the verdict and its evidence",
    "summary.json": "what the index says of this run",
    "log.txt": "the log",
}
CAPTIONS = {
    "pipeline": "Each cache policy apart and in the chain, against the reference policy and the noise of that very place.",
    "speedup_by_batch": "Speedup against batch, one line a class.",
    "speedup": "Speedup of each row with its interval, against the noise floor of that row.",
    "roof": "Share of the memory roofline that each arm reaches on every row.",
    "eight_sets": "Speedup by the source thread's protocol of eight input sets, beside the cold one.",
    "latency": "Time per call of every arm, beside the time that the bytes alone would take.",
    "errors": "Error of each capture, beside the floor of rounding and the limit of the gate.",
}
SAVED = "Drawn by the run's notebook."
LINE_LIMITS = (1000, 200, 50)
"""Table lines a page may show; the next smaller number is taken where the page grows too large."""


@dataclass(frozen=True)
class VerdictWords:
    """A verdict as the page says it; no readable verdict is said to be none, never a pass."""

    word: str
    sentence: str
    evidence: str
    failures: tuple[str, ...]


def write_report(run: RunFolder) -> Path:
    """Draw everything a run's records say into its folder; return the page's path.

    A run that timed a chain shows it first; of its isolated products then only the reference policy is drawn
    beside baseline and peers. Writes index.html, figures as SVG and PNG, rows.csv, rows.parquet, summary.json and, where there is
    an executed notebook, notebook.html. A missing or broken file is named on the page. The same records
    give the same bytes.
    """
    records = read_run(run)
    found, chain = compare(records), chain_part(records)
    rows = found.rows
    drawn, faults = _draw(records, found, chain)
    for figure in drawn:
        write_atomic(run.path / f"{figure.name}.svg", figure.svg)
        write_atomic(run.path / f"{figure.name}.png", figure.png)
    drawn += _saved_figures(run)
    for name in ("rows.csv", "rows.parquet", notebook_page.PAGE):
        # Of an earlier report on other records; kept, the page would link to what is no longer true.
        (run.path / name).unlink(missing_ok=True)
    if rows:
        frame = tables.rows_frame([*rows, *found.labelled])
        write_atomic(run.path / "rows.csv", tables.csv_text(frame))
        write_atomic(run.path / "rows.parquet", tables.parquet_bytes(frame))
    _, fault = notebook_page.write_notebook_page(run)
    problems = [*records.problems, *found.problems, *chain.problems, *faults, *([fault] if fault else [])]
    write_json(run.path / "summary.json", summary(run, rows, chain))
    write_atomic(run.page, _page(_values(run, records, found, chain), drawn, problems))
    return run.page


def verdict_words(records: RunRecords) -> VerdictWords:
    """The verdict in words: `PASSED`, `FAILED`, `AMBIGUOUS` or `no verdict`."""
    found = records.verdict
    if found is None:
        return VerdictWords("no verdict", "This run has no readable verdict.json, so it counts as not passed.", "", ())
    evidence = found.get("evidence") if isinstance(found.get("evidence"), Mapping) else {}
    told = ", ".join(f"{name} {text}" for name, text in flat(evidence or {}))
    failures = found.get("failures") if isinstance(found.get("failures"), list) else []
    sentence = str(found.get("sentence", ""))
    word, _, rest = sentence.partition(": ")
    if word in ("pass", "fail", "ambiguous"):
        sentence = rest
    told_word = "PASSED" if found["passed"] else "AMBIGUOUS" if word == "ambiguous" else "FAILED"
    return VerdictWords(told_word, sentence, told, tuple(str(f) for f in failures or []))


def summary(run: RunFolder, rows: Sequence[RowResult], chain: ChainPart) -> dict[str, Any]:
    """What the index says of the run; `timing_sha256` tells whether it is still true.

    Of a run that timed a chain the policies' ratios in the chain are told, not those of isolated products.
    """
    speedups = chain.speedups
    for arm in () if chain.results else grouping.arms(rows, ("candidate",)):
        members = [r for r in rows if r.arm == arm]
        numbers = headline(members, arm)
        if numbers is not None:
            against = members[0].baseline
            speedups.append({"arm": arm, "baseline": against, "geomean": numbers.geomean, "minimum": numbers.minimum,
                             "count": numbers.count})  # fmt: skip
    return {"speedups": speedups, "timing_sha256": timing_sha256(run)}


def timing_sha256(run: RunFolder) -> str:
    """Hash of the run's timing.jsonl, of chain.jsonl too where there is one; empty without either."""
    found = [path.read_bytes() for path in (run.timing_records, chain_records(run)) if path.is_file()]
    return hashlib.sha256(b"".join(found)).hexdigest() if found else ""


def _draw(records: RunRecords, found: Comparisons, chain: ChainPart) -> tuple[list[DrawnFigure], list[str]]:
    """All figures that the records allow; one sentence for each that they should but do not."""
    drawn: list[DrawnFigure] = []
    faults: list[str] = []
    wanted = _wanted_of_chain(found, chain, foot(records)) if chain.results else _wanted(records, found, foot(records))
    for name, make in wanted:
        try:
            drawn.append(DrawnFigure.of(name, make()))
        except KdaLabError as error:
            faults.append(f"figure {name}: {error}")
    return drawn, faults


def _wanted_of_chain(
    found: Comparisons, chain: ChainPart, foot_text: str
) -> Iterator[tuple[str, Callable[[], Picture]]]:
    """The figures of a run that timed a chain: the chain first, then how near the kernel comes to the roof."""
    yield "pipeline", partial(figures.pipeline, chain.results, foot=chain_foot(chain.timed))
    rows = kernel_rows(found.rows)
    if _any_cold(rows):
        yield "latency", partial(figures.latency, rows, foot=foot_text)
        yield "roof", partial(figures.roof_shares, rows, foot=foot_text)


def _saved_figures(run: RunFolder) -> list[DrawnFigure]:
    """Figures that the notebook itself left in the folder. One of a kind drawn here is of an earlier report: left out."""
    saved = [path for path in sorted(run.path.glob("*.svg")) if _caption(path.stem) == SAVED]
    return [
        DrawnFigure(path.stem, path.stem.replace("_", " "), "", png.read_bytes(), ours=False)
        for path in saved
        if (png := path.with_suffix(".png")).is_file()
    ]


def _any_cold(rows: Sequence[RowResult]) -> bool:
    return any(r.state == "cold" and r.role != "control" for r in rows)


def _wanted(records: RunRecords, found: Comparisons, foot_text: str) -> Iterator[tuple[str, Callable[[], Picture]]]:
    """Name and maker of each figure, in the order of the page."""
    rows, rival = found.rows, found.strongest_peer
    for arm in grouping.arms(rows, ("candidate",)):
        yield file_name("speedup", arm), partial(figures.speedup, rows, candidate=arm, foot=foot_text)
        if rival:
            name = file_name("speedup", arm, "against", rival)
            yield name, partial(figures.speedup, found.against_peers[rival], candidate=arm, foot=foot_text)
        if _has_sweep(rows, arm):
            yield (
                file_name("speedup_by_batch", arm),
                partial(figures.speedup_by_batch, rows, candidate=arm, foot=foot_text),
            )
    by_op = grouping.grouped(rows, lambda r: r.op)
    for op, own in by_op.items():
        # A line through rows of two ops would mean nothing.
        suffix = (op,) if len(by_op) > 1 else ()
        if _any_cold(own):
            yield file_name("latency", *suffix), partial(figures.latency, own, foot=foot_text)
            yield file_name("roof", *suffix), partial(figures.roof_shares, own, foot=foot_text)
    for arm in grouping.arms((r for r in found.labelled if mode_of(r.row) == "eight"), ("candidate",)):
        both, shares = [*rows, *found.labelled], rotated_shares(records.trials)
        name = file_name("eight_sets", arm)
        yield name, partial(figures.eight_sets, both, candidate=arm, l2_shares=shares, foot=foot_text)
    for arm in dict.fromkeys(str(r["arm"]) for r in records.replays if r.get("role") == "candidate"):
        yield file_name("errors", arm), partial(figures.errors, records.verify, arm=arm, foot=foot_text)


def _has_sweep(rows: Sequence[RowResult], arm: str) -> bool:
    """Whether some line of the batch figure would have two points."""
    lines = grouping.grouped(
        grouping.judged(grouping.rows_of(rows, arm)), lambda r: (grouping.topology(r), grouping.row_class(r))
    )
    return any(len({grouping.batch(r) for r in line}) > 2 for line in lines.values())


def _caption(name: str) -> str:
    return next((text for kind, text in CAPTIONS.items() if name.startswith(kind)), SAVED)


def file_name(*words: str) -> str:
    """Words joined to a file name that any system takes; an arm's name may hold a path or a colon."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in "_".join(words))


def _page(values: dict[str, Any], drawn: Sequence[DrawnFigure], problems: Sequence[str]) -> str:
    """The page; where it would pass 2 MB, with fewer table lines and figures that stand beside it."""
    text = ""
    for number, limit in enumerate(LINE_LIMITS):
        show = inline if number == 0 else linked
        shown = [{"name": f.name, "title": f.title, "markup": show(f), "caption": _caption(f.name)} for f in drawn]
        text = render("run.html.j2", **values, figures=shown, problems=list(problems)[:limit], limit=limit)
        if len(text.encode()) < PAGE_LIMIT_BYTES:
            break
    return text


def _values(run: RunFolder, records: RunRecords, comparisons: Comparisons, chain: ChainPart) -> dict[str, Any]:
    device, rows = records.device, comparisons.rows
    subtitle = [
        ", ".join(records.ops) or "no op",
        str(device.get("name", "unknown device")),
        started(records.provenance),
    ]
    found = {
        "short": chain.short if chain.results else tables.headline_table(comparisons.all),
        "chain": chain.table,
        "chain_checks": chain.checks,
        "batches": tables.batch_table(rows),
        "rows": tables.rows_table([*rows, *comparisons.labelled]),
        "replays": tables.verify_table(records.replays),
        "power": tables.power_table(records.power),
        "mutants": tables.mutant_table(records.power),
        "stress": tables.stress_table(records.stress),
        "refused": tables.refused_table(records.refused),
    }
    present = [("ran", "What ran"), ("figures", "Figures")]
    present += [("chain", "In the chain")] if found["chain"].lines or found["chain_checks"].lines else []
    present += [("timing", "Timing")] if rows else []
    present += [
        (i, h)
        for i, h in (("replays", "Replays"), ("power", "Gate power"), ("stress", "Stress"), ("refused", "Refusals"))
        if found[i].lines
    ]
    return {
        **found,
        "title": f"{run.name}: {verdict_words(records).word}",
        "name": run.name,
        "subtitle": " · ".join(s for s in subtitle if s),
        "verdict": verdict_words(records),
        "not_timed": records.not_timed,
        "provenance": flat(records.provenance),
        "parameters": flat(records.parameters),
        "chain_notes": chain.notes,
        "chain_findings": chain.findings,
        "power_sentence": _power_sentence(records),
        "sections": [*present, ("files", "Files")],
        "files": [(name, what) for name, what in FILES.items() if (run.path / name).is_file()],
    }


def _power_sentence(records: RunRecords) -> str:
    killed, total = (sum(r[n] for r in records.power) for n in ("killed", "total"))
    word = "Every mutant was rejected" if killed == total and total else "Some mutants SURVIVED"
    return f"killed {killed}/{total} over {len(records.power)} captures. {word}." if total else "No mutant was judged."
