"""The documentation is true where a machine can check it: links, commands, versions, numbers of the README."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from collections import Counter
from pathlib import Path

import pytest
from typer.main import get_command

import kda_lab
from kda_lab.cli import app
from kda_lab.report.comparisons import compare
from kda_lab.report.numbers import significant
from kda_lab.report.records import read_run
from kda_lab.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "kda_lab").rglob("README.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names a file or folder of the tree."""
    targets = re.findall(r"\]\(([^)#]+?)\)", page.read_text())
    broken = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_named_commands_exist(page: Path) -> None:
    """Every `kda-lab <command>` that a page shows is a command."""
    shown = set(re.findall(r"kda-lab ([a-z]+(?:-[a-z]+)*)\b", page.read_text()))
    assert not shown - set(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_named_files_exist(page: Path) -> None:
    """Every notebook, test or module that a page names by its path is there."""
    named = set(re.findall(r"`((?:notebooks|tests|benchmarks|docs|kda_lab)/[\w./-]+\.\w+)`", page.read_text()))
    assert not [name for name in named if "<" not in name and not (ROOT / name).exists()]


def test_the_changelog_has_this_version() -> None:
    """The version of the package has a section."""
    assert f"## {kda_lab.__version__} " in (ROOT / "CHANGELOG.md").read_text()


FA2, SCHEDULE = "flashinfer_ragged_fa2", "upstream_schedule"
SWEEPS = ("h200-sweep-qsa-64", "h200-sweep-qsa-42")


def times_us(*runs: str) -> dict[str, dict[str, float]]:
    """Row to arm to microseconds, of the committed runs, without the A/A control."""
    found: dict[str, dict[str, float]] = {}
    for run in runs:
        with (ROOT / "reports" / run / "rows.csv").open() as stream:
            for row in csv.DictReader(stream):
                if row["role"] != "control":
                    found.setdefault(row["row"], {})[row["arm"]] = float(row["arm_us"])
    return found


def ratios(times: dict[str, dict[str, float]], ours: str, other: str) -> list[float]:
    """What `other` takes over what `ours` takes, a row each."""
    return [row[other] / row[ours] for row in times.values()]


def geomean(values: list[float]) -> str:
    """Geometric mean, to three digits."""
    return significant(math.exp(math.fsum(map(math.log, values)) / len(values)))


def readme_line(part: str) -> str:
    """The one line of the README that holds `part`."""
    (line,) = (text for text in (ROOT / "README.md").read_text().splitlines() if part in text)
    return line


@pytest.mark.parametrize(
    ("runs", "ours", "others", "count"),
    [
        (("h200-replay-qsa-both",), "clustered", (SCHEDULE, FA2), 15),
        (SWEEPS, "dispatched", (SCHEDULE, FA2), 106),
    ],
)
def test_the_readme_quotes_the_committed_runs(
    runs: tuple[str, ...], ours: str, others: tuple[str, ...], count: int
) -> None:
    """Geomean and minimum in the README's table are those of the runs' rows, column by column, to three digits."""
    times = times_us(*runs)
    line = readme_line("| " + ", ".join(f"`reports/{run}`" for run in runs))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert len(times) == count == int(cells[1])
    for cell, other in zip(cells[2:4], others, strict=True):
        found = ratios(times, ours, other)
        assert cell == f"geomean {geomean(found)}×, min {significant(min(found))}×"


def test_the_readme_names_what_was_lost() -> None:
    """Class by class, the rows behind FlashInfer, and the shares of the roof, from the rows of both sweeps."""
    times = times_us(*SWEEPS)
    classes = [
        f"{kind} {geomean(ratios({r: t for r, t in times.items() if r.endswith(kind)}, 'dispatched', FA2))}×"
        for kind in ("short", "medium", "saturated")
    ]
    assert readme_line("Over fa2 by length class").count(", ".join(classes)) == 1
    behind = [f"`{r}` {significant(t[FA2] / t['dispatched'])}×" for r, t in times.items() if t["dispatched"] > t[FA2]]
    named = readme_line("rows are behind fa2")
    assert all(words in named for words in behind)
    assert named.count("`tp") == len(behind) == 3


def test_the_readme_counts_verdicts_of_both_sweeps() -> None:
    """How many rows of the door are faster, slower and ambiguous, over the schedule and over fa2."""
    schedule: Counter[str] = Counter()
    fa2: Counter[str] = Counter()
    for run in SWEEPS:
        found = compare(read_run(RunFolder(ROOT / "reports" / run)))
        schedule.update(str(r.verdict) for r in found.rows if r.role == "candidate")
        fa2.update(str(r.verdict) for r in found.against_peers[FA2] if r.role == "candidate")
    cells = readme_line(f"| `reports/{SWEEPS[0]}`").strip("|").split("|")
    words = [", ".join(f"{c[v]} {v}" for v in ("faster", "slower", "ambiguous") if c[v]) for c in (schedule, fa2)]
    assert cells[-1].strip() == f"schedule: {words[0]}; fa2: {words[1]}"


def test_the_readme_counts_verdicts_of_the_captures() -> None:
    """Every capture is faster than both with the clustered kernel."""
    found = compare(read_run(RunFolder(ROOT / "reports/h200-replay-qsa-both"))).against_peers
    both = [str(r.verdict) for arm in (SCHEDULE, FA2) for r in found[arm] if r.arm == "clustered"]
    assert both == ["faster"] * 30
    assert "| 15 faster than either |" in readme_line("`reports/h200-replay-qsa-both`")


def test_the_readme_states_shares_of_the_roof() -> None:
    """The shares that the README gives for saturated rows, aims met or missed, are the runs'."""
    shares: dict[str, float] = {}
    for run in SWEEPS:
        with (ROOT / "reports" / run / "rows.csv").open() as stream:
            shares |= {r["row"]: float(r["roof_share"]) for r in csv.DictReader(stream) if r["role"] == "candidate"}
    alone = times_us(*SWEEPS)["tp1-B1-saturated"]["dispatched"]
    text = " ".join((ROOT / "README.md").read_text().split())
    large, middle = (tuple(f"{shares[f'{tp}-B{b}-saturated']:.0%}" for tp in ("tp1", "tp2")) for b in (128, 16))
    for share in (*large, *middle):
        assert share.replace("%", " %") in text
    assert f"{alone:.2f} µs" in text


def test_the_readme_quotes_trace_and_suites() -> None:
    """Times a call, the ratio of the trace and the count of suites are those of the runs' records."""
    lines = (ROOT / "reports/h200-trace-qsa/trace.jsonl").read_text().splitlines()
    found: dict[str, list[float]] = {}
    for record in map(json.loads, lines):
        if record["kind"] == "chain" and record["role"] != "control":
            found.setdefault(record["arm"], []).append(record["median_us"] / len(record["axes"]["rows"]))
    calls = {arm: statistics.median(trials) for arm, trials in found.items()}
    text = " ".join((ROOT / "README.md").read_text().split())
    ratio = significant(calls[SCHEDULE] / calls["clustered"])
    assert f"clustered {significant(calls['clustered'])} µs a call, {ratio}× over the schedule" in text
    assert f"grouped {significant(calls['grouped'])} µs" in text
    suites = json.loads((ROOT / "reports/h200-suites-qsa/verdict.json").read_text())["sentence"]
    assert suites.removeprefix("pass: ").removesuffix(" of dispatched") in text


def test_the_readme_quotes_the_paged_sweep() -> None:
    """Geomean and minimum over both other ways from token ids to output, and the number of rows."""
    times = times_us("h200-sweep-qsa-paged")
    text = " ".join((ROOT / "README.md").read_text().split())
    ours, others = "clustered", ("compact_then_packed", "flashinfer_paged_page1")
    first, second = (ratios(times, ours, other) for other in others)
    assert f"on {len(times)} rows (`reports/h200-sweep-qsa-paged`)" in text
    assert f"geomean {geomean(first)}×, min {significant(min(first))}×, over compaction" in text
    assert f"and {geomean(second)}×, min {significant(min(second))}×, over FlashInfer" in text


def test_the_readme_quotes_packed_decode_and_the_replays() -> None:
    """Ratios and shares of Kimi Delta Attention's rows in the README's table."""
    times = times_us("h200-sweep-kda-packed")
    line = readme_line("| `reports/h200-sweep-kda-packed`")
    fla = ratios(times, "tiled", "fla_fused_recurrent")
    assert f"geomean {geomean(fla)}×, min {significant(min(fla))}×, faster on every row" in line
    assert f"plain Triton {geomean(ratios(times, 'tiled', 'plain_triton'))}×" in line
    assert line.split("|")[2].strip() == str(len(times)) and min(fla) > 1
    signs = readme_line("| `reports/h200-replay-ssm`")
    for run, batch in (("h200-replay-ssm", 32), ("h200-replay-ssm-128", 128)):
        found = times_us(run)
        ring, snapshots = (found[f"hv12-B{batch}-T4-verify_{kind}"]["staged"] for kind in ("ring", "snapshots"))
        packed = found[f"HV12-B{batch}-packed_decode"]["tiled"]
        replayed = found[f"hv12-B{batch}-L16-predecayed-replay_decode"]["checkpoint"]
        assert f"{snapshots / ring:.1f}×" in signs and f"{packed / replayed:.2f}×" in signs


KDA_SWEEPS = (
    (("h200-sweep-kda-fused",), "staged", "plain_chain"),
    (("h200-sweep-kda-fold",), "streamed", "per_layer"),
    (("h200-sweep-kda-replay",), "checkpoint", "materialised"),
    (("h200-sweep-kda-prefill", "h200-sweep-kda-prefill-96"), "registers", "plain_four_launches"),
    (("h200-sweep-kda-residuals",), "single_pass", "three_launch"),
)


@pytest.mark.parametrize(("runs", "ours", "other"), KDA_SWEEPS, ids=str)
def test_the_readme_quotes_the_sweeps_of_kimi_delta_attention(runs: tuple[str, ...], ours: str, other: str) -> None:
    """Number of rows, geomean and minimum over the op's baseline, to three digits."""
    times = times_us(*runs)
    line = readme_line(f"| `reports/{runs[0]}`")
    found = ratios(times, ours, other)
    assert line.split("|")[2].strip() == str(len(times))
    assert f"geomean {geomean(found)}×, min {significant(min(found))}×" in line


def test_the_readme_quotes_both_verifications() -> None:
    """Each over its chain, and the two times at 32 requests of 4 tokens."""
    ring, snapshots = times_us("h200-sweep-kda-ring"), times_us("h200-sweep-kda-snapshots")
    line = readme_line("| `reports/h200-sweep-kda-ring`")
    assert line.split("|")[2].strip() == str(len(ring) + len(snapshots))
    for times, words in ((ring, "with a ring"), (snapshots, "with snapshots")):
        found = ratios(times, "staged", "chain")
        told = f"{geomean(found)}×, min {significant(min(found))}×, {words}"
        assert told in line
    row = "hv12-B32-T4"
    assert f"{ring[row]['staged']:.1f} against {snapshots[row]['staged']:.1f} µs" in line


def test_the_readme_quotes_prefill_beside_fla_and_residuals() -> None:
    """Ratio and times over fla-core at 8192 tokens, and what residuals gain at two sizes."""
    line = readme_line("| `reports/h200-sweep-kda-prefill`")
    for run, row in (("h200-sweep-kda-prefill", "HV12-T8192-one"), ("h200-sweep-kda-prefill-96", "HV96-T8192-one")):
        ours, fla = (times_us(run)[row][arm] for arm in ("registers", "fla_chunk_kda"))
        assert f"{significant(fla / ours)}× ({significant(ours)} against {significant(fla)} µs)" in line
    times, told = times_us("h200-sweep-kda-residuals"), readme_line("| `reports/h200-sweep-kda-residuals`")
    for tokens in (1024, 8192):
        row = times[f"T{tokens}-valid8-mix"]
        assert f"{significant(row['three_launch'] / row['single_pass'])}× at {tokens}" in told
