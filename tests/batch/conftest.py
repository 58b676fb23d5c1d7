"""Small notebooks for the runner's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

DEFAULTS = 'rows = 3\nscale = 0.5\nverbose = False\nname = "base"\nbatches = [1, 4]\nrun_dir = ""'
VERDICT = (
    "import json, pathlib\n"
    "pathlib.Path(run_dir, 'verdict.json').write_text(json.dumps({'passed': rows > 0, 'sentence': f'rows is {rows}'}))\n"
    "if rows <= 0: raise AssertionError('verdict failed')"
)


@pytest.fixture
def make_notebook(tmp_path: Path) -> Callable[..., Path]:
    """Write a notebook with a parameters cell, some cells, and a verdict cell."""

    def make(*cells: str, defaults: str = DEFAULTS, verdict: str = VERDICT, tags: int = 1) -> Path:
        code = [nbformat.v4.new_code_cell(defaults, metadata={"tags": ["parameters"]}) for _ in range(tags)]
        code += [nbformat.v4.new_code_cell(c) for c in (*cells, verdict)]
        # Another kernel name than any installed one: the runner must not look it up.
        metadata = {"kernelspec": {"name": "no_such_kernel", "display_name": "x", "language": "python"}}
        notebook = nbformat.v4.new_notebook(cells=code, metadata=metadata)
        path = tmp_path / "10_question.ipynb"
        nbformat.write(notebook, path)
        return path

    return make
