"""A notebook's parameters: read from its tagged cell without running it, and typed by their defaults."""

from __future__ import annotations

import ast
import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from kda_lab.errors import ParameterError, Reason

TAG = "parameters"
INJECTED = "run_dir"
"""Parameter that the runner sets; every notebook has it, so that it can write its records and verdict."""


@dataclass(frozen=True)
class NotebookParameters:
    """Names and defaults of a notebook's parameters, in the order of the cell."""

    notebook: Path
    defaults: dict[str, Any]

    def typed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The given values, each with its default's type; all wrong ones are refused at once.

        Raises:
            ParameterError: an unknown name (with the nearest known one), the injected `run_dir`, or a wrong type.
        """
        reasons: list[Reason] = []
        values: dict[str, Any] = {}
        for name, value in given.items():
            reason = self._unknown(name)
            if reason is None:
                try:
                    values[name] = typed_value(name, value, self.defaults[name])
                except ParameterError as error:
                    reasons += error.reasons
            else:
                reasons.append(reason)
        if reasons:
            raise ParameterError("batch", reasons)
        return values

    def _unknown(self, name: str) -> Reason | None:
        allowed = [n for n in self.defaults if n != INJECTED]
        if name == INJECTED:
            return Reason("parameter", repr(name), ", ".join(allowed), "The run's folder is set by --out.")
        if name in self.defaults:
            return None
        near = difflib.get_close_matches(name, allowed, n=1)
        remedy = f"Did you mean {near[0]!r}?" if near else ""
        return Reason(f"parameter of {self.notebook.name}", repr(name), ", ".join(allowed) or "none", remedy)


def read_parameters(notebook: Path) -> NotebookParameters:
    """Parameters of a notebook; nothing is executed.

    Raises:
        ParameterError: no such notebook, not exactly one cell tagged `parameters`, a line in it that is not
            `name = literal`, or no `run_dir` among them.
    """
    cells = [c for c in read_notebook(notebook).cells if c.cell_type == "code" and TAG in c.metadata.get("tags", [])]
    if len(cells) != 1:
        remedy = "Tag the cell that holds the defaults."
        raise ParameterError(
            "batch", [Reason(f"cells tagged {TAG!r} in {notebook.name}", repr(len(cells)), "exactly 1", remedy)]
        )
    defaults = _defaults(cells[0].source, notebook)
    if INJECTED not in defaults:
        remedy = f'Add `{INJECTED} = ""` to the parameters cell.'
        raise ParameterError(
            "batch",
            [Reason(f"parameters of {notebook.name}", repr(list(defaults)), f"one called {INJECTED!r}", remedy)],
        )
    return NotebookParameters(notebook, defaults)


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have is none."""
    try:
        return path.is_file()
    # From Python 3.14 on pathlib says so itself.
    except OSError:
        return False


def read_notebook(notebook: Path) -> nbformat.NotebookNode:
    """The notebook's content.

    Raises:
        ParameterError: the file is missing or is not a notebook.
    """
    if not is_file(notebook):
        raise ParameterError("batch", [Reason("notebook", repr(str(notebook)), "an .ipynb file that exists")])
    try:
        return nbformat.read(notebook, as_version=4)
    # nbformat raises NotJSONError and ValidationError (both ValueError) and, for odd JSON, AttributeError or KeyError.
    except (ValueError, AttributeError, KeyError, nbformat.ValidationError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise ParameterError(
            "batch", [Reason("notebook", repr(str(notebook)), "a Jupyter notebook", f"{first}.")]
        ) from error


def _defaults(source: str, notebook: Path) -> dict[str, Any]:
    try:
        tree = ast.parse(source)
    # ast.parse raises ValueError for NUL bytes.
    except (SyntaxError, ValueError) as error:
        raise ParameterError("batch", f"the parameters cell of {notebook.name} is not Python: {error}") from error
    defaults: dict[str, Any] = {}
    for node in tree.body:
        name, value = _assignment(node)
        try:
            if name is None or value is None:
                raise ValueError("not an assignment")
            defaults[name] = ast.literal_eval(value)
            json.dumps(defaults[name], allow_nan=False)
        # TypeError: a key that cannot be hashed, or a literal (bytes, set, complex) that no record can hold.
        except (ValueError, TypeError, RecursionError) as error:
            line = ast.get_source_segment(source, node) or ""
            reason = Reason(
                f"line {node.lineno} of the parameters cell of {notebook.name}",
                repr(line[:80]),
                "name = literal that JSON can hold",
            )
            raise ParameterError("batch", [reason]) from error
    return defaults


def _assignment(node: ast.stmt) -> tuple[str | None, ast.expr | None]:
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id, node.value
    return None, None


def typed_value(name: str, value: Any, default: Any) -> Any:
    """`value` with the type of `default`; text is parsed (`true`, `1e-3`, JSON or Python lists).

    Raises:
        ParameterError: the value cannot be of that type; both types are named.
    """
    parsed = _parsed(value, default) if isinstance(value, str) else value
    if isinstance(default, float) and type(parsed) is int:
        parsed = float(parsed)
    if isinstance(default, tuple) and isinstance(parsed, list):
        parsed = tuple(parsed)
    if not _is_plain(parsed):
        raise ParameterError("batch", [Reason(name, repr(value)[:80], "a value that JSON can hold")])
    if _fits(parsed, default):
        return parsed
    allowed = f"{_type_name(default)}, as its default {default!r}"
    raise ParameterError("batch", [Reason(name, f"{value!r} ({_type_name(parsed)})", allowed)])


def _parsed(text: str, default: Any) -> Any:
    """Text as a value for this default; the text itself where it is none, which then fails to fit."""
    if isinstance(default, str):
        return text
    if isinstance(default, bool) or default is None:
        word = {"true": True, "false": False, "none": None, "null": None}.get(text.lower(), text)
        return literal(text) if word == text and default is None else word
    if isinstance(default, float):
        try:
            return float(text)
        except ValueError:
            return text
    return literal(text)


def literal(text: str) -> Any:
    """The value that text spells in JSON or Python; the text itself where it spells none."""
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        # TypeError: a key that cannot be hashed; RecursionError and MemoryError: nested too deep to be a value.
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    return text


def _is_plain(value: Any) -> bool:
    """Whether the run's records can hold the value; a number that is not finite is left to `_fits`."""
    try:
        json.dumps(value, allow_nan=isinstance(value, float))
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _fits(value: Any, default: Any) -> bool:
    if default is None:
        return not isinstance(value, float) or math.isfinite(value)
    if type(value) is not type(default):
        return False
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, (list, tuple)):
        kinds = {type(item) for item in default}
        return len(kinds) != 1 or all(type(item) in kinds for item in value)
    return True


def _type_name(value: Any) -> str:
    if isinstance(value, (list, tuple)) and value:
        return f"{type(value).__name__} of {'/'.join(sorted({type(i).__name__ for i in value}))}"
    return type(value).__name__
