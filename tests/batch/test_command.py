"""The command `kda-lab batch`: real processes, exit codes, logs, the hook, and refusals that start nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from kda_lab.batch.command import Child, _lanes, _only_batch
from kda_lab.batch.plan import KDA_LAB
from kda_lab.batch.runner import _only_runner
from kda_lab.cli import app
from kda_lab.errors import ParameterError
from kda_lab.run_folder import RunFolder

Make = Callable[..., Path]


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Write a plan and run the command on it, everything below tmp_path, on a machine with two GPUs in name."""
    monkeypatch.setattr("kda_lab.runtime.visible_gpus", lambda: ("4", "5"))

    def run(steps: list[dict[str, Any]], *options: str) -> Result:
        plan = tmp_path / "plan.yaml"
        plan.write_text(yaml.safe_dump(steps))
        folders = ["--reports", str(tmp_path / "reports"), "--logs", str(tmp_path / "logs")]
        return CliRunner().invoke(app, ["batch", str(plan), *folders, *options])

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
        (("--gpus", "0,0"), "gpus is '0,0'; allowed: different ones of 0, 1"),
        (("--gpus", "2"), "gpus is '2'; allowed: different ones of 0, 1"),
        (("--gpus", "0,01"), "gpus is '0,01'; allowed: different ones of 0, 1"),
        (("--gpus", "0,"), "gpus is '0,'; allowed: different ones of 0, 1"),
        (("--then", "echo 'a"), 'then is "echo \'a" (No closing quotation)'),
        (("--then", " "), "then is ' '; allowed: a command with its words"),
        (("--logs", "/dev/null"), "logs is '/dev/null' (File exists); allowed: a folder that can be written"),
        (("--logs", "/proc/x"), "logs is '/proc/x' (No such file or directory)"),
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
    """All of them under the names that a child's environment takes, or those in the given places; else the CPU."""
    monkeypatch.setattr("kda_lab.runtime.visible_gpus", lambda: ("GPU-3", "GPU-5", "GPU-7"))
    assert _lanes("") == ("GPU-3", "GPU-5", "GPU-7")
    assert _lanes("2, 0") == ("GPU-7", "GPU-3")
    monkeypatch.setattr("kda_lab.runtime.visible_gpus", tuple)
    assert _lanes("") == ("cpu",)
    with pytest.raises(ParameterError, match="gpus is '0'; allowed: nothing, since no GPU is visible here"):
        _lanes("0")


def test_a_second_batch_with_the_same_logs_is_refused(
    batch: Callable[..., Result], make_notebook: Make, tmp_path: Path
) -> None:
    """Exit 2, and the first one's logs stay as they are."""
    (tmp_path / "logs").mkdir()
    step = {"name": "a", "notebook": str(make_notebook()), "seconds": 60}
    with _only_batch(tmp_path / "logs"):
        result = batch([step])
    assert (result.exit_code, "Another batch is at work there" in result.output) == (2, True)
    assert list((tmp_path / "logs").iterdir()) == []


def test_a_log_that_cannot_be_written_fails_its_step_alone(
    batch: Callable[..., Result], make_notebook: Make, tmp_path: Path
) -> None:
    """The others run."""
    (tmp_path / "logs" / "a.txt").mkdir(parents=True)
    step = {"name": "a", "notebook": str(make_notebook()), "seconds": 60}
    result = batch([step, step | {"name": "b"}])
    assert result.exit_code == 1
    assert "a: failed (not started: [Errno 21] Is a directory" in result.output
    assert "b: passed" in result.output


def test_a_hook_that_hangs_is_ended(
    batch: Callable[..., Result], make_notebook: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch says so and goes on."""
    monkeypatch.setattr("kda_lab.batch.command.THEN_S", 0.2)
    step = {"name": "a", "notebook": str(make_notebook()), "seconds": 60}
    result = batch([step], "--then", "sleep 600")
    assert (result.exit_code, "sleep 600: ended after 0.2 s" in result.output) == (0, True)


def wait_until_gone(pid: str) -> None:
    """Return once a process is no more, or only waits to be collected: a killed one takes a moment to go."""
    state = Path(f"/proc/{pid}/stat")
    while True:
        try:
            if state.read_text().split()[2] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.01)


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
    wait_until_gone(pid.read_text())


CELL = """
import pathlib, subprocess, time
child = subprocess.Popen(["sleep", "600"])
pathlib.Path(run_dir, "pid.new").write_text(str(child.pid))
pathlib.Path(run_dir, "pid.new").rename(pathlib.Path(run_dir, "pid"))
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_batch_that_is_told_to_end_ends_everything(make_notebook: Make, tmp_path: Path, number: int) -> None:
    """Run, notebook process and what a cell has started are gone, and the folder is free for the same command."""
    plan, pid = tmp_path / "plan.yaml", tmp_path / "reports" / "a" / "pid"
    plan.write_text(yaml.safe_dump([{"name": "a", "notebook": str(make_notebook(CELL)), "seconds": 60}]))
    command = [*KDA_LAB, "batch", str(plan), "--reports", str(pid.parents[1]), "--logs", str(tmp_path / "logs")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not pid.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait() == 128 + number
    wait_until_gone(pid.read_text())
    assert f"stopped by {signal.SIGTERM.name}" in (tmp_path / "logs" / "a.txt").read_text()
    with _only_runner(RunFolder(pid.parent)):
        pass
