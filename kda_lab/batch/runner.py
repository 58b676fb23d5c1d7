"""Run one notebook strictly: typed parameters, this Python's kernel, a time limit, resume, exit code = verdict."""

from __future__ import annotations

import datetime
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kda_lab import runtime
from kda_lab.batch.ending import Ended, ending_raises
from kda_lab.batch.identity import Identity, already_passed, check_same_run, clear, identify
from kda_lab.batch.parameters import INJECTED, read_parameters
from kda_lab.errors import ParameterError, Reason
from kda_lab.run_folder import RunFolder, lock_folder, write_json

PASSED, FAILED, REFUSED, CRASHED = 0, 1, 2, 3
"""Exit codes: the verdict passed; it failed or is missing; wrong usage, also where a cell says so; another cell raised,
the kernel died or time ran out."""
DEFAULT_TIMEOUT_S = 3600.0
START_TIMEOUT_S = 120


@dataclass(frozen=True)
class Finish:
    """How the execution of the notebook ended, before its verdict is read."""

    code: int
    sentence: str
    """What went wrong; empty when every cell ran."""


def run_notebook(
    notebook: str | Path,
    parameters: Mapping[str, Any],
    out: str | Path,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    resume: bool = True,
    kernel_name: str = "python3",
    report: bool = True,
) -> int:
    """Run a notebook into a folder and return the exit code its verdict asks for.

    Args:
        notebook: `.ipynb` file; it is never written.
        parameters: name to value; text is parsed to the default's type. Unknown names are errors before anything starts.
        out: the run's folder; made when absent.
        timeout_s: seconds for the whole run, kernel start included.
        resume: True does not repeat a passed run of the same notebook, parameters, inputs, code and
            machine, and lets an interrupted one keep its finished records. False removes the folder's records first.
        kernel_name: name written into the executed notebook; the process is always this Python's own.
        report: write `index.html` and the tables afterwards.

    Returns:
        0 passed, 1 verdict failed or missing, 2 a cell refused a parameter, 3 crashed or out of time.

    Raises:
        ParameterError: wrong notebook, parameter, time limit or folder (exit code 2 in the CLI).
    """
    notebook, folder = Path(notebook), Path(out)
    declared = read_parameters(notebook)
    given = declared.typed(parameters)
    _check_request(notebook, folder, timeout_s)
    run = _run_folder(folder)
    with _only_runner(run):
        identity = identify(notebook, declared.defaults, given)
        if not _begun(run, identity, resume):
            _say(
                f"{run.name}: passed before with the same notebook, parameters, inputs, code and machine; not run again."
            )
            return PASSED
        finish = _execute(notebook, {**given, INJECTED: str(run.path.resolve())}, run, timeout_s, kernel_name)
        code, sentence = _judge(run, finish)
        _log_line(run, sentence)
        _say(f"{run.name}: {sentence}")
        if report:
            _write_report(run)
        return code


def _check_request(notebook: Path, folder: Path, timeout_s: float) -> None:
    reasons = []
    if not timeout_s > 0:
        reasons.append(Reason("timeout_s", repr(timeout_s), "a number of seconds above 0"))
    if folder.exists() and not folder.is_dir():
        reasons.append(Reason("out", repr(str(folder)), "a folder, or a path that does not exist"))
    if notebook.resolve() == RunFolder(folder).executed_notebook.resolve():
        reasons.append(Reason("notebook", repr(str(notebook)), "a notebook that is not this run's own output"))
    if reasons:
        raise ParameterError("batch", reasons)


def _run_folder(folder: Path) -> RunFolder:
    try:
        return RunFolder.at(folder)
    except OSError as error:
        raise _unusable(folder, error) from error


def _unusable(folder: Path, error: OSError) -> ParameterError:
    remedy = "Name a place where files can be written, or clear it by hand."
    given = f"{str(folder)!r} ({error.strerror or type(error).__name__})"
    return ParameterError("batch", [Reason("out", given, "a folder that the run can write its files into", remedy)])


@contextmanager
def _only_runner(run: RunFolder) -> Iterator[None]:
    """Hold the folder against a second runner; the lock goes with the process, however it ends."""
    remedy = "Another runner is at work there: wait for it, or name another folder."
    reason = Reason("out", repr(str(run.path)), "a folder without a runner", remedy)
    try:
        handle = lock_folder(run.path, ParameterError("batch", [reason]))
    except OSError as error:
        raise _unusable(run.path, error) from error
    try:
        yield
    finally:
        os.close(handle)


def _begun(run: RunFolder, identity: Identity, resume: bool) -> bool:
    """Make the folder ready for this run; False where it holds the same run, passed."""
    try:
        if not resume:
            clear(run)
        check_same_run(run, identity)
        if already_passed(run, identity):
            return False
        _begin(run, identity)
    except OSError as error:
        raise _unusable(run.path, error) from error
    return True


def _begin(run: RunFolder, identity: Identity) -> None:
    # An old verdict must not outlive the run that earned it.
    run.verdict.unlink(missing_ok=True)
    write_json(run.parameters, identity.as_json())
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    write_json(run.provenance, {**runtime.provenance(runtime.default_device()), "started_utc": started})


def _execute(notebook: Path, parameters: dict[str, Any], run: RunFolder, timeout_s: float, kernel_name: str) -> Finish:
    import nbclient.exceptions  # lazy: nbclient
    import papermill  # lazy: papermill

    from kda_lab.batch.kernel import ThisPythonKernelManager  # lazy: jupyter_client

    deadline = time.monotonic() + timeout_s
    try:
        with _logging_to(run.log), ending_raises():
            papermill.execute_notebook(
                str(notebook),
                str(run.executed_notebook),
                parameters=parameters,
                kernel_name=kernel_name,
                language="python",
                progress_bar={"desc": run.name, "file": sys.stderr},
                log_output=True,
                start_timeout=min(START_TIMEOUT_S, timeout_s),
                # Whatever is left of the run's time is what the next cell may take; zero would mean no limit.
                timeout_func=lambda cell: max(deadline - time.monotonic(), 0.001),
                kernel_manager_class=ThisPythonKernelManager,
            )
    except papermill.PapermillExecutionError as error:
        # A value that only the notebook can judge, such as the name of a kernel, is wrong usage like any other.
        code = REFUSED if error.ename == ParameterError.__name__ else CRASHED
        return Finish(code, f"cell {error.exec_count} raised {error.ename}: {error.evalue}")
    except nbclient.exceptions.CellTimeoutError:
        return Finish(CRASHED, f"stopped after {timeout_s:g} s; run the same command again to go on from its records")
    except Ended as error:
        return Finish(CRASHED, f"stopped by {error.name}; run the same command again to go on from its records")
    # DeadKernelError and "Kernel didn't respond" or "Kernel died before replying" are RuntimeErrors.
    except RuntimeError as error:
        return Finish(CRASHED, f"the kernel process died: {error}")
    return Finish(PASSED, "")


def _judge(run: RunFolder, finish: Finish) -> tuple[int, str]:
    """Exit code and one sentence, from the verdict file and from how the execution ended."""
    try:
        verdict = json.loads(run.verdict.read_text())
    except FileNotFoundError:
        verdict = {}
    # OSError: a folder of that name, say; RecursionError: nested deeper than any verdict.
    except (ValueError, OSError, RecursionError) as error:
        return CRASHED, f"verdict.json cannot be read: {error}"
    if not isinstance(verdict, dict):
        return CRASHED, f"verdict.json holds {type(verdict).__name__}; allowed: one object with `passed` and `sentence`"
    if verdict.get("passed") is False:
        return FAILED, str(verdict.get("sentence", "failed"))
    if finish.code != PASSED:
        return finish.code, finish.sentence
    if verdict.get("passed") is True:
        return PASSED, str(verdict.get("sentence", "passed"))
    return FAILED, "no verdict: every cell ran, but none wrote verdict.json"


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Send papermill's log, with the cells' output, to a file that grows while the notebook runs."""
    logger = logging.getLogger("papermill")
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
        handler.close()


def _write_report(run: RunFolder) -> None:
    try:
        from kda_lab.report.html import write_report  # lazy: matplotlib

        page = write_report(run)
    # Expected: a package that only reports need is absent (GPU machines), or odd records of a crashed run.
    # Hours of measuring must not end without their exit code because a figure could not be drawn.
    except Exception as error:  # noqa: BLE001 - reasons above
        _log_line(run, f"no report: {type(error).__name__}: {error}")
        _say(f"{run.name}: no report, because {type(error).__name__}: {error}")
        return
    _say(f"{run.name}: report in {page}")


def _log_line(run: RunFolder, text: str) -> None:
    with run.log.open("a", encoding="utf-8") as stream:
        stream.write(f"{text}\n")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
