"""Gate `sources`: host code that compiles another text, and device code that pulls another file in, are refused."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kda_lab.contracts.model import CompileUnit
from kda_lab.errors import ExportError
from kda_lab.export.candidate import read_candidate
from kda_lab.export.cuda_source import check_device, check_host

CUDA_TOY = Path(__file__).with_name("toy_cuda_candidate.py")
TEXT = CUDA_TOY.read_text()
PROGRAM = 'Program(SOURCE, "c++", ProgramOptions(arch=f"sm_{major}{minor}", std="c++17"))'
OPTIONS = 'ProgramOptions(arch=f"sm_{major}{minor}", std="c++17")'
READ = 'SOURCE = Path(__file__).with_suffix(".cu").read_text()'


def refused(text: str, words: str) -> None:
    with pytest.raises(ExportError, match=rf"export\.sources: .*{words}"):
        check_host(ast.parse(text), "x.py")


def edited(old: str, new: str) -> str:
    assert old in TEXT
    return TEXT.replace(old, new, 1)


def test_honest_host_code_passes() -> None:
    """One read of its own file, handed to the compiler: directly, or with options under a name of their own."""
    check_host(ast.parse(TEXT), "x.py")
    named = edited(
        f"program = {PROGRAM}", f"options = {OPTIONS}\n    program = Program(SOURCE, 'c++', options=options)"
    )
    check_host(ast.parse(named), "x.py")
    check_host(ast.parse(edited(PROGRAM, PROGRAM.replace("Program", "core.Program"))), "x.py")


@pytest.mark.parametrize(
    "line",
    [
        'SOURCE = Path("/abs/evil.cu").read_text()',
        'SOURCE = Path(__file__).with_suffix(".cuh").read_text()',
        f"{READ}\nOTHER = Path(__file__).with_suffix('.cu').read_text()",
        READ.replace("SOURCE =", "SOURCE: str ="),
        READ.replace("SOURCE =", "SOURCE = OTHER ="),
        'SOURCE = "__global__ void toy_decode() {}"',
    ],
)
def test_the_device_code_is_read_in_one_way_once(line: str) -> None:
    """Another file, another form, a second read, two names or no read at all is refused with the line to write."""
    refused(
        edited(READ, line), r"read of the device code is \d top-level .*; allowed: one line: SOURCE = Path\(__file__\)"
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (PROGRAM.replace("SOURCE", "SOURCE + EVIL"), r"Program without that text; allowed: Program\(SOURCE, …\)"),
        (PROGRAM.replace("SOURCE", 'SOURCE.replace("a", "b")'), "Program without that text"),
        (PROGRAM.replace("SOURCE", "OTHER"), "Program without that text"),
        (PROGRAM.replace("SOURCE,", "*parts,"), "Program without that text"),
        ('Program(code=SOURCE, code_type="c++")', "Program without that text"),
        ("(lambda make: make(OTHER, 'c++'))(Program)", "Program without that text"),
        (f"[{PROGRAM}, Program(OTHER, 'c++')]", "Program without that text"),
        ("other(SOURCE)", r"no call of Program; allowed: Program\(SOURCE, …\)"),
        (
            PROGRAM.replace("std=", "include_path='/abs', std="),
            "'include_path'; allowed: no compiler option that reads",
        ),
        (PROGRAM.replace("std=", "pre_include=['a.h'], std="), "'pre_include'; allowed: no compiler option that reads"),
        (PROGRAM.replace("std=", "**more, std="), r"ProgramOptions; allowed: a call with plain keywords"),
        (PROGRAM.replace("arch=", ""), r"ProgramOptions; allowed: a call with plain keywords"),
        (PROGRAM.replace(OPTIONS, '{"include_path": "/abs"}'), "options of Program; allowed: ProgramOptions"),
        (PROGRAM.replace(OPTIONS, '{"include" + "_path": "/abs"}'), "options of Program; allowed: ProgramOptions"),
        (PROGRAM.replace(OPTIONS, "index"), "options of Program; allowed: ProgramOptions"),
    ],
)
def test_the_compiler_gets_that_text_and_plain_options(call: str, words: str) -> None:
    """Every use of Program names the text that was read, and no option can bring in another one."""
    refused(edited(PROGRAM, call), words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("SOURCE += EVIL", "'SOURCE' bound again"),
        ("global SOURCE", "'SOURCE' bound again"),
        ("from torch import cuda as SOURCE", "'SOURCE' bound again"),
        ("Program = torch.no_grad", "'Program' bound again"),
        ("def f(SOURCE): return Program(SOURCE, 'c++')", "'SOURCE' bound again"),
        ("from cuda.core import Program as Compiler", "import of cuda.core.Program as Compiler"),
        ("from cuda.core import *", r"import of cuda\.core\.\* as \*"),
        ("from cuda.core import ObjectCode", r"import of cuda\.core\.ObjectCode; allowed: no other way to load"),
        ("from torch.utils import cpp_extension", "import of torch.utils.cpp_extension"),
        ("import pathlib", "import of pathlib; allowed: from pathlib import Path"),
        ("torch.cuda._compile_kernel(EVIL)", "'._compile_kernel'; allowed: no other file and no other compiler"),
        ("driver.cuModuleLoadData(EVIL)", "'.cuModuleLoadData'"),
        ("Path('/abs').read_bytes()", "'Path'; allowed: no use of it beside SOURCE"),
        ("open('/abs').read()", "'open'; allowed: no use"),
        ("exec(EVIL)", "'exec'"),
        ("getattr(core, 'Pro' + 'gram')(EVIL)", "'getattr'"),
        ("print(__file__)", "'__file__'"),
        ("packed_decode.__globals__['SOURCE'] = EVIL", "'.__globals__'"),
        ("options.include_path = '/abs'", "'.include_path'"),
    ],
)
def test_ways_around_the_one_text_are_refused(line: str, words: str) -> None:
    """Rebinding the text, other files, other compilers and the doors behind Python's names are each named."""
    refused(f"{TEXT}\n{line}\n", words)


EVIL = '"/abs/evil.cuh"'


@pytest.mark.parametrize(
    "line",
    [
        f"#include {EVIL}",
        "#include </abs/evil.cuh>",
        '#include "cuda_fp16.h"',
        "#include <evil.cuh>",
        "#include <../cuda_fp16.h>",
        f"#inc\\\nlude {EVIL}",
        f"#inc??/\nlude {EVIL}",
        f"#/*\n*/include {EVIL}",
        f"%:include {EVIL}",
        f"\v#\f include_next {EVIL}",
        "#include EVIL",
        f"#include <cuda_fp16.h> \\\n#include {EVIL}",
        f'const char* s = "/*";\n#include {EVIL}\n// */',
        f"#embed {EVIL}",
        f'asm(".include {EVIL}");',
        "#if __has_include(<evil.cuh>)\n#endif",
    ],
)
def test_device_code_may_not_include_other_files(line: str) -> None:
    """However the directive is written, a file that is not hashed is refused, with the line."""
    with pytest.raises(ExportError, match=r"(?s)export\.sources: x\.cu is '.*'; allowed: #include of one of <coop"):
        check_device(f"__device__ int a;\n{line}\n__device__ int b;\n".encode(), "x.cu", ())


def test_cudas_own_headers_may_be_included() -> None:
    """By name, in angle brackets, on a line of its own, with or without a comment; words of prose do not matter."""
    text = b"// This includes all.\n#include <cuda_fp16.h>\r\n  #  include <mma.h>  // fragments\n#include<cuda_fp8.h>"
    check_device(text, "x.cu", ())


@pytest.mark.parametrize("option", ["-I/abs", "--include-path=/abs", "-include=evil.h", "--pre-include=evil.h", "-I"])
def test_options_of_a_unit_may_not_read_files(option: str) -> None:
    """What the export compiles ahead of time has no more text than what was hashed."""
    unit = CompileUnit(function="f<1>", signature={}, constants={}, options=("-std=c++17", option))
    with pytest.raises(ExportError, match=rf"options of f<1> is '{option}'; allowed: none that reads further files"):
        check_device(b"", "x.cu", [unit])


def test_a_candidate_is_read_through_this_gate(tmp_path: Path) -> None:
    """The export refuses both kinds of candidate, host code before a computed declaration is evaluated."""
    path = tmp_path / "copied.py"
    device = CUDA_TOY.with_suffix(".cu").read_text()
    path.write_text(TEXT)
    path.with_suffix(".cu").write_text(f"#include {EVIL}\n{device}")
    with pytest.raises(ExportError, match=r"export\.sources: copied\.cu is '#include"):
        read_candidate(path)
    path.with_suffix(".cu").write_text(device)
    path.write_text(edited('"GROUP": 12', '"GROUP": 12 // 0') + "\nopen('/abs')\n")
    with pytest.raises(ExportError, match=r"export\.sources: copied\.py line \d+ is 'open'"):
        read_candidate(path)
