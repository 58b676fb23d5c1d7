"""The runner: exit codes, kernel, time limit, resume, logs, and a source notebook that stays as it is."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kda_lab.batch import runner
from kda_lab.batch.runner import CRASHED, FAILED, PASSED, REFUSED, run_notebook
from kda_lab.errors import ParameterError
from kda_lab.run_folder import write_json

Make = Callable[..., Path]


def test_passed_run_leaves_a_complete_folder(
    tmp_path: Path, make_notebook: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit 0; executed copy, log, parameters, provenance and verdict are there, and the source is untouched."""
    notebook = make_notebook(
        "import sys\nprint('from the cell', sys.executable, rows, batches)\nprint('warned', file=sys.stderr)"
    )
    before = notebook.read_bytes()
    run = tmp_path / "run"
    assert run_notebook(notebook, {"rows": "7", "batches": "[2, 8]"}, run, report=False) == PASSED
    assert notebook.read_bytes() == before
    log = (run / "log.txt").read_text()
    assert f"from the cell {sys.executable} 7 [2, 8]" in log and "warned" in log and "rows is 7" in log
    parameters = json.loads((run / "parameters.json").read_text())
    assert parameters["parameters"] == {"rows": 7, "scale": 0.5, "verbose": False, "name": "base", "batches": [2, 8]}
    provenance = json.loads((run / "provenance.json").read_text())
    assert provenance["started_utc"].endswith("+00:00") and provenance["device"]["type"]
    executed = nbformat.read(run / "executed.ipynb", as_version=4)
    assert "from the cell" in executed.cells[2].outputs[0].text
    assert "run:" in capfd.readouterr().err


def test_failed_verdict_is_exit_1(tmp_path: Path, make_notebook: Make) -> None:
    """A verdict that says no decides the exit code, although its cell also raises."""
    assert run_notebook(make_notebook(), {"rows": 0}, tmp_path / "run", report=False) == FAILED
    assert "rows is 0" in (tmp_path / "run" / "log.txt").read_text()


def test_missing_verdict_is_not_a_pass(tmp_path: Path, make_notebook: Make) -> None:
    """A notebook that runs through without a verdict exits 1."""
    assert run_notebook(make_notebook(verdict="pass"), {}, tmp_path / "run", report=False) == FAILED
    assert "no verdict" in (tmp_path / "run" / "log.txt").read_text()


def test_raising_cell_is_exit_3_and_its_outputs_are_kept(tmp_path: Path, make_notebook: Make) -> None:
    """A crash before the verdict exits 3; the executed copy shows the error and everything before it."""
    notebook = make_notebook("print('before')\nraise KeyError('lost')")
    assert run_notebook(notebook, {}, tmp_path / "run", report=False) == CRASHED
    assert "before" in (tmp_path / "run" / "executed.ipynb").read_text()
    assert "raised KeyError: 'lost'" in (tmp_path / "run" / "log.txt").read_text()


def test_parameter_that_a_cell_refuses_is_exit_2(tmp_path: Path, make_notebook: Make) -> None:
    """A value of the right type that only the notebook can judge is wrong usage, not a crash."""
    cell = "from kda_lab.errors import ParameterError, Reason\nraise ParameterError('toy', [Reason('rows', '3', 'even numbers')])"
    assert run_notebook(make_notebook(cell), {}, tmp_path / "run", report=False) == REFUSED
    assert "toy: rows is 3; allowed: even numbers." in (tmp_path / "run" / "log.txt").read_text()


def test_dead_kernel_is_exit_3(tmp_path: Path, make_notebook: Make) -> None:
    """A kernel that exits in the middle of a cell is a crash, not a hang and not a pass."""
    notebook = make_notebook("import os\nos._exit(9)")
    assert run_notebook(notebook, {}, tmp_path / "run", report=False) == CRASHED
    assert "the kernel process died" in (tmp_path / "run" / "log.txt").read_text()


def test_time_limit_covers_the_whole_run(tmp_path: Path, make_notebook: Make) -> None:
    """The limit is for all cells together; the kernel is gone afterwards."""
    cell = "import os, pathlib, time\npathlib.Path(run_dir, 'pid').write_text(str(os.getpid()))\ntime.sleep(60)"
    started = time.monotonic()
    assert (
        run_notebook(
            make_notebook("import time; time.sleep(0.5)", cell), {}, tmp_path / "run", timeout_s=10, report=False
        )
        == CRASHED
    )
    assert time.monotonic() - started < 50
    assert "stopped after 10 s" in (tmp_path / "run" / "log.txt").read_text()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "run" / "pid").read_text()), 0)


def test_passed_run_is_not_repeated_and_fresh_repeats_it(tmp_path: Path, make_notebook: Make) -> None:
    """Resuming a passed run starts no kernel; resume=False removes its records and runs again."""
    notebook = make_notebook("import pathlib\nwith pathlib.Path(run_dir, 'count').open('a') as f: f.write('x')")
    for resume, count in ((True, 1), (True, 1), (False, 2)):
        assert run_notebook(notebook, {}, tmp_path / "run", resume=resume, report=False) == PASSED
        assert len((tmp_path / "run" / "count").read_text()) == count


def test_interrupted_run_keeps_its_records(tmp_path: Path, make_notebook: Make) -> None:
    """A run without a verdict starts again in its folder and finds the record lines it had written."""
    cell = (
        "import pathlib\nrecords = pathlib.Path(run_dir, 'verify.jsonl')\nseen = records.exists()\n"
        "records.write_text('{}\\n')\nassert seen, 'interrupted'"
    )
    notebook = make_notebook(cell)
    assert run_notebook(notebook, {}, tmp_path / "run", report=False) == CRASHED
    assert run_notebook(notebook, {}, tmp_path / "run", report=False) == PASSED


def test_stale_verdict_does_not_survive_a_crash(
    tmp_path: Path, make_notebook: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass of other code is removed before the new run, so that a crash cannot inherit it."""
    notebook, run = make_notebook("raise ValueError"), tmp_path / "run"
    monkeypatch.setattr(runner, "already_passed", lambda run, identity: False)
    run.mkdir()
    monkeypatch.setattr(runner, "check_same_run", lambda run, identity: None)
    write_json(run / "verdict.json", {"passed": True})
    assert run_notebook(notebook, {}, run, report=False) == CRASHED


def test_unknown_parameter_starts_nothing(tmp_path: Path, make_notebook: Make) -> None:
    """A wrong name fails before the folder is even made."""
    with pytest.raises(ParameterError, match="Did you mean 'scale'"):
        run_notebook(make_notebook(), {"scales": "1"}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_second_runner_is_refused(tmp_path: Path, make_notebook: Make) -> None:
    """While one process holds the folder, another gets an error that says so."""
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(ParameterError, match="Another runner is at work there"):
            run_notebook(make_notebook(), {}, tmp_path)
    finally:
        os.close(handle)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_time_limit_must_be_positive(tmp_path: Path, make_notebook: Make, timeout_s: float) -> None:
    """Zero would mean no limit further down, so it is refused here."""
    with pytest.raises(ParameterError, match=r"timeout_s is .*; allowed: a number of seconds above 0"):
        run_notebook(make_notebook(), {}, tmp_path / "run", timeout_s=timeout_s)


def test_out_must_be_a_folder_of_its_own(tmp_path: Path, make_notebook: Make) -> None:
    """A file cannot be the run's folder, and a run's own output cannot be its input."""
    notebook = make_notebook()
    with pytest.raises(ParameterError, match=r"out is .*; allowed: a folder"):
        run_notebook(notebook, {}, notebook)
    executed = notebook.rename(tmp_path / "executed.ipynb")
    with pytest.raises(ParameterError, match="not this run's own output"):
        run_notebook(executed, {}, tmp_path)


def test_report_failure_keeps_the_exit_code(
    tmp_path: Path, make_notebook: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report that cannot be written is said in the log; the verdict still decides."""
    monkeypatch.setitem(sys.modules, "kda_lab.report.html", None)
    monkeypatch.setattr(
        runner,
        "_execute",
        lambda *a: (write_json(a[2].verdict, {"passed": True, "sentence": "ok"}), runner.Finish(False, ""))[1],
    )
    assert run_notebook(make_notebook(), {}, tmp_path / "run") == PASSED
    assert "no report: " in (tmp_path / "run" / "log.txt").read_text()


def test_unreadable_verdict_is_a_crash(tmp_path: Path, make_notebook: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torn verdict file is neither pass nor fail."""
    monkeypatch.setattr(runner, "_execute", lambda *a: (a[2].verdict.write_text("{"), runner.Finish(False, ""))[1])
    assert run_notebook(make_notebook(), {}, tmp_path / "run", report=False) == CRASHED


def test_run_works_without_a_home(tmp_path: Path, make_notebook: Make) -> None:
    """A process whose home does not exist and that has no Jupyter configuration runs notebooks all the same."""
    notebook = make_notebook("import os\nprint('IPYTHONDIR' in os.environ)")
    code = "import sys; from kda_lab.batch.runner import run_notebook; sys.exit(run_notebook(sys.argv[1], {}, sys.argv[2], report=False))"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "absent")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(notebook), str(tmp_path / "run")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == PASSED, done.stderr
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("content", ["[]", "null", "3", "folder"])
def test_verdict_that_is_no_object_is_a_crash(
    tmp_path: Path, make_notebook: Make, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """A verdict file of another JSON type, or a folder of that name, exits 3 with one line."""

    def execute(*arguments: Any) -> runner.Finish:
        verdict: Path = arguments[2].verdict
        verdict.mkdir() if content == "folder" else verdict.write_text(content)
        return runner.Finish(False, "")

    monkeypatch.setattr(runner, "_execute", execute)
    assert run_notebook(make_notebook(), {}, tmp_path / "run", report=False) == CRASHED
    assert (tmp_path / "run" / "log.txt").read_text().startswith("verdict.json ")


def test_out_that_cannot_be_written_is_refused(tmp_path: Path, make_notebook: Make) -> None:
    """A path below a file, or a verdict that cannot be replaced, is a wrong parameter and no traceback."""
    (tmp_path / "file").touch()
    with pytest.raises(ParameterError, match=r"out is .*; allowed: a folder that the run can write its files into"):
        run_notebook(make_notebook(), {}, tmp_path / "file" / "run")
    (tmp_path / "run" / "verdict.json").mkdir(parents=True)
    with pytest.raises(ParameterError, match="allowed: a folder that the run can write its files into"):
        run_notebook(make_notebook(), {}, tmp_path / "run", resume=False)
