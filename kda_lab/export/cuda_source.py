"""What a candidate in CUDA C++ compiles is the text that was hashed: no other file, no other text, no other compiler.

The gate `sources`, read from the syntax tree and the device text before anything of the candidate runs. Its host
code may read one file, its own `.cu`, in one way; hand that text, and nothing else, to `cuda.core.Program`; and
take no option that makes the compiler read further files. The device code may include CUDA's own headers only.
It is a fence against mistakes and short cuts: what Python allows beyond what is named here, a reviewer must see.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from kda_lab.contracts.model import CompileUnit
from kda_lab.errors import ExportError, Reason

ROOM = "export.sources"
ALLOWED_HEADERS = (
    "cooperative_groups.h", "cooperative_groups/memcpy_async.h", "cooperative_groups/reduce.h", "cuda.h",
    "cuda_awbarrier_primitives.h", "cuda_bf16.h", "cuda_fp16.h", "cuda_fp4.h", "cuda_fp6.h", "cuda_fp8.h",
    "cuda_pipeline.h", "cuda_pipeline_primitives.h", "cuda_runtime.h", "mma.h",
)  # fmt: skip
"""CUDA's own headers, which the toolkit's version names; NVRTC finds them beside its library or not at all."""
READ = 'Path(__file__).with_suffix(".cu").read_text()'
READING_OPTIONS = ("include_path", "pre_include", "extra_sources", "pch", "create_pch", "use_pch", "pch_dir")
"""Options of `cuda.core.ProgramOptions` that bring in text beside the program's own."""
REFUSED_NAMES = (
    "ObjectCode", "Linker", "builtins", "compile", "delattr", "eval", "exec", "getattr", "globals", "locals", "open", "setattr", "vars",
)  # fmt: skip
REFUSED_ATTRIBUTES = (
    *READING_OPTIONS, "ObjectCode", "Linker", "_compile_kernel", "cpp_extension", "from_cubin", "from_fatbin", "from_file", "from_library",
    "from_ltoir", "from_object", "from_ptx", "load", "load_inline", "load_library", "open",
)  # fmt: skip
REFUSED_DRIVER_CALLS = ("cuLibraryLoad", "cuLink", "cuModuleLoad")
_ALLOWED_DUNDERS = ("__future__", "__name__", "__version__")
_LINE_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t]*\r?\n")
_ALLOWED_LINE = re.compile(
    rf"^[ \t]*#[ \t]*include[ \t]*<(?:{'|'.join(map(re.escape, ALLOWED_HEADERS))})>[ \t]*(?://[^\n\r]*)?\r?$", re.M
)
# The word anywhere, also behind a comment or a macro's name: a comment's border cannot be told without a full lexer.
_INCLUDE = re.compile(r"(?<![A-Za-z0-9])(?:include|include_next|embed|import)(?![A-Za-z0-9_])")
_READING_FLAG = re.compile(
    r"-I.*|--?(?:include|include-path|pre-include|isystem|pch|use-pch|create-pch|pch-dir|options-file|optf)\b.*"
)


def check_host(tree: ast.Module, file: str) -> None:
    """Refuse host code that reads, compiles or loads anything but the text of its own `.cu` file.

    Args:
        tree: of the Python file.
        file: its name, for the reasons.

    Raises:
        ExportError: gate `sources`, with each line at fault.
    """
    reads = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.value) == _normal(READ)]
    names = [t.id for node in reads for t in node.targets if isinstance(t, ast.Name)]
    if len(reads) != 1 or len(names) != 1:
        given = f"{len(reads)} top-level lines of that form with names {names}"
        raise ExportError(ROOM, [Reason(f"{file}: read of the device code", given, f"one line: SOURCE = {READ}")])
    (own,), (source,) = reads, names
    within = set(map(id, ast.walk(own)))
    rest = [node for node in ast.walk(tree) if id(node) not in within]
    _refuse(file, [*_foreign(rest), *_rebound(rest, source), *_compilations(rest, source)])


def check_device(device: bytes, file: str, units: Sequence[CompileUnit]) -> None:
    """Refuse device code that includes a file beside CUDA's own headers, and units whose options do.

    Args:
        device: of the `.cu` file.
        file: its name, for the reasons.
        units: the declaration's.

    Raises:
        ExportError: gate `sources`, with each line or option at fault.
    """
    text = _LINE_SPLICE.sub("", device.decode(errors="replace"))
    allowed = f"#include of one of {', '.join(f'<{header}>' for header in ALLOWED_HEADERS)}, on a line of its own"
    remedy = "Write the text into the .cu file, since an included one is not hashed; a comment needs another word."
    lines = [line for line in re.split(r"[\n\r]", _ALLOWED_LINE.sub("", text)) if _INCLUDE.search(line)]
    reasons = [Reason(file, repr(line.strip())[:160], allowed, remedy) for line in lines]
    for unit in units:
        flags = [option for option in unit.options if _READING_FLAG.fullmatch(option.strip())]
        reasons += [
            Reason(f"options of {unit.function}", repr(flag), "none that reads further files") for flag in flags
        ]
    if reasons:
        raise ExportError(ROOM, reasons[:5])


def _normal(expression: str) -> str:
    """An expression as `ast.unparse` writes it."""
    return ast.unparse(ast.parse(expression, mode="eval"))


Fault = tuple[ast.AST, str, str]
"""Node, what is there, and what is allowed."""


def _refuse(file: str, faults: Iterable[Fault]) -> None:
    reasons = []
    for node, given, allowed in faults:
        line = getattr(node, "lineno", None)
        where = file if line is None else f"{file} line {line}"
        reasons.append(Reason(where, given, allowed, "What is compiled must be what is hashed."))
    if reasons:
        raise ExportError(ROOM, list(dict.fromkeys(reasons))[:5])


def _foreign(nodes: Iterable[ast.AST]) -> Iterator[Fault]:
    """Ways to another file, another compiler, or around this check."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imports(node)
        elif isinstance(node, ast.Name) and (node.id in (*REFUSED_NAMES, "Path", "pathlib") or _is_dunder(node.id)):
            yield node, repr(node.id), f"no use of it beside SOURCE = {READ}"
        elif isinstance(node, ast.Attribute) and _refused_attribute(node.attr):
            yield (
                node,
                f"'.{node.attr}'",
                f"no other file and no other compiler than SOURCE = {READ} and Program(SOURCE, …)",
            )
        # As a key of a dict of options.
        elif isinstance(node, ast.Constant) and node.value in READING_OPTIONS:
            yield node, repr(node.value), "no compiler option that reads further files"


def _refused_attribute(name: str) -> bool:
    return name in REFUSED_ATTRIBUTES or name.startswith(("read_", *REFUSED_DRIVER_CALLS)) or _is_dunder(name)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in _ALLOWED_DUNDERS


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[Fault]:
    module = node.module if isinstance(node, ast.ImportFrom) else ""
    for alias in node.names:
        path = f"{module}.{alias.name}" if module else alias.name
        name = alias.name.rsplit(".", 1)[-1]
        if path.startswith("pathlib") and (path, alias.asname) != ("pathlib.Path", None):
            yield node, f"import of {path}", "from pathlib import Path"
        if name == "*" or (name in ("Program", "ProgramOptions") and alias.asname is not None):
            yield node, f"import of {path} as {alias.asname or '*'}", "Program and ProgramOptions under their own names"
        if any(_refused_attribute(part) for part in path.split(".")):
            yield node, f"import of {path}", "no other way to load or compile code"


def _rebound(nodes: Iterable[ast.AST], source: str) -> Iterator[Fault]:
    """Places that give the name of the device text, or one of the compiler's, another meaning."""
    fixed = (source, "Program", "ProgramOptions", "Path")
    for node in nodes:
        for name in _bound(node):
            if name in fixed:
                yield node, f"{name!r} bound again", "one meaning for it in the whole file"


def _bound(node: ast.AST) -> list[str | None]:
    """Names that a node binds; an import under its own name is judged by `_imports`."""
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler):
        return [node.name]
    if isinstance(node, ast.MatchAs | ast.MatchStar):
        return [node.name]
    if isinstance(node, ast.Global | ast.Nonlocal):
        return list(node.names)
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.alias):
        return [node.asname or node.name] if node.name not in ("Program", "ProgramOptions", "Path") else [node.asname]
    return [node.rest] if isinstance(node, ast.MatchMapping) else []


def _compilations(nodes: Sequence[ast.AST], source: str) -> Iterator[Fault]:
    """Uses of `Program` and `ProgramOptions` that are not calls with this text and with plain options."""
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    called = {id(call.func): call for call in calls}
    programs = 0
    for node in nodes:
        name = _referred(node)
        call = called.get(id(node))
        if name == "Program":
            programs += 1
            if call is None or not _is_name(call.args[0] if call.args else None, source) or not _plain(call):
                yield node, "Program without that text", f"Program({source}, …), called by its name"
            elif not _options_are_plain(call, nodes):
                yield node, "options of Program", "ProgramOptions(…), or a name that is assigned such a call only"
        if name == "ProgramOptions" and (call is None or call.args or not _plain(call)):
            yield node, "ProgramOptions", "a call with plain keywords"
        if name == "ProgramOptions" and call is not None:
            for keyword in (k for k in call.keywords if k.arg in READING_OPTIONS):
                yield node, repr(keyword.arg), "no compiler option that reads further files"
    if not programs:
        yield ast.Module([], []), "no call of Program", f"Program({source}, …), which compiles the device code"


def _referred(node: ast.AST | None) -> str:
    """The last part of a name or an attribute; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_name(node: ast.expr | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _plain(call: ast.Call) -> bool:
    """Whether a call has no starred arguments, whose contents the syntax tree does not show."""
    return not any(isinstance(a, ast.Starred) for a in call.args) and all(k.arg is not None for k in call.keywords)


def _options_are_plain(call: ast.Call, nodes: Sequence[ast.AST]) -> bool:
    """Whether the options of a `Program` are a call of `ProgramOptions`, or a name that means such calls only."""
    given = [*call.args[2:3], *(k.value for k in call.keywords if k.arg == "options")]
    return all(
        _makes_options(node) or (isinstance(node, ast.Name) and _means_options(node.id, nodes)) for node in given
    )


def _makes_options(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _referred(node.func) == "ProgramOptions"


def _means_options(name: str, nodes: Sequence[ast.AST]) -> bool:
    assigned = [n.targets for n in nodes if isinstance(n, ast.Assign) and _makes_options(n.value)]
    plain = {id(target) for targets in assigned for target in targets}
    stores = [n for n in nodes if isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)]
    handed_in = any(isinstance(n, ast.arg) and n.arg == name for n in nodes)
    return bool(stores) and not handed_in and all(id(store) in plain for store in stores)
