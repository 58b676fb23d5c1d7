"""The folder of a plan: whole records or none, one writer, one plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kda_lab.errors import RefereeError
from kda_lab.referee.serving.cell_records import REQUESTS, RUNS, CellRecord, PlanFolder, read_records, read_requests
from kda_lab.referee.serving.plan import Plan
from kda_lab.referee.serving.schedule import schedule
from kda_lab.referee.serving.stream import Outcome

ANSWER = Outcome(0, 0.5, "", "", 10.0, 60.0, 5.0, (5.0,), 8, 11)


def record(key: str = "c2-r0-base", attempt: int = 1) -> CellRecord:
    """A finished cell."""
    return CellRecord(
        key=key,
        order=0,
        arm="base",
        role="baseline",
        concurrency=2,
        round=0,
        attempt=attempt,
        sitting=1,
        status="ok",
        started_s=1.0,
        requests_file=f"{REQUESTS}/{key}.{attempt}.jsonl",
        requests_sha256="0" * 64,
    )


def opened(path: Path, plan: Plan, *added: CellRecord) -> PlanFolder:
    """A folder with records in it, closed again."""
    folder = PlanFolder(path, plan)
    for item in added:
        folder.add(item, [ANSWER])
    folder.close()
    return folder


def test_what_is_added_reads_back(tmp_path: Path, make_plan: Callable[..., Plan]) -> None:
    """A cell and its requests are read as they were written, in the fields of the referee's request reader."""
    kept = opened(tmp_path / "o", make_plan(), record()).records
    assert read_records(tmp_path / "o") == kept
    (request,) = read_requests(tmp_path / "o", kept[0])
    assert {
        k: request[k] for k in ("arm", "round", "order", "concurrency", "request", "error", "ttft_ms", "end_s")
    } == {
        "arm": "base",
        "round": 0,
        "order": 0,
        "concurrency": 2,
        "request": 0,
        "error": "",
        "ttft_ms": 10.0,
        "end_s": 0.56,
    }


def test_the_last_attempt_counts_and_all_stay(tmp_path: Path, make_plan: Callable[..., Plan]) -> None:
    """A second attempt is a further line; the first is kept."""
    plan = make_plan()
    folder = opened(tmp_path / "o", plan, record(), record(attempt=2))
    assert [r.attempt for r in read_records(tmp_path / "o")] == [1, 2]
    assert folder.latest()["c2-r0-base"].attempt == 2
    assert folder.attempts(schedule(plan)[0]) == 2


def test_a_line_that_was_cut_off_is_dropped(tmp_path: Path, make_plan: Callable[..., Plan]) -> None:
    """A last line without its end, as a kill leaves it, goes; the lines before it stay to the byte."""
    plan = make_plan()
    opened(tmp_path / "o", plan, record())
    file = tmp_path / "o" / RUNS
    whole = file.read_bytes()
    for cut in (1, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole + whole[:cut])
        again = opened(tmp_path / "o", plan)
        assert (len(again.records), again.sitting, file.read_bytes()) == (1, 2, whole)
    file.write_bytes(whole[:20])
    assert opened(tmp_path / "o", plan).records == []


def test_damage_elsewhere_is_an_error(tmp_path: Path, make_plan: Callable[..., Plan]) -> None:
    """A broken line that is not the last, or a line of another shape, is refused with its place."""
    plan = make_plan()
    opened(tmp_path / "o", plan, record())
    file = tmp_path / "o" / RUNS
    whole = file.read_text()
    for text, words in (
        (whole[:20] + "\n" + whole, r"runs\.jsonl:1: JSON is"),
        (whole + whole.replace('"attempt": 1', '"attempt": 0'), r"runs\.jsonl:2: attempt is 0; allowed: .*equal to 1"),
    ):
        file.write_text(text)
        with pytest.raises(RefereeError, match=words):
            PlanFolder(tmp_path / "o", plan)
    file.write_text(whole)
    opened(tmp_path / "o", plan)


def test_changed_requests_are_found(tmp_path: Path, make_plan: Callable[..., Plan]) -> None:
    """A request file that was edited or lost is refused; its digest stands in the cell's line."""
    (kept,) = opened(tmp_path / "o", make_plan(), record()).records
    file = tmp_path / "o" / kept.requests_file
    file.write_text(file.read_text().replace("10.0", "9.0"))
    with pytest.raises(RefereeError, match=r"base\.1\.jsonl: requests is SHA-256 .*; allowed: SHA-256 .*Restore it"):
        read_requests(tmp_path / "o", kept)
    file.unlink()
    with pytest.raises(RefereeError, match=r"requests is no file; allowed: SHA-256"):
        read_requests(tmp_path / "o", kept)


def test_another_plan_is_refused(tmp_path: Path, make_plan: Callable[..., Plan]) -> None:
    """A folder of another plan is refused, the fields that differ are named, and nothing changes."""
    opened(tmp_path / "o", make_plan(), record())
    before = {p: p.read_bytes() for p in (tmp_path / "o").rglob("*") if p.is_file()}
    with pytest.raises(
        RefereeError, match=r"which holds another plan: requests, rounds differ; .*Give each plan its own"
    ):
        PlanFolder(tmp_path / "o", make_plan(rounds=4, requests=9))
    assert {p: p.read_bytes() for p in (tmp_path / "o").rglob("*") if p.is_file()} == before
    opened(tmp_path / "o", make_plan())


def test_a_folder_of_something_else_is_refused(tmp_path: Path, make_plan: Callable[..., Plan]) -> None:
    """A folder with files and no plan is not taken over; a broken plan file is named."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RefereeError, match=r"which holds notes\.txt and no cells/plan\.json; allowed: a new or empty"):
        PlanFolder(tmp_path, make_plan())
    opened(tmp_path / "o", make_plan())
    (tmp_path / "o" / "cells" / "plan.json").write_text('{"plan": ')
    with pytest.raises(RefereeError, match=r"plan\.json:1: JSON is"):
        PlanFolder(tmp_path / "o", make_plan())


def test_a_second_writer_is_refused(tmp_path: Path, make_plan: Callable[..., Plan]) -> None:
    """Two drivers on one folder would interleave; the second is told so, and the lock goes with the first."""
    plan = make_plan()
    first = PlanFolder(tmp_path / "o", plan)
    with pytest.raises(RefereeError, match=r"into which another driver writes; allowed: a folder with one writer"):
        PlanFolder(tmp_path / "o", plan)
    first.close()
    opened(tmp_path / "o", plan)


def test_a_line_is_one_json_object(tmp_path: Path, make_plan: Callable[..., Plan]) -> None:
    """Each finished cell is exactly one line of JSON, also where a server's words hold line breaks of Unicode."""
    lost = record("c2-r0-cand").model_copy(update={"status": "failed", "failure": "http 500 (a\u2028b\x85c)"})
    opened(tmp_path / "o", make_plan(), record(), lost)
    lines = (tmp_path / "o" / RUNS).read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["c2-r0-base", "c2-r0-cand"]
    assert read_records(tmp_path / "o")[1].failure == lost.failure
