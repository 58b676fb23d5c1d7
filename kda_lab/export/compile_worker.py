"""Child process of the compile gate: compile one unit of one source file for a GPU that need not be there.

Reads one JSON request from stdin, writes nothing itself: Triton writes the artifacts into the cache
folder that the parent named in TRITON_CACHE_DIR. Imports Triton only, never kda_lab, so that what is
compiled depends on the source file alone.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

WARP_SIZE = 32


def load_module(path: str) -> ModuleType:
    """Import a Python file by path, under a name that no package has.

    Triton finds the source of a `jit` function through `inspect`, so the module must be in `sys.modules`.
    """
    spec = importlib.util.spec_from_file_location("kda_lab_compile_unit", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def ast_source(function: Any, unit: dict[str, Any]) -> ASTSource:
    """The compiler's input: one type an argument in the function's order, constants, 16-divisibility.

    Raises:
        ValueError: the unit leaves an argument out, or names one that the function does not have.
    """
    names = list(function.arg_names)
    declared = {**dict.fromkeys(unit["constants"], "constexpr"), **unit["signature"]}
    missing = [n for n in names if n not in declared]
    foreign = [n for n in (*declared, *unit["divisible_by_16"]) if n not in names]
    if missing or foreign:
        raise ValueError(
            f"arguments of {unit['function']} are {names}; missing in the unit: {missing}; unknown: {foreign}"
        )
    without_value = [n for n in names if declared[n] == "constexpr" and n not in unit["constants"]]
    if without_value:
        raise ValueError(f"constexpr arguments without a value: {without_value}")
    attributes = {(names.index(n),): [["tt.divisibility", 16]] for n in unit["divisible_by_16"]}
    constants = {(names.index(n),): v for n, v in unit["constants"].items()}
    signature = {n: declared[n] for n in names}
    return ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)


def launch_options(unit: dict[str, Any]) -> dict[str, int]:
    """What the launch says beside the arguments; without a limit of registers the compiler is not told of any."""
    limit = {} if unit["maxnreg"] is None else {"maxnreg": unit["maxnreg"]}
    return {"num_warps": unit["num_warps"], "num_stages": unit["num_stages"], **limit}


def main() -> None:
    """Compile the unit of the request on stdin; any failure ends the process with a traceback on stderr."""
    request = json.load(sys.stdin)
    unit = request["unit"]
    function = getattr(load_module(request["source"]), unit["function"], None)
    if not hasattr(function, "arg_names"):
        raise ValueError(f"{request['source']} has no Triton function called {unit['function']!r}")
    major, minor = request["capability"]
    target = GPUTarget("cuda", major * 10 + minor, WARP_SIZE)
    triton.compile(ast_source(function, unit), target=target, options=launch_options(unit))


if __name__ == "__main__":
    main()
