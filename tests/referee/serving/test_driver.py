"""The driver against a real server: verdicts on known delays, failures kept, and going on after a kill."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kda_lab.errors import RefereeError
from kda_lab.referee.claim import Claim
from kda_lab.referee.judge import judge
from kda_lab.referee.readers import read
from kda_lab.referee.serving.cell_records import RUNS, CellRecord, read_records, read_requests
from kda_lab.referee.serving.driver import run_plan
from kda_lab.referee.serving.plan import Plan
from kda_lab.referee.serving.schedule import Cell, schedule

PACE = "first_ms=5,jitter_ms=0.5"
MEASURABLE_PERCENT = 10.0
"""Half of the 20 % to be found: where only larger changes are visible, the machine is too busy to decide."""


def silent(cell: Cell, record: CellRecord, measured: bool) -> None:
    """Watch nothing."""


def measured(server: Any, folder: Path) -> dict[str, Claim]:
    """Candidate to claim: one with the baseline's pace, and one whose tokens take 20 % longer."""
    paces = {"base": "delay_ms=40,seed=1", "same": "delay_ms=40,seed=2", "slow": "delay_ms=48,seed=3"}
    plan = Plan.model_validate(
        {
            "name": "paced",
            "arms": [{"name": n, "base_url": server.url(f"{PACE},{how}")} for n, how in paces.items()],
            "baseline": "base",
            "concurrency": [8],
            "rounds": 4,
            "requests": 8,
            "warmup_requests": 0,
            "prompts": {"input_tokens": 16, "output_tokens": 6},
            "metrics": ["tpot_median_ms"],
            "margin_percent": 2.0,
        }
    )
    run_plan(plan, folder, silent)
    return {claim.candidate: claim for claim in read(folder)}


@pytest.fixture(scope="module")
def paced(server: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Claim]:
    """The claims of one measurement for all tests of them."""
    return measured(server, tmp_path_factory.mktemp("paced") / "o")


def test_the_same_server_is_neither_faster_nor_slower(paced: dict[str, Claim], server: Any, tmp_path: Path) -> None:
    """Two servers of one pace are equivalent, or not told apart where the machine is busy.

    A test at 5 % calls one in twenty different; twice running, in the same direction, it must not.
    """
    word = judge(paced["same"]).verdict
    if word in ("faster", "slower"):
        assert judge(measured(server, tmp_path / "o")["same"]).verdict != word
    else:
        assert word in ("equivalent", "inconclusive")


def test_a_server_that_is_a_fifth_slower_is_found(paced: dict[str, Claim]) -> None:
    """A token delay that is 20 % longer is slower, unless this machine's own noise hides it."""
    judgement = judge(paced["slow"])
    visible = judgement.numbers.get("mde_percent", math.inf)
    if judgement.verdict == "inconclusive" and visible > MEASURABLE_PERCENT:
        pytest.skip(f"this machine is too busy: changes below {visible:.1f} % cannot be seen")
    assert judgement.verdict == "slower"


def test_every_cell_of_the_plan_is_recorded(paced: dict[str, Claim]) -> None:
    """Four rounds of baseline, candidate and repeat stand in each claim, in their order."""
    for claim in paced.values():
        assert [r.round for r in claim.runs] == [n for n in range(4) for _ in range(3)]
        assert [r.order for r in claim.runs] == sorted(r.order or 0 for r in claim.runs)
        assert all(r.metrics["completed"] == 8 for r in claim.runs)


def test_finished_cells_are_not_measured_again(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    """A second call measures nothing and changes no byte of the records."""
    plan = make_plan("drive=again")
    first = run_plan(plan, tmp_path / "o", silent)
    before = (tmp_path / "o" / RUNS).read_bytes()
    seen: list[bool] = []
    assert run_plan(plan, tmp_path / "o", lambda cell, record, measured: seen.append(measured)) == first
    assert seen == [False] * 6
    assert (tmp_path / "o" / RUNS).read_bytes() == before


def test_failed_cells_are_kept_and_can_be_measured_again(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    """Failures are recorded with reason and requests, stay as they are, and are measured again when asked to."""
    plan = make_plan("drive=ok", "drive=bad,fault=http500,every=3", rounds=1, warmup_requests=0)
    base, cand, control = run_plan(plan, tmp_path / "o", silent)
    assert [r.status for r in (base, cand, control)] == ["ok", "failed", "ok"]
    assert cand.failure == "1 of 4 requests failed: 1 http 500 (boom)"
    requests = read_requests(tmp_path / "o", cand)
    assert sorted(r["error"] for r in requests) == ["", "", "", "http 500"]
    assert run_plan(plan, tmp_path / "o", silent)[1] == cand
    again = run_plan(plan, tmp_path / "o", silent, retry_failed=True)
    assert (again[0].attempt, again[1].attempt, again[1].sitting) == (1, 2, 2)
    assert len(read_records(tmp_path / "o")) == 4


def test_a_server_that_is_not_there_fails_its_cells_only(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    """A refused connection fails the candidate's cells with a reason; the baseline is measured."""
    plan = make_plan("drive=there")
    gone = plan.arms[1].model_copy(update={"base_url": "http://127.0.0.1:9"})
    records = run_plan(plan.model_copy(update={"arms": (plan.arms[0], gone)}), tmp_path / "o", silent)
    assert {r.arm for r in records if r.status == "failed"} == {"cand"}
    assert all("ConnectError" in r.failure for r in records if r.arm == "cand")


def test_a_bad_prompt_file_leaves_no_folder(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    """Bad input is refused before anything is written."""
    (tmp_path / "p.jsonl").write_text("{}\n")
    plan = make_plan(prompts={"kind": "file", "file": str(tmp_path / "p.jsonl")})
    with pytest.raises(RefereeError, match=r"p\.jsonl:1: prompt is None"):
        run_plan(plan, tmp_path / "o", silent)
    assert not (tmp_path / "o").exists()


def test_a_killed_driver_goes_on_where_it_was(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    """After kill -9 in the middle of a cell the finished cells stay to the byte and the rest is measured."""
    plan = make_plan("drive=kill,delay_ms=20", "drive=kill2,delay_ms=20")
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(json.loads(plan.model_dump_json())))
    runs = tmp_path / "o" / RUNS
    command = [
        sys.executable,
        "-m",
        "kda_lab.cli",
        "serve-ab",
        str(tmp_path / "plan.yaml"),
        "--out",
        str(tmp_path / "o"),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not (runs.exists() and runs.read_bytes().count(b"\n") >= 2) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    before = runs.read_bytes()
    kept = before.count(b"\n")
    assert 2 <= kept < 6
    with runs.open("ab") as stream:
        stream.write(before[:50])
    records = run_plan(plan, tmp_path / "o", silent)
    assert runs.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    assert [r.sitting for r in records] == [1] * kept + [2] * (6 - kept)
    assert [r.key for r in records] == [c.key for c in schedule(plan)]
    assert all(read_requests(tmp_path / "o", r) for r in records)
