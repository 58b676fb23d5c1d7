"""The page of a run: complete, self-contained, the same bytes twice, in any state of the run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kda_lab.report import html
from kda_lab.report.records import read_run
from kda_lab.run_folder import RunFolder, read_json_lines, write_json, write_json_lines
from kda_lab.timing.statistics import RowResult

Fill = Callable[..., RunFolder]
REMOTE = re.compile(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|@import|<script|<link""", re.IGNORECASE)


@pytest.fixture
def run(
    tmp_path: Path, capture_rows: list[RowResult], verify_records: list[dict[str, Any]], fill_run: Fill
) -> RunFolder:
    return fill_run(tmp_path / "a run", capture_rows[:6], verify_records)


def contents(run: RunFolder) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in run.path.iterdir()}


def test_the_same_records_give_the_same_bytes(run: RunFolder) -> None:
    """Every file of a second report is identical to the first: HTML, SVG, PNG, CSV, Parquet."""
    html.write_report(run)
    first = contents(run)
    html.write_report(run)
    assert contents(run) == first
    assert {
        "index.html",
        "rows.csv",
        "rows.parquet",
        "speedup_grouped.svg",
        "latency.png",
        "errors_grouped.svg",
    } <= set(first)


def test_the_page_is_complete_and_self_contained(run: RunFolder) -> None:
    """Verdict, provenance, figures with alt text, all tables and refusals are on one page without the network."""
    page = html.write_report(run).read_text()
    for words in (
        "<strong>PASSED</strong>75 of 75 replays passed", "device.driver", "580.159.04", "Parameters", 'role="img" aria-label="demo.attention',
        "Ratios per batch", "Timing rows", "Replays", "killed 80/80 over 15 captures. Every mutant was rejected.", "Refusals",
        "importing cutlass raised ImportError", 'href="executed.ipynb"', 'href="verify.jsonl"', 'href="notebook.html"', 'href="rows.csv"',
    ):  # fmt: skip
        assert words in page, words
    assert not REMOTE.search(page)
    assert len(page.encode()) < 2_000_000
    assert page.index("PASSED") < page.index("What ran") < page.index("Figures") < page.index("Files")


def test_links_point_to_files_that_exist(run: RunFolder) -> None:
    """Every relative link of the page leads to a file of the run."""
    page = html.write_report(run).read_text()
    targets = set(re.findall(r'href="([^"#]+)"', page))
    assert targets and all((run.path / t).is_file() for t in targets)


def test_every_id_is_there_once(run: RunFolder) -> None:
    """Inlined figures do not share ids."""
    ids = re.findall(r'\bid="([^"]+)"', html.write_report(run).read_text())
    assert len(ids) == len(set(ids))


def test_records_are_escaped(run: RunFolder) -> None:
    """Markup in parameters, verdict and reasons is printed, not run."""
    evil = "<script>alert(1)</script>"
    write_json(run.parameters, {"name": evil})
    write_json(run.verdict, {"passed": False, "sentence": f"fail: {evil}", "failures": [evil], "evidence": {evil: 1}})
    write_json_lines(run.verify_records, [{"kind": "refused", "op": "o", "arm": evil, "role": "peer", "reason": evil}])
    page = html.write_report(run).read_text()
    assert evil not in page and page.count("&lt;script&gt;") >= 6


@pytest.mark.parametrize(
    ("verdict", "word", "sentence"),
    [
        ({"passed": True, "sentence": "pass: all"}, "PASSED", "all"),
        ({"passed": False, "sentence": "fail: one: two"}, "FAILED", "one: two"),
        ({"passed": False, "sentence": "ambiguous: no evidence"}, "AMBIGUOUS", "no evidence"),
        ({"passed": False, "sentence": "own words"}, "FAILED", "own words"),
    ],
)
def test_verdict_words(tmp_path: Path, verdict: dict[str, Any], word: str, sentence: str) -> None:
    """The page says the verdict in a word and does not repeat it in the sentence."""
    run = RunFolder.at(tmp_path)
    write_json(run.verdict, verdict)
    found = html.verdict_words(read_run(run))
    assert (found.word, found.sentence) == (word, sentence)


def test_figures_of_the_notebook_are_shown_as_pixels(tmp_path: Path) -> None:
    """What a notebook saved stands on the page, its SVG only behind a link; a figure of an earlier page does not."""
    run = RunFolder.at(tmp_path)
    for name in ("selection", "latency"):
        (tmp_path / f"{name}.svg").write_text("<svg><script>alert(1)</script></svg>")
        (tmp_path / f"{name}.png").write_bytes(b"\x89PNG pixels")
    (tmp_path / "alone.svg").write_text("<svg/>")
    page = html.write_report(run).read_text()
    assert 'id="figure-selection"' in page and 'href="selection.svg"' in page and "Drawn by the run" in page
    assert "alert(1)" not in page and "figure-latency" not in page and "figure-alone" not in page


def test_a_trace_is_not_called_untimed(tmp_path: Path) -> None:
    """Its times stand in its own records, its figure and its verdict."""
    (tmp_path / "trace.jsonl").write_text("{}\n")
    page = html.write_report(RunFolder.at(tmp_path)).read_text()
    assert "not timed" not in page and 'href="trace.jsonl"' in page


def test_an_empty_run_has_a_page(tmp_path: Path) -> None:
    """A run that crashed at once is shown as such."""
    page = html.write_report(RunFolder.at(tmp_path)).read_text()
    assert "no verdict" in page and "not timed" in page and "This run has no provenance.json." in page


def test_a_cpu_run_says_that_it_is_not_timed(
    tmp_path: Path, verify_records: list[dict[str, Any]], fill_run: Fill
) -> None:
    """Without timing records, on a CPU, the page says so and draws the errors."""
    page = html.write_report(fill_run(tmp_path, [], verify_records, "cpu")).read_text()
    assert "not timed (interpreter)" in page and "figure-errors_grouped" in page and "figure-speedup" not in page


def test_broken_records_are_named_on_the_page(run: RunFolder) -> None:
    """A broken line, verdict and notebook each leave a sentence; the rest of the page is there."""
    with run.timing_records.open("a") as stream:
        stream.write('{"kind": "tim')
    run.verdict.write_text("{")
    run.executed_notebook.write_text("{")
    page = html.write_report(run).read_text()
    for words in (
        "timing.jsonl line 31: cannot be read",
        "verdict.json: cannot be read",
        "notebook.html: executed.ipynb cannot be shown",
        "no verdict",
    ):
        assert words in page, words
    assert "Timing rows" in page


def test_a_figure_that_cannot_be_drawn_is_named(run: RunFolder, verify_records: list[dict[str, Any]]) -> None:
    """A candidate without any error leaves a sentence in place of its figure."""
    write_json_lines(run.verify_records, [{**verify_records[1], "errors": {}, "checks": []}])
    page = html.write_report(run).read_text()
    assert "figure errors_grouped: report: grouped has no positive error on any of 1 captures." in page


def test_a_page_that_would_be_too_large_links_and_cuts(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit figures stand beside the page and tables are cut, with a sentence that says so."""
    monkeypatch.setattr(html, "PAGE_LIMIT_BYTES", 20_000)
    page = html.write_report(run).read_text()
    assert '<img src="latency.svg"' in page and "The first 50 of 75 lines; the files below hold all." in page


def test_files_of_an_earlier_report_do_not_stay(run: RunFolder) -> None:
    """When the times and the notebook are gone, so are the tables and the page made of them."""
    html.write_report(run)
    run.timing_records.unlink()
    run.executed_notebook.unlink()
    page = html.write_report(run).read_text()
    assert not any((run.path / n).exists() for n in ("rows.csv", "rows.parquet", "notebook.html"))
    assert "rows.csv" not in page and "notebook.html" not in page


def test_file_names_are_tame() -> None:
    """An arm's name with a path or a colon makes a plain file name."""
    assert html.file_name("speedup", "exported:a/../b v2") == "speedup_exported_a____b_v2"


def test_a_timed_chain_comes_first(tmp_path: Path, fill_chain: Fill) -> None:
    """The pipeline figure stands first, a section tells what became of isolated results, and no policy has figures of its own."""
    run = fill_chain(tmp_path)
    page = html.write_report(run).read_text()
    assert re.findall(r'<figure id="figure-([^"]+)"', page) == ["pipeline", "latency", "roof"]
    assert {p.stem for p in run.path.glob("*.svg")} == {"pipeline", "latency", "roof"}
    for words in (
        "In the chain, in short: µs of one layer", '<a href="#chain">In the chain</a>', 'href="chain.jsonl"',
        "the isolated win turns into a loss", "One layer, in µs, against streamed stream/stream", "Each chain once, untimed",
        "Each cache policy apart and in the chain", "streamed stream/stream takes 2.00× to 2.0",
    ):  # fmt: skip
        assert words in page, words
    assert page.index("Figures") < page.index('<h2 id="chain"') < page.index('<h2 id="timing"')


def test_a_broken_line_of_a_chain_is_on_the_page(tmp_path: Path, fill_chain: Fill) -> None:
    """It is named among the problems, and the chain is shown from the other lines."""
    run = fill_chain(tmp_path)
    with (run.path / "chain.jsonl").open("a") as stream:
        stream.write('{"kind": "chain"')
    page = html.write_report(run).read_text()
    assert "chain.jsonl line 30: cannot be read" in page and "figure-pipeline" in page


def test_a_chain_that_was_only_checked(tmp_path: Path, fill_chain: Fill) -> None:
    """Without times there is no picture, but the checks are on the page."""
    run = fill_chain(tmp_path)
    checks = [r for r in read_json_lines(run.path / "chain.jsonl") if r["kind"] == "check"]
    write_json_lines(run.path / "chain.jsonl", checks)
    run.timing_records.unlink()
    page = html.write_report(run).read_text()
    assert "Each chain once, untimed" in page and "<figure" not in page and "not timed" in page


def test_the_summary_is_of_the_chain_too(tmp_path: Path, fill_chain: Fill) -> None:
    """The index takes the ratios in the chain, and a changed chain makes the summary stale."""
    run = fill_chain(tmp_path)
    html.write_report(run)
    found = json.loads((run.path / "summary.json").read_bytes())
    assert [s["arm"] for s in found["speedups"]] == [
        "streamed stream/persist in the chain",
        "streamed persist/persist in the chain",
    ]
    assert found["timing_sha256"] == html.timing_sha256(run)
    (run.path / "chain.jsonl").write_bytes(b"")
    assert found["timing_sha256"] != html.timing_sha256(run)


def test_rows_with_eight_sets_have_their_own_figure(run: RunFolder) -> None:
    """They stand in the tables and in the figure beside the cold rows, and in no other picture."""
    records = list(read_json_lines(run.timing_records))
    before = html.write_report(run).parent.joinpath("speedup_grouped.svg").read_bytes()
    again = [r for r in records if r["role"] != "peer" and r["kind"] == "timing"]
    eight = [{**r, "row": f"{r['row']} (eight sets)", "bytes_rotated": 8 * r["bytes_per_call"]} for r in again]
    write_json_lines(run.timing_records, [*records, *eight])
    page = html.write_report(run).read_text()
    assert (run.path / "speedup_grouped.svg").read_bytes() == before
    assert "figure-eight_sets_grouped" in page and "figure-roof" in page
    assert "(eight sets)" in page and "(eight sets)" in (run.path / "rows.csv").read_text()
