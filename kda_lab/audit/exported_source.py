"""What an exported source says: its imports, its declaration, its entry's signature, and the door that calls it."""

from __future__ import annotations

import ast
from pathlib import Path

from kda_lab.audit.exported_model import Exported, Outcome
from kda_lab.audit.finding import Finding
from kda_lab.contracts.model import Declaration
from kda_lab.errors import ExportError, ParameterError
from kda_lab.export.candidate import read_candidate
from kda_lab.ops.protocol import OpSpec
from kda_lab.ops.registry import load_op

ABOUT_IMPORTS = ("export.imports", "export.sources")
"""Gates of the export that the check `imports` repeats; every other refusal is one of the declaration."""
FORCED = "kernel"
"""Parameter that a door has beside those of its op: the exported kernel to force."""

Parameters = dict[str, str]
"""Parameter to its default as it is written; empty where it has none."""


def check_declaration(kernel: Exported) -> list[Outcome]:
    """Imports stay within the layer rule, and the source's own CONTRACT is the declared part of contract.json.

    The source is read again by the export's own gates; nothing of it runs in this process.
    """
    try:
        declared = read_candidate(kernel.host).declaration
    except ExportError as error:
        check = "imports" if error.room in ABOUT_IMPORTS else "declaration"
        text = str(error).removeprefix(f"{error.room}: ")
        found = kernel.finding(
            check, "crash", text, "import the folder where kda_lab is not installed", kernel.host.name
        )
        other = "declaration" if check == "imports" else "imports"
        skipped = kernel.not_run(other, f"the check {check} refused the source before this was known")
        return [kernel.judged(check, [found], ""), skipped]
    allowed = "torch and cuda.core" if kernel.contract.language == "cuda" else "torch and triton"
    findings = [_moved(kernel, field) for field in _differing(kernel, declared)]
    said = "CONTRACT in the source is the declared part of contract.json"
    return [
        kernel.passed("imports", f"{allowed} and the allowed standard library only"),
        kernel.judged("declaration", findings, said),
    ]


def _differing(kernel: Exported, declared: Declaration) -> list[str]:
    """Fields in which contract.json is not what its source declares."""
    fields = Declaration.model_fields
    return [name for name in fields if getattr(kernel.contract, name) != getattr(declared, name)]


def _moved(kernel: Exported, field: str) -> Finding:
    lost = (
        f"contract.json and the source's CONTRACT differ in {field}: dispatch admits other calls than the kernel takes"
    )
    return kernel.finding("declaration", "silent-wrong", lost, f"compare {field} of both", symbol=field)


def check_signature(kernel: Exported) -> list[Outcome]:
    """The entry takes the op's tensors, scalars and outputs, and the door of the family takes and hands on the same."""
    try:
        spec = load_op(kernel.contract.op).spec
    except ParameterError as error:
        found = kernel.finding("signature", "crash", str(error), f"load the op {kernel.contract.op}")
        return [kernel.judged("signature", [found], ""), kernel.not_run("door", "the op is unknown")]
    entry = function_of(kernel.host, kernel.contract.entry)
    if entry is None:
        lost = f"{kernel.host.name} has no function {kernel.contract.entry} that can be read"
        found = kernel.finding("signature", "crash", lost, "load the kernel", kernel.host.name, kernel.contract.entry)
        return [kernel.judged("signature", [found], ""), kernel.not_run("door", "the entry is unknown")]
    findings = [
        kernel.finding("signature", "crash", lost, "call it once through the door", kernel.host.name, entry.name)
        for lost in signature_faults(entry, spec)
    ]
    said = f"{entry.name} takes the {len(spec.tensors)} tensors, scalars and outputs of {spec.name}"
    return [kernel.judged("signature", findings, said), _check_door(kernel, spec, entry)]


def function_of(path: Path, name: str) -> ast.FunctionDef | None:
    """The top-level function of a file; None where the file or the function cannot be read."""
    try:
        tree = ast.parse(path.read_bytes())
    # ValueError: NUL bytes; the last two: nested too deeply for the parser.
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def signature_faults(entry: ast.FunctionDef, spec: OpSpec) -> list[str]:
    """What keeps an entry from being called as the op is: names, kinds, outputs that cannot be left out."""
    arguments = entry.args
    faults = []
    positional = tuple(a.arg for a in [*arguments.posonlyargs, *arguments.args])
    if positional != spec.tensors:
        faults.append(f"{entry.name} takes by position {list(positional)}; {spec.name} gives {list(spec.tensors)}")
    # What is updated in place is passed by position, and once.
    outputs = [name for name in spec.outputs if name not in spec.updated]
    keywords, wanted = keywords_of(entry), (*spec.scalars, *outputs)
    missing = [name for name in wanted if name not in keywords]
    foreign = [name for name, default in keywords.items() if name not in wanted and not default]
    if missing:
        faults.append(f"{entry.name} lacks the keywords {missing} of {spec.name}")
    if foreign:
        faults.append(f"{entry.name} demands the keywords {foreign}, which {spec.name} does not give")
    if given := [name for name in outputs if keywords.get(name, "None") != "None"]:
        faults.append(f"the outputs {given} of {entry.name} have another default than None")
    if arguments.vararg or arguments.kwarg:
        faults.append(f"{entry.name} takes starred arguments, which hide what it does with a misspelt one")
    return faults


def keywords_of(function: ast.FunctionDef) -> Parameters:
    """Keyword-only parameters of a function with their defaults as they are written."""
    pairs = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return {a.arg: "" if default is None else ast.unparse(default) for a, default in pairs}


def _check_door(kernel: Exported, spec: OpSpec, entry: ast.FunctionDef) -> Outcome:
    """The public function of the op has the entry's parameters and defaults, and one to force a kernel."""
    family, _, name = spec.name.partition(".")
    path = kernel.places.doors / f"{family}.py"
    door = function_of(path, name.replace(".", "_"))
    if door is None:
        return kernel.not_run("door", f"kda_lab/{family}.py has no function {name}: the op is called by name only")
    faults = signature_faults(door, spec)
    keywords, own = keywords_of(door), keywords_of(entry)
    if FORCED not in keywords:
        faults.append(f"{door.name} cannot force a kernel: it has no parameter {FORCED}")
    for scalar in spec.scalars:
        # A door without a default is asked with a value each time: then the entry's own default never speaks.
        if scalar in keywords and scalar in own and keywords[scalar] not in ("", own[scalar]):
            pair = f"{keywords[scalar] or 'none'} in the door and {own[scalar] or 'none'} in the entry"
            faults.append(f"the default of {scalar} is {pair}: the same call means two things")
    test = f"call {family}.{name} without the optional arguments"
    findings = [kernel.finding("door", "silent-wrong", lost, test, kernel.host.name, entry.name) for lost in faults]
    return kernel.judged("door", findings, f"kda_lab/{family}.py calls it with the same names and defaults")
