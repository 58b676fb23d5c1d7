"""Notebooks are thin, linear, paired with a text, stripped of outputs, and end in a verdict."""

from __future__ import annotations

import ast
from pathlib import Path

import jupytext
import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PAIRS = sorted(NOTEBOOKS.glob("[0-9]*.py"))
CODE_CELLS, CELL_LINES = 12, 10
ids = {"argvalues": PAIRS, "ids": [p.stem for p in PAIRS]}


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    """Code cells of a paired text."""
    return [cell for cell in jupytext.read(path).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", **ids)
def test_a_notebook_and_its_text_agree(path: Path) -> None:
    """The notebook holds the very cells of its text, in order, with their tags."""
    notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    text = jupytext.read(path)
    cells = [(c.cell_type, c.source, c.metadata.get("tags", [])) for c in notebook.cells]
    assert cells == [(c.cell_type, c.source, c.metadata.get("tags", [])) for c in text.cells]


@pytest.mark.parametrize("path", **ids)
def test_a_notebook_is_stripped(path: Path) -> None:
    """No outputs, no execution counts: a run writes its own executed copy."""
    notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert [c.outputs for c in code] == [[] for _ in code]
    assert {c.execution_count for c in code} == {None}


@pytest.mark.parametrize("path", **ids)
def test_a_notebook_is_thin(path: Path) -> None:
    """At most 12 code cells of 10 lines; no function, class or nested loop."""
    cells = code_cells(path)
    assert len(cells) <= CODE_CELLS
    for cell in cells:
        assert len(cell.source.splitlines()) <= CELL_LINES + ("parameters" in cell.metadata.get("tags", [])) * 4
        tree = ast.parse(cell.source)
        assert not [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
        loops = [n for n in ast.walk(tree) if isinstance(n, (ast.For, ast.While))]
        assert not [
            n for loop in loops for n in ast.walk(loop) if isinstance(n, (ast.For, ast.While)) and n is not loop
        ]


@pytest.mark.parametrize("path", **ids)
def test_parameters_are_typed_literals_with_a_comment(path: Path) -> None:
    """One tagged parameters cell; each line a literal with its unit or allowed values behind it."""
    tagged = [c for c in code_cells(path) if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1
    for line, node in zip(tagged[0].source.splitlines(), ast.parse(tagged[0].source).body, strict=True):
        assert isinstance(node, ast.Assign)
        ast.literal_eval(node.value)
        assert "  # " in line
    assert "run_dir" in tagged[0].source


@pytest.mark.parametrize("path", **ids)
def test_a_notebook_asks_one_question_and_ends_in_a_verdict(path: Path) -> None:
    """The first cell asks, the last is the tagged verdict that raises when it fails."""
    cells = jupytext.read(path).cells
    assert cells[0].cell_type == "markdown"
    assert "**Question:**" in cells[0].source
    assert cells[-1].metadata.get("tags") == ["verdict"]
    assert "raise_if_failed()" in cells[-1].source


def test_every_notebook_has_its_text() -> None:
    """Notebooks and texts come in pairs, and there are those of both ops, the pipeline and the export."""
    assert sorted(p.stem for p in NOTEBOOKS.glob("*.ipynb")) == [p.stem for p in PAIRS]
    assert [p.stem for p in PAIRS] == [
        "00_start_here",
        "10_capture_qsa",
        "11_capture_nvfp4",
        "20_replay_qsa",
        "21_sweep_qsa",
        "22_replay_nvfp4",
        "23_sweep_nvfp4",
        "24_pipeline_context",
        "25_qsa_pipeline",
        "26_sweep_paged_qsa",
        "27_trace_qsa",
        "28_suites_qsa",
        "30_projection_fusion",
        "31_replay_kda",
        "32_sweep_kda",
        "33_replay_ssm",
        "50_export",
        "60_referee",
        "61_trace_slices",
    ]
