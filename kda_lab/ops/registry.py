"""Find an op by its name: every folder beside this file that holds a spec.py is an op.

Nothing registers itself: the folders are the registry. Baselines are imported on first use only,
since they bring Triton with them.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import OpSpec

PARTS = ("oracle", "baselines", "cases", "work", "mutants", "gates")
"""Files that an op folder holds beside spec.py."""
_PACKAGE = "kda_lab.ops"


@dataclass(frozen=True)
class Op:
    """One operator: its specification and the modules of its folder."""

    spec: OpSpec
    package: str
    """Dotted package of the folder: `kda_lab.ops.qsa_packed_decode`."""
    oracle: ModuleType
    cases: ModuleType
    work: ModuleType
    mutants: ModuleType
    gates: ModuleType

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def baselines(self) -> ModuleType:
        """The op's reference implementations; importing them imports Triton."""
        return importlib.import_module(f"{self.package}.baselines")


def op_names() -> tuple[str, ...]:
    """Names of all ops, sorted."""
    return tuple(sorted(_specs()))


@functools.cache
def load_op(name: str) -> Op:
    """The op with this dotted name.

    Raises:
        ParameterError: no op has this name, or its folder lacks a file.
    """
    specs = _specs()
    if name not in specs:
        allowed = ", ".join(repr(known) for known in sorted(specs)) or "none, since no op folder was found"
        remedy = "Name one of these, or add a folder with a spec.py."
        raise ParameterError("ops", [Reason("op", repr(name), allowed, remedy)])
    package, spec = specs[name]
    folder = Path(__file__).parent / package.rsplit(".", 1)[1]
    missing = [f"{part}.py" for part in PARTS if not (folder / f"{part}.py").exists()]
    if missing:
        raise ParameterError(
            "ops", [Reason(f"files of {name}", f"without {', '.join(missing)}", "all of an op's files", "Add them.")]
        )
    parts = {part: importlib.import_module(f"{package}.{part}") for part in PARTS if part != "baselines"}
    return Op(spec=spec, package=package, **parts)


def _specs() -> dict[str, tuple[str, OpSpec]]:
    """Name to (package, spec) of every op folder."""
    return _read(tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/spec.py"))))


@functools.cache
def _read(folders: tuple[str, ...]) -> dict[str, tuple[str, OpSpec]]:
    found: dict[str, tuple[str, OpSpec]] = {}
    for folder in folders:
        package = f"{_PACKAGE}.{folder}"
        spec: OpSpec = importlib.import_module(f"{package}.spec").SPEC
        if spec.name in found:
            both = f"{found[spec.name][0]} and {package}"
            raise ParameterError(
                "ops", [Reason("SPEC.name", repr(spec.name), "one folder a name", f"Both are {both}.")]
            )
        found[spec.name] = (package, spec)
    return found
