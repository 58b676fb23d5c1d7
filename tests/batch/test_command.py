"""The command `kda-lab batch`: real processes, exit codes, logs, the hook, and refusals that start nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from kda_lab.batch.command import Child, _lanes
from kda_lab.cli import app
from kda_lab.errors import ParameterError

Make = Callable[..., Path]


@pytest.fixture
def batch(tmp_path: Path) -> Callable[..., Result]:
    """Write a plan and run the command on it, everything below tmp_path."""

    def run(steps: list[dict[str, Any]], *options: str) -> Result:
        plan = tmp_path / "plan.yaml"
        plan.write_text(yaml.safe_dump(steps))
        folders = ["--reports", str(tmp_path / "reports"), "--logs", str(tmp_path / "logs")]
        return CliRunner().invoke(app, ["batch", str(plan), *folders, "--gpus", "0", *options])

    return run


def test_steps_run_and_their_verdicts_count(batch: Callable[..., Result], make_notebook: Make, tmp_path: Path) -> None:
    """One that passes, one whose verdict fails and one that waits for it: exit 1, a log each, the hook after each end."""
    notebook = str(make_notebook("import os", "print(os.environ['CUDA_VISIBLE_DEVICES'])"))
    good = {"name": "good", "notebook": notebook, "seconds": 60, "timed": False}
    bad = good | {"name": "bad", "parameters": {"rows": -1}}
    hook = f"{sys.executable} -c \"open('{tmp_path}/ends', 'a').write('x')\""
    result = batch([good, bad, good | {"name": "next", "after": ["bad"]}], "--then", hook)
    assert result.exit_code == 1, result.output
    assert "1 passed, 1 failed, 1 not started" in result.output
    assert "bad did not pass" in result.output
    assert "rows is 3" in (tmp_path / "logs" / "good.txt").read_text()
    assert "rows is -1" in (tmp_path / "logs" / "bad.txt").read_text()
    assert (tmp_path / "ends").read_text() == "xx"
    again = batch([good], "--then", "/no/such/command")
    assert (again.exit_code, "1 passed" in again.output) == (0, True)
    assert "/no/such/command: No such file" in again.output
    assert "not run again" in (tmp_path / "logs" / "good.txt").read_text()


def test_time_that_is_too_short_is_exit_3(batch: Callable[..., Result], make_notebook: Make, tmp_path: Path) -> None:
    """Nothing is started, and the reason stands there."""
    result = batch([{"name": "a", "notebook": str(make_notebook()), "seconds": 60}], "--seconds", "5")
    assert (result.exit_code, "expects 60 s, 5.0 s left" in result.output) == (3, True)
    assert not (tmp_path / "reports").exists()


def test_dry_run_prints_commands_and_starts_nothing(
    batch: Callable[..., Result], make_notebook: Make, tmp_path: Path
) -> None:
    """One line a step, ready to paste."""
    notebook = make_notebook()
    result = batch(
        [{"name": "a", "notebook": str(notebook), "seconds": 1, "parameters": {"batches": [2]}}], "--dry-run"
    )
    assert result.output == f"kda-lab run {notebook} -p 'batches=[2]' --out {tmp_path}/reports/a\n"
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--seconds", "0"), "seconds is 0.0; allowed: a number above 0"),
        (("--seconds", "nan"), "seconds is nan; allowed: a number above 0"),
        (("--gpus", "0,0"), "gpus is '0,0'; allowed: different whole numbers"),
        (("--gpus", "a"), "gpus is 'a'; allowed: different whole numbers"),
        (("--only", "b"), "only is 'b'; allowed: a name or pattern of a"),
    ],
)
def test_bad_options_are_exit_2(
    batch: Callable[..., Result], make_notebook: Make, options: tuple[str, ...], words: str
) -> None:
    """One line that names what was given and what is allowed."""
    result = batch([{"name": "a", "notebook": str(make_notebook()), "seconds": 1}], *options)
    assert result.exit_code == 2
    assert words in result.output


def test_wrong_parameters_are_exit_2_before_anything_starts(
    batch: Callable[..., Result], make_notebook: Make, tmp_path: Path
) -> None:
    """The good step before the bad one is not run either."""
    good = {"name": "a", "notebook": str(make_notebook()), "seconds": 1}
    result = batch([good, good | {"name": "b", "parameters": {"rowz": 1}}])
    assert (result.exit_code, "Did you mean 'rows'" in result.output) == (2, True)
    assert not (tmp_path / "reports").exists()


def test_lanes_are_the_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those asked for; else those of this process; else the CPU."""
    monkeypatch.setattr("kda_lab.runtime.visible_gpus", lambda: ("3", "5"))
    assert _lanes("0, 1") == ("0", "1")
    assert _lanes("") == ("3", "5")
    monkeypatch.setattr("kda_lab.runtime.visible_gpus", tuple)
    assert _lanes("") == ("cpu",)
    with pytest.raises(ParameterError):
        _lanes("0,,1")


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(600)
"""


def test_stopping_reaches_everything_a_step_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even a child that ignores the polite signal is gone afterwards, with its own child."""
    monkeypatch.setattr("kda_lab.batch.command.STOP_S", 0.2)
    pid = tmp_path / "pid"
    child = Child((sys.executable, "-c", STUBBORN, str(pid)), tmp_path / "log", "cpu")
    while not (pid.exists() and pid.read_text()):
        assert child.poll() is None
        time.sleep(0.01)
    child.stop()
    assert child.poll() is not None
    state = Path(f"/proc/{pid.read_text()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"
