"""`read`: any file or folder of claims, and one error for everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kda_lab.errors import RefereeError
from kda_lab.referee.readers import read


def record(throughput: float, concurrency: int = 4, **more: Any) -> dict[str, Any]:
    """A short result of a serving benchmark."""
    found = {"output_throughput": throughput, "duration": 2.0, "completed": 3, "max_concurrency": concurrency}
    return found | {"mean_ttft_ms": 100.0} | more


def write(path: Path, *records: dict[str, Any]) -> Path:
    """A JSON Lines file."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def test_a_folder_of_results_is_one_claim_an_operating_point(tmp_path: Path) -> None:
    """Files are arms, records are runs, concurrencies are claims, `control` is the baseline again."""
    folder = tmp_path / "ab"
    write(folder / "baseline.jsonl", record(10), record(20, 8), record(11))
    write(folder / "fused.x.jsonl", record(12), record(24, 8))
    write(folder / "control.jsonl", record(10.5))
    four, eight = read(folder)
    assert (four.name, eight.name, four.baseline, four.candidate) == ("ab-c4", "ab-c8", "baseline", "fused")
    assert [r.metrics["throughput_tok_s"] for r in four.runs] == [10, 11, 10.5, 12]
    assert [(c.arm, c.repeats) for c in four.controls] == [("control", "baseline")]
    assert eight.controls == ()
    assert four.runs[1].source.file == "ab/baseline.jsonl"
    assert four.runs[1].source.line == 3


def test_runs_and_requests_are_read_from_json_lines(tmp_path: Path) -> None:
    """A run with metrics is taken as it is; requests are gathered."""
    run = {"arm": "baseline", "metrics": {"ttft_mean_ms": 5.0}, "concurrency": 2, "output_tokens": 3}
    request = {"arm": "next", "concurrency": 2, "ttft_ms": 4.0, "tpot_ms": 1.0, "output_tokens": 3}
    (claim,) = read(write(tmp_path / "all.jsonl", run, request))
    assert claim.metric == "ttft_mean_ms"
    assert [(r.arm, r.metrics["ttft_mean_ms"]) for r in claim.runs] == [("baseline", 5.0), ("next", 4.0)]


def test_a_folder_of_folders_is_read_folder_by_folder(tmp_path: Path) -> None:
    """In the order of their names; claims of different folders do not mix."""
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.csv").write_text(f"claim,arm,kernel_us\n{name},baseline,1\n{name},candidate,2\n")
    (tmp_path / "empty").mkdir()
    assert [c.name for c in read(tmp_path)] == ["a", "b"]


def test_kinds_of_files_stand_beside_each_other(tmp_path: Path) -> None:
    """YAML and CSV hold claims of their own; derived numbers are none."""
    (tmp_path / "a.yaml").write_text("claims:\n  - name: one\n")
    (tmp_path / "b.csv").write_text("arm,kernel_us\nbaseline,1\ncandidate,2\n")
    (tmp_path / "derived.csv").write_text("name\n")
    (tmp_path / "notes.txt").write_text("not read")
    assert [c.name for c in read(tmp_path)] == ["one", "b"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("f.txt", "x", r"suffix is '\.txt'; allowed: \.yaml, \.yml, \.csv, \.json, \.jsonl"),
        ("f.jsonl", '{"x": 1}\n', r"f\.jsonl:1: record is keys \['x'\]; allowed: a result of sglang\.bench_serving"),
        ("f.jsonl", '{"arm": "baseline", "metrics": {"speed": 1}}\n', r"f\.jsonl:1: metrics is \['speed'\]; allowed: accept_length, "),
        ("f.jsonl", '{"arm": "x", "metrics": {"kernel_us": 1}}\n', r"arms is \['x'\] at any load; allowed: baseline, one candidate"),
        ("f.jsonl", "".join(json.dumps({"arm": a, "metrics": {"kernel_us": 1}}) + "\n" for a in ("baseline", "b", "c")),
         r"arms is \['baseline', 'b', 'c'\]"),
        ("f.jsonl", "".join(json.dumps({"arm": a, "round": 1, "metrics": {"kernel_us": 1}}) + "\n" for a in ("baseline", "b", "b")),
         r"f\.jsonl:3: run is round 1 of 'b', as on line 2"),
    ],
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    """What the file is, and what it may be."""
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(RefereeError, match=message):
        read(path)


def test_an_empty_folder_holds_no_claim(tmp_path: Path) -> None:
    """Nor does a folder of empty folders."""
    (tmp_path / "inner").mkdir()
    with pytest.raises(RefereeError, match="folder is no claim in it; allowed: files ending in"):
        read(tmp_path)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    """A folder is what it holds."""
    outside, folder = tmp_path / "o.csv", tmp_path / "in"
    outside.write_text("arm,kernel_us\nbaseline,1\ncandidate,2\n")
    folder.mkdir()
    (folder / "l.csv").symlink_to(outside)
    with pytest.raises(RefereeError, match=r"l\.csv: link is to .*allowed: files of the folder\. Copy the file there"):
        read(folder)


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    """The path is named, without a traceback of the file system."""
    with pytest.raises(RefereeError, match=r"file '.*absent\.yaml' does not exist"):
        read(tmp_path / "absent.yaml")


GOOD = {
    ".yaml": "thread: t\nclaims:\n  - name: n\n    runs:\n      - {arm: baseline, round: 1, e2e_mean_s: 161.2}\n"
    "    published:\n      - {statistic: change, metric: graph_ms, printed: '-1.00%'}\n",
    ".csv": "arm,round,kernel_us,resolved.tp\nbaseline,1,10.5,2\ncandidate,1,9.5,2\n",
    ".jsonl": json.dumps({**record(10), "arm": "baseline", "ttfts": [0.1], "itls": [[0.1]], "errors": [""]})
    + "\n"
    + json.dumps({"arm": "b", "concurrency": 4, "ttft_ms": 1.0, "e2e_ms": 2.0, "output_tokens": 2})
    + "\n",
}
PIECES = (
    "",
    "1e999",
    "-1",
    "nan",
    "{",
    "}",
    "[",
    "]",
    '"',
    "\n",
    ",",
    ":",
    "- ",
    "null",
    "true",
    "é",
    "\x00",
    "0" * 400,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(GOOD)), st.data())
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, suffix: str, data: st.DataObject) -> None:
    """Cut, spliced or overwritten anywhere: claims, or one refusal that names the file; nothing else escapes."""
    text = GOOD[suffix]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    path = tmp_path / f"f{suffix}"
    path.write_text(text[:start] + data.draw(st.sampled_from(PIECES)) + text[end:])
    try:
        assert read(path)
    except RefereeError as error:
        assert f"f{suffix}" in str(error)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from((".yaml", ".csv", ".json", ".jsonl")), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    """Files that were never claims: one refusal that names the file."""
    path = tmp_path / f"f{suffix}"
    path.write_bytes(content)
    with pytest.raises(RefereeError, match=rf"f\{suffix}"):
        read(path)
