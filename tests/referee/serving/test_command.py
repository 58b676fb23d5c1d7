"""`kda-lab serve-ab`: exit codes, what is printed, and bad input in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from kda_lab.cli import app
from kda_lab.referee.serving.plan import Plan


def run(plan: Plan, folder: Path, *options: str) -> Result:
    """Write the plan and run the command."""
    file = folder / "plan.yaml"
    file.write_text(yaml.safe_dump(json.loads(plan.model_dump_json())))
    return CliRunner().invoke(app, ["serve-ab", str(file), "--out", str(folder / "o"), *options])


def test_a_measured_plan_exits_zero(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    """All cells measured: exit 0, and the claim file is named."""
    done = run(make_plan("command=ok", rounds=1), tmp_path)
    assert done.exit_code == 0, done.output
    assert "3 of 3 cells measured, 0 failed; claims: " in done.output
    assert (tmp_path / "o" / "claims.yaml").is_file()


def test_failed_cells_exit_one_and_are_named(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    """A failed cell: exit 1 and its reason on the screen; --retry-failed measures it once more."""
    plan = make_plan("command=bad", "command=worse,fault=truncate", rounds=1, warmup_requests=0)
    for options in ((), ("--retry-failed",)):
        done = run(plan, tmp_path, *options)
        assert done.exit_code == 1, done.output
        assert "c2-r0-cand: failed: 4 of 4 requests failed: 4 truncated stream" in done.output
        assert "2 of 3 cells measured, 1 failed" in done.output
    assert len((tmp_path / "o" / "cells" / "runs.jsonl").read_text().splitlines()) == 4


def test_a_dry_run_prints_the_order_and_writes_nothing(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    """--dry-run lists the cells; no folder is made."""
    done = run(make_plan(), tmp_path, "--dry-run")
    assert done.exit_code == 0
    assert [line.split()[-2] for line in done.output.splitlines()] == [
        "base", "cand", "base-control", "base-control", "cand", "base",
    ]  # fmt: skip
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("other", ["rounds", "stranger"])
def test_a_folder_of_another_plan_exits_two(make_plan: Callable[..., Plan], tmp_path: Path, other: str) -> None:
    """Another plan's folder, or a folder of something else: exit 2, one line, no traceback."""
    if other == "rounds":
        assert run(make_plan("command=two", rounds=1), tmp_path).exit_code == 0
    else:
        (tmp_path / "o").mkdir()
        (tmp_path / "o" / "mine.txt").write_text("")
    done = run(make_plan("command=two", rounds=2), tmp_path)
    assert done.exit_code == 2
    assert "error: serve-ab: folder is" in done.output
    assert "Traceback" not in done.output


def test_a_place_that_cannot_be_written_exits_two(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    """A file where the folder should be: exit 2 and one line."""
    (tmp_path / "o").write_text("")
    done = run(make_plan(), tmp_path)
    assert done.exit_code == 2
    assert "error: serve-ab: out is" in done.output
    assert "allowed: a place that can be written. File exists." in done.output
