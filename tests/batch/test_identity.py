"""When a folder's run is the same run, when it may be resumed, and when it is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kda_lab.batch import identity
from kda_lab.batch.identity import already_passed, check_same_run, clear, identify
from kda_lab.errors import ParameterError
from kda_lab.run_folder import RunFolder, write_json
from kda_lab.timing.chain.records import chain_records

Make = Callable[..., Path]
DEFAULTS = {"rows": 3, "candidate": "", "run_dir": ""}


def started(run: RunFolder, found: identity.Identity, passed: bool | None) -> None:
    write_json(run.parameters, found.as_json())
    if passed is not None:
        write_json(run.verdict, {"passed": passed})


def test_only_a_passed_run_of_the_same_thing_is_kept(tmp_path: Path, make_notebook: Make) -> None:
    """Passed and identical means no second run; failed, unfinished or torn means another run."""
    run, found = RunFolder.at(tmp_path / "run"), identify(make_notebook(), DEFAULTS, {"rows": 4})
    assert not already_passed(run, found)
    started(run, found, None)
    assert not already_passed(run, found)
    started(run, found, False)
    assert not already_passed(run, found)
    started(run, found, True)
    assert already_passed(run, found)
    run.verdict.write_text('{"passed": tr')
    assert not already_passed(run, found)


def test_changed_input_file_is_judged_again(tmp_path: Path, make_notebook: Make) -> None:
    """Editing the file that a parameter names makes a passed run stale, without making its folder unusable."""
    candidate = tmp_path / "grouped.py"
    candidate.write_text("first")
    notebook, run = make_notebook(), RunFolder.at(tmp_path / "run")
    started(run, identify(notebook, DEFAULTS, {"candidate": str(candidate)}), True)
    candidate.write_text("second")
    now = identify(notebook, DEFAULTS, {"candidate": str(candidate)})
    assert not already_passed(run, now)
    check_same_run(run, now)


def test_capture_set_is_an_input_through_its_manifest(tmp_path: Path, make_notebook: Make) -> None:
    """A folder with a manifest counts as the file that hashes everything in it; other folders do not."""
    (tmp_path / "manifest.json").write_text("{}")
    found = identify(make_notebook(), {"a": str(tmp_path), "b": str(tmp_path.parent), "c": "x" * 5000, "d": "\0"}, {})
    assert list(found.inputs) == ["a", identity.CANDIDATES]


def test_changed_code_is_judged_again(tmp_path: Path, make_notebook: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A passed verdict of other kda_lab sources is not reused."""
    notebook, run = make_notebook(), RunFolder.at(tmp_path / "run")
    started(run, identify(notebook, DEFAULTS, {}), True)
    monkeypatch.setattr(identity, "code_sha256", lambda: "0" * 64)
    assert not already_passed(run, identify(notebook, DEFAULTS, {}))


def test_other_parameters_need_another_folder(tmp_path: Path, make_notebook: Make) -> None:
    """A folder with records of other parameters is refused, and each difference is named."""
    notebook, run = make_notebook(), RunFolder.at(tmp_path / "run")
    started(run, identify(notebook, DEFAULTS, {"rows": 4}), True)
    with pytest.raises(
        ParameterError,
        match=r"parameter rows in .*run is 5; allowed: 4\. Name another folder, or start over with --fresh",
    ):
        check_same_run(run, identify(notebook, DEFAULTS, {"rows": 5}))


@pytest.mark.parametrize("record", ["verify.jsonl", "suites.jsonl", "verdict.json"])
def test_a_run_that_measured_nothing_leaves_its_folder_to_other_parameters(
    tmp_path: Path, make_notebook: Make, record: str
) -> None:
    """A misspelt value that the notebook refused can be corrected in place; any record or verdict holds the folder."""
    notebook, run = make_notebook(), RunFolder.at(tmp_path / "run")
    started(run, identify(notebook, DEFAULTS, {"rows": 4}), None)
    run.log.write_text("refused")
    corrected = identify(notebook, DEFAULTS, {"rows": 5})
    check_same_run(run, corrected)
    (run.path / record).write_text("{}\n")
    with pytest.raises(ParameterError, match="parameter rows in"):
        check_same_run(run, corrected)


def test_fresh_removes_the_records_of_every_kind() -> None:
    """Every file of records that a module of the package names is among those that starting over removes."""
    package = Path(identity.__file__).parents[1]
    named = {n for p in package.rglob("*.py") for n in re.findall(r'"([a-z_]+\.jsonl)"', p.read_text())}
    assert named and not named - set(identity.RECORD_NAMES)


def test_other_notebook_needs_another_folder(tmp_path: Path, make_notebook: Make) -> None:
    """An edited notebook does not add to the records of the old one."""
    run = RunFolder.at(tmp_path / "run")
    started(run, identify(make_notebook(), DEFAULTS, {}), None)
    run.timing_records.write_text("{}\n")
    with pytest.raises(ParameterError, match="notebook_sha256 in"):
        check_same_run(run, identify(make_notebook("extra = 1"), DEFAULTS, {}))


def test_records_without_parameters_are_not_adopted(tmp_path: Path, make_notebook: Make) -> None:
    """A folder whose records nobody can attribute is refused."""
    run = RunFolder.at(tmp_path / "run")
    run.verify_records.write_text("{}\n")
    with pytest.raises(ParameterError, match="no readable parameters"):
        check_same_run(run, identify(make_notebook(), DEFAULTS, {}))


def test_clear_removes_records_and_nothing_else(tmp_path: Path) -> None:
    """Starting over deletes the run's own files, those of a chain too; a stranger's file stays."""
    run = RunFolder.at(tmp_path)
    run.verify_records.write_text("")
    chain_records(run).write_text("")
    (tmp_path / "notes.md").write_text("mine")
    clear(run)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.md"]


def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that counts as a checkout, with the working folder somewhere below it."""
    root = tmp_path / "project"
    for folder in ("kda_lab", "notebooks/candidates/op", "elsewhere"):
        (root / folder).mkdir(parents=True)
    (root / "kda_lab" / "runtime.py").touch()
    monkeypatch.chdir(root / "elsewhere")
    return root


def test_edited_candidate_is_judged_again_although_named_by_stem(
    tmp_path: Path, make_notebook: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate that a list names by stem is hashed too: its edit makes a passed run stale."""
    candidate = project(tmp_path, monkeypatch) / "notebooks" / "candidates" / "op" / "grouped.py"
    candidate.write_text("first")
    defaults = {"kernels": ["grouped"], "run_dir": ""}
    notebook, run = make_notebook(), RunFolder.at(tmp_path / "run")
    started(run, identify(notebook, defaults, {}), True)
    assert already_passed(run, identify(notebook, defaults, {}))
    candidate.write_text("second")
    now = identify(notebook, defaults, {})
    assert not already_passed(run, now)
    check_same_run(run, now)


def test_files_in_lists_and_below_the_project_are_inputs(
    tmp_path: Path, make_notebook: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths start at the project, not at the working folder, also inside lists; text that is no path is none."""
    root = project(tmp_path, monkeypatch)
    (root / "data.bin").write_text("x")
    found = identify(make_notebook(), {"a": "data.bin", "b": ["no", "data.bin"], "c": "x" * 600}, {})
    assert list(found.inputs) == ["a", "b[1]"]


@pytest.mark.parametrize("changed", ["device", "torch", "triton"])
def test_pass_on_another_machine_does_not_count(
    tmp_path: Path, make_notebook: Make, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """A pass on a CPU, or under another torch or triton, never stops a run here."""
    notebook, run = make_notebook(), RunFolder.at(tmp_path / "run")
    started(run, identify(notebook, DEFAULTS, {}), True)
    if changed == "device":
        facts = {"type": "cuda", "name": "a GPU"}
        monkeypatch.setattr(identity.runtime, "device_facts", lambda device: facts)
    else:
        versions = {**identity.runtime.versions(), changed: "0"}
        monkeypatch.setattr(identity.runtime, "versions", lambda: versions)
    now = identify(notebook, DEFAULTS, {})
    assert not already_passed(run, now)
    check_same_run(run, now)


def test_device_that_is_not_there_is_left_to_the_notebook(make_notebook: Make) -> None:
    """The identity of a run on an impossible device can be told; the run itself says what is wrong."""
    found = identify(make_notebook(), {"device": "auto"}, {"device": "no such"})
    assert found.machine["device_type"] == "no such" and found.machine["device_name"] == "unavailable"
