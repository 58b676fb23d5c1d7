"""The layer rule of docs/architecture.md: who may import whom, and what production must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "kda_lab"

FLOOR = {"errors", "runtime", "run_folder", "contracts", "ops.protocol", "ops.spec", ""}
PRODUCTION = {"dispatch", "door"}
# Room to the rooms it may import, beside itself and the floor.
MAY_IMPORT = {
    "errors": set(),
    "runtime": {"errors"},
    "run_folder": set(),
    "contracts": {"errors", "runtime", "ops.protocol", "ops.spec"},
    "ops.protocol": {"errors"},
    "ops.spec": {"ops.protocol"},
    "dispatch": FLOOR,
    "door": FLOOR | {"dispatch"},
    "interpreter": FLOOR,
    "ops": FLOOR | PRODUCTION | {"interpreter"},
    "captures": FLOOR | PRODUCTION | {"interpreter", "ops"},
    "verify": FLOOR | PRODUCTION | {"interpreter", "ops", "captures"},
    "timing": FLOOR | PRODUCTION | {"interpreter", "ops", "captures"},
}
MAY_IMPORT["export"] = set(MAY_IMPORT) | {"verify", "timing"}
MAY_IMPORT["report"] = MAY_IMPORT["export"] | {"export"}
MAY_IMPORT["referee"] = MAY_IMPORT["report"] | {"report"}
MAY_IMPORT["batch"] = MAY_IMPORT["referee"] | {"referee"}
MAY_IMPORT["projection"] = MAY_IMPORT["referee"] | {"referee"}
MAY_IMPORT["notebook"] = MAY_IMPORT["report"] | {"report", "suites", "referee", "projection"}
MAY_IMPORT["suites"] = MAY_IMPORT["timing"] | {"verify", "timing"}
MAY_IMPORT["audit"] = MAY_IMPORT["export"] | {"export"}
MAY_IMPORT["cli"] = MAY_IMPORT["batch"] | {"batch", "notebook", "referee", "audit"}

DOORS = ("kda", "nvfp4", "qsa")
EXPORTED_MAY_IMPORT = {"torch", "triton", "cuda"}


def room_of(module: str) -> str:
    """The room of a module's dotted name below the package: `ops.qsa_packed_decode.spec` is `ops.spec`."""
    parts = module.split(".")
    if parts[0] in DOORS:
        return "door"
    if parts[0] in ("interpreter", "interpreter_memory", "interpreter_probe", "interpreter_shortcuts"):
        return "interpreter"
    if parts[0] == "ops":
        if parts[1:] in ([], ["protocol"]):
            return "ops.protocol"
        return "ops.spec" if parts[-1] == "spec" or (len(parts) == 2 and parts[1] not in OPS_FILES) else "ops"
    return parts[0]


OPS_FILES = {path.stem for path in (PACKAGE / "ops").glob("*.py")}


def modules() -> list[tuple[str, Path]]:
    """Dotted name and file of every module, exported kernels apart."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] != "kernels":
            found.append((".".join(p for p in parts if p != "__init__"), path))
    return found


def imported(path: Path) -> set[str]:
    """Dotted names below kda_lab that a file imports, functions included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if is_module(name) else node.module for name in below}
    return {name.removeprefix("kda_lab").lstrip(".") for name in names if name.split(".")[0] == "kda_lab"}


def is_module(dotted: str) -> bool:
    """Whether a dotted name is a module or package of kda_lab."""
    path = PACKAGE.parent.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda v: v if isinstance(v, str) else "")
def test_imports_follow_the_layers(module: str, path: Path) -> None:
    """A module imports its own room and those that its layer may see."""
    room = room_of(module) if module else ""
    allowed = MAY_IMPORT.get(room, set()) | {room, ""}
    edges = {f"{module} -> {name}" for name in imported(path) if room_of(name) not in allowed}
    assert not edges


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda v: v if isinstance(v, str) else "")
def test_no_import_hides_in_a_function(module: str, path: Path) -> None:
    """An import inside a function names the optional or heavy package that it spares: `# lazy: <package>`."""
    lines = path.read_text().splitlines()
    hidden = [
        node.lineno
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and "# lazy: " not in lines[node.lineno - 1]
    ]
    assert not hidden


def test_exported_kernels_stand_alone() -> None:
    """An exported kernel imports the standard library, torch, and Triton or cuda.core, never kda_lab."""
    foreign = []
    for path in (PACKAGE / "kernels").glob("*/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            roots = {name.split(".")[0] for name in names} - sys.stdlib_module_names - EXPORTED_MAY_IMPORT
            foreign += [f"{path.parent.name}: {root}" for root in roots]
    assert not foreign


def test_environment_variables_are_read_in_runtime_only() -> None:
    """No module but runtime touches the process environment."""
    readers = []
    for module, path in modules():
        text = path.read_text()
        if module != "runtime" and ("os.environ" in text or "getenv" in text):
            readers.append(module)
    assert readers == [m for m in readers if m in ENVIRONMENT_EXEMPT]


# Each passes an environment on to a child process; none takes a setting from it.
ENVIRONMENT_EXEMPT = {"export.compile_gate", "export.fresh_process", "interpreter", "interpreter_probe"}

MUST_NOT_LOAD = ("triton", "flashinfer", "scipy", "pandas", "matplotlib", "IPython", "jupyter_client", "papermill")


@pytest.mark.parametrize("door", DOORS)
def test_a_door_loads_no_laboratory(door: str) -> None:
    """Importing a door loads none of the heavy packages, nor any room of the laboratory."""
    rooms = ("ops.registry", "captures", "verify", "timing", "export", "report", "batch", "notebook", "cli")
    code = f"""
import sys, torch
before = set(sys.modules)
import kda_lab.{door}
after = set(sys.modules)
unwanted = [m for m in {MUST_NOT_LOAD!r} if m in after]
unwanted += [m for m in after if any(m.startswith('kda_lab.' + r) for r in {rooms!r})]
print(sorted(unwanted))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
