"""Child process of the compile gate: compile one unit of CUDA C++ with NVRTC for a GPU that need not be there.

Reads one JSON request from stdin: `source` (the `.cu` file), `unit`, `capability`, `folder` (empty). Writes
`kernel.cubin` and `kernel.json` into the folder: `name` (as the cubin has it), `shared` (static bytes of a block, as
the assembler reports them), `registers`, `nvrtc` (version), `options`. Imports `cuda.bindings` only, never
kda_lab, and goes straight to NVRTC so that a unit's options reach the compiler as they are written.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from cuda.bindings import nvrtc

FILE_NAME = b"kernel.cu"
"""What the compiler calls the source, whatever its path, so that equal sources give equal cubins."""
ARCHITECTURE = re.compile(r"(?:-arch|--gpu-architecture)=(.*)")
REPORT = re.compile(r"Compiling entry function '([^']+)'.*?Used (\d+) registers([^\n]*)", re.S)
SHARED = re.compile(r"(\d+) bytes smem")
LOG_TAIL_CHARACTERS = 1200


class NvrtcError(Exception):
    """NVRTC refused; the text ends with its log."""


def options_of(unit: dict[str, Any], capability: list[int]) -> list[str]:
    """Compiler options of a unit: its own, an architecture if it names none, and the assembler's report.

    Raises:
        ValueError: the unit names an architecture of another capability, or one without machine code.
    """
    plain = "sm_{}{}".format(*capability)
    named = [found.group(1) for found in map(ARCHITECTURE.fullmatch, unit["options"]) if found]
    foreign = [name for name in named if name not in (plain, f"{plain}a", f"{plain}f")]
    if foreign:
        raise ValueError(f"options of {unit['function']} name {foreign}; allowed here: {plain}, {plain}a, {plain}f")
    return [*unit["options"], *([] if named else [f"-arch={plain}"]), "--ptxas-options=-v"]


def static_shared_bytes(log: str, name: str) -> tuple[int, int]:
    """Static shared bytes and registers that the assembler reports for one function.

    Raises:
        ValueError: the log has no report of that function, so nothing is known of it.
    """
    for entry, registers, rest in REPORT.findall(log):
        if entry == name:
            shared = SHARED.search(rest)
            return (int(shared.group(1)) if shared else 0), int(registers)
    raise ValueError(f"NVRTC's log has no report of {name}: {log.strip()[-LOG_TAIL_CHARACTERS:]}")


def checked(answer: tuple[Any, ...]) -> Any:
    """The value of an NVRTC call without its status; None where it has none.

    Raises:
        NvrtcError: the status is not success.
    """
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise NvrtcError(f"NVRTC says {status.name}")
    return values[0] if values else None


def compiled(source: bytes, function: str, options: list[str]) -> tuple[bytes, str, str]:
    """Machine code, the function's name in it, and the compiler's log.

    Raises:
        NvrtcError: with the tail of the log.
    """
    program = checked(nvrtc.nvrtcCreateProgram(source, FILE_NAME, 0, None, None))
    checked(nvrtc.nvrtcAddNameExpression(program, function.encode()))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    log_bytes = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
    checked(nvrtc.nvrtcGetProgramLog(program, log_bytes))
    log = log_bytes.decode(errors="replace").rstrip("\0 \n")
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise NvrtcError(f"NVRTC says {status.name}: {log[-LOG_TAIL_CHARACTERS:]}")
    name: str = checked(nvrtc.nvrtcGetLoweredName(program, function.encode())).decode()
    code = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
    checked(nvrtc.nvrtcGetCUBIN(program, code))
    return code, name, log


def main() -> None:
    """Compile the unit of the request on stdin; a failure ends the process with the log on stderr."""
    request = json.load(sys.stdin)
    unit, folder = request["unit"], Path(request["folder"])
    try:
        options = options_of(unit, request["capability"])
        code, name, log = compiled(Path(request["source"]).read_bytes(), unit["function"], options)
        shared_bytes, registers = static_shared_bytes(log, name)
    except (NvrtcError, ValueError) as error:
        sys.exit(str(error))
    _, major, minor = nvrtc.nvrtcVersion()
    version = f"{major}.{minor}"
    facts = {"name": name, "shared": shared_bytes, "registers": registers, "options": options, "nvrtc": version}
    (folder / "kernel.cubin").write_bytes(code)
    (folder / "kernel.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
