"""The plan: what it reads, every way in which it refuses, the commands it stands for, and the committed one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.batch.parameters import typed_value
from kda_lab.batch.plan import ExportStep, RunStep, Step, check_steps, chosen, read_plan
from kda_lab.errors import ParameterError

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "reports" / "h200.yaml"
REPLAY = {"name": "replay", "notebook": "n.ipynb", "seconds": 10}
EXPORT = {"name": "kernel", "candidate": "c.py", "runs": ["replay"], "seconds": 5}


def written(folder: Path, value: Any) -> Path:
    """A plan file; through JSON, so that nothing is written as an alias."""
    file = folder / "plan.yaml"
    file.write_text(value if isinstance(value, str) else yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False))
    return file


def test_runs_and_exports_are_read_in_order(tmp_path: Path) -> None:
    """What names a candidate is an export, everything else a run; a run is timed unless it says otherwise."""
    run, export = read_plan(written(tmp_path, [REPLAY | {"parameters": {"modes": []}}, EXPORT]))
    assert isinstance(run, RunStep) and isinstance(export, ExportStep)
    assert (run.timed, export.timed) == (True, False)
    assert export.needs == ("replay",)


def test_commands_are_those_a_person_types(tmp_path: Path) -> None:
    """Parameters become `-p`, the name becomes the folder, the runs come before the candidate."""
    steps = [
        REPLAY | {"parameters": {"op": "kda.fold", "kernels": ["a", "b"], "stress": 0, "all": True}},
        EXPORT | {"leave_to": ["other"]},
    ]
    run, export = read_plan(written(tmp_path, steps))
    given = ("op=kda.fold", 'kernels=["a", "b"]', "stress=0", "all=true")
    options = tuple(text for value in given for text in ("-p", value))
    assert run.command(Path("r"))[3:] == ("run", "n.ipynb", *options, "--out", "r/replay")
    assert export.command(Path("r"))[3:] == ("export", "r/replay", "c.py", "--leave-to", "other")


PLAIN = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())
LISTS = st.one_of(st.lists(st.integers()), st.lists(st.text()), st.dictionaries(st.text(), st.lists(st.integers())))


@given(st.one_of(PLAIN, LISTS))
def test_every_parameter_comes_back_as_it_was(value: Any) -> None:
    """What a plan holds reaches the notebook through the command line unchanged."""
    step = RunStep(name="x", notebook="n.ipynb", seconds=1, parameters={"p": value})
    text = step.command(Path("r"))[6].removeprefix("p=")
    default = type(value)() if isinstance(value, list) else value
    assert typed_value("p", text, default) == value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a: [", r"plan\.yaml:\d: YAML is .*; allowed: one well-formed YAML document"),
        ("- name: a\n  name: b", r"plan\.yaml:2: key is 'name'; allowed: a text, each once in a mapping"),
        ({"name": "x"}, r"plan\.yaml:1: plan is .*Input should be a valid list"),
        ([3], r"plan\.yaml:1: 0 is 3; "),
        ([{"name": "x", "seconds": 1}], r"plan\.yaml:1: 0\.notebook is missing"),
        ([REPLAY | {"notebook_": 1}], r"plan\.yaml:4: 0\.notebook_ is 1; allowed: Extra inputs are not permitted"),
        (
            [REPLAY | {"seconds": 0}, EXPORT | {"runs": []}],
            r"yaml:3: 0\.seconds is 0; .*yaml:6: 1\.runs is .*at least 1",
        ),
        ([REPLAY | {"seconds": float("inf")}], r"0\.seconds is inf"),
        ([REPLAY | {"seconds": True}], r"0\.seconds is True"),
        ([REPLAY | {"seconds": "60"}], r"0\.seconds is '60'"),
        ([REPLAY | {"timed": "off"}], r"0\.timed is 'off'"),
        ([EXPORT | {"timed": False}], r"0\.timed"),
        ([REPLAY | {"name": "n" * 101}], r"0\.name is 'n"),
        ([], r"plan is \[\]; .*at least 1"),
        ([REPLAY | {"name": "../up"}], r"0\.name is '\.\./up'"),
        ([REPLAY, REPLAY], r"name is 'replay'; allowed: each name once"),
        ([EXPORT, REPLAY], r"kernel\.runs is 'replay'; allowed: a step above it"),
        ([REPLAY | {"after": ["gone"]}], r"replay\.after is 'gone'; allowed: a step above it"),
        ([REPLAY | {"after": ["replay"]}], r"replay\.after is 'replay'; allowed: a step above it"),
    ],
)
def test_a_wrong_plan_is_refused_with_its_place(tmp_path: Path, value: Any, words: str) -> None:
    """Bad YAML, unknown or missing entries, senseless times, names given twice, steps that wait for later ones."""
    with pytest.raises(ParameterError, match=words):
        read_plan(written(tmp_path, value))


def test_an_export_may_cite_runs_that_were_made_before(tmp_path: Path) -> None:
    """Runs of an export that are no steps of the plan are left to the export's own checks."""
    (export,) = read_plan(written(tmp_path, [EXPORT]))
    assert export.needs == ("replay",)


def test_a_missing_file_and_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """Both name the file."""
    with pytest.raises(ParameterError, match=r"gone\.yaml' does not exist"):
        read_plan(tmp_path / "gone.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ParameterError, match=r"bytes\.yaml"):
        read_plan(tmp_path / "bytes.yaml")


def steps(*names: str) -> tuple[Step, ...]:
    """Runs of those names."""
    return tuple(RunStep(name=name, notebook="n.ipynb", seconds=1) for name in names)


def test_patterns_choose_and_keep_the_order() -> None:
    """Names and shell patterns; none chooses all; one that nothing has is an error with the names."""
    every = steps("b-1", "a-1", "b-2")
    assert chosen(every, []) == every
    assert [s.name for s in chosen(every, ["b-*", "a-1"])] == ["b-1", "a-1", "b-2"]
    assert [s.name for s in chosen(every, ["b-2"])] == ["b-2"]
    with pytest.raises(ParameterError, match=r"only is 'c-\*'; allowed: a name or pattern of b-1, a-1, b-2"):
        chosen(every, ["b-1", "c-*"])


def test_parameters_and_files_are_checked_before_anything_starts(
    make_notebook: Callable[..., Path], tmp_path: Path
) -> None:
    """Unknown parameters, wrong types, missing notebooks and candidates are all named, each with its step."""
    notebook = str(make_notebook())
    good = RunStep(name="good", notebook=notebook, seconds=1, parameters={"rows": 4, "batches": [1]})
    check_steps([good], tmp_path)
    wrong = good.model_copy(update={"name": "wrong", "parameters": {"rowz": 4, "scale": "x"}})
    lost = good.model_copy(update={"name": "lost", "notebook": "gone.ipynb"})
    export = ExportStep(name="kernel", candidate="gone.py", runs=("good",), seconds=1)
    typo = ExportStep(name="typo", candidate=notebook, runs=("good", "goood"), seconds=1)
    no_python = make_notebook(defaults="rows = = 1").rename(tmp_path / "broken.ipynb")
    broken = RunStep(name="broken", notebook=str(no_python), seconds=1)
    long = good.model_copy(update={"name": "long", "notebook": "n" * 300})
    make_notebook()
    nul = good.model_copy(update={"name": "text", "parameters": {"name": "x\0y"}})
    with pytest.raises(ParameterError) as caught:
        check_steps([good, wrong, lost, export, typo, broken, long, nul], tmp_path)
    text = str(caught.value)
    for words in (
        "wrong: parameter of 10_question.ipynb is 'rowz'",
        "wrong: scale is 'x'",
        "lost: ",
        "kernel: candidate is 'gone.py'",
        "typo: runs is 'goood'; allowed: runs of this batch, or folders below",
        "broken: notebook is batch: the parameters cell of broken.ipynb is not Python",
        "long: notebook is 'nnn",
        "text: name is not shown; allowed: at most 100000 bytes, no NUL",
    ):
        assert words in text
    assert "good: " not in text


def test_the_committed_plan_can_run() -> None:
    """Every notebook, parameter and candidate that it names exists."""
    check_steps([_from_root(step) for step in read_plan(COMMITTED)], ROOT / "reports")


def _from_root(step: Step) -> Step:
    """The step with its file found from any working folder."""
    field = "notebook" if isinstance(step, RunStep) else "candidate"
    return step.model_copy(update={field: str(ROOT / getattr(step, field))})


def test_every_committed_run_was_made_as_the_plan_says() -> None:
    """Name, notebook and parameters of each run below reports/ are those of its step."""
    steps = {step.name: step for step in read_plan(COMMITTED)}
    for file in sorted((ROOT / "reports").glob("*/executed.ipynb")):
        made = json.loads(file.read_text())["metadata"]["papermill"]
        step = steps[file.parent.name]
        assert isinstance(step, RunStep)
        assert (file.parent.name, made["input_path"]) == (file.parent.name, step.notebook)
        assert {k: v for k, v in made["parameters"].items() if k != "run_dir"} == step.parameters, file.parent.name


NEGATIVE = {
    "h200-replay-kda-residuals-smollm": "the three-launch baseline rounds twice, which is too much at this width"
}
"""Recorded runs whose verdict failed, and what that says."""


def test_every_committed_run_passed_or_is_a_known_negative_result() -> None:
    """A run that failed is kept on purpose, and no export step cites it."""
    verdicts = {f.parent.name: json.loads(f.read_text())["passed"] for f in (ROOT / "reports").glob("*/verdict.json")}
    failed = {name for name, passed in verdicts.items() if not passed}
    assert failed == set(NEGATIVE)
    cited = {run for step in read_plan(COMMITTED) if isinstance(step, ExportStep) for run in step.runs}
    assert not cited & failed


def test_every_exported_kernel_cites_the_runs_of_its_step() -> None:
    """The contract's evidence comes from the runs that its export step names."""
    exports = {step.name: step for step in read_plan(COMMITTED) if isinstance(step, ExportStep)}
    for file in sorted((ROOT / "kda_lab" / "kernels").glob("*/contract.json")):
        step = exports[file.parent.name]
        cited = json.dumps(json.loads(file.read_text()))
        assert all(run in cited for run in step.runs), step.name
