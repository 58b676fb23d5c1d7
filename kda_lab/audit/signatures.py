"""Signatures as data: read from a definition, compared between two versions, bound to a call's arguments."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kda_lab.audit.normal import Function, normal_form, one_line

Kind = Literal["positional-only", "positional", "keyword-only", "*args", "**kwargs"]
LAUNCH_OPTIONS = frozenset(
    [
        "num_warps",
        "num_stages",
        "num_ctas",
        "num_buffers_warp_spec",
        "num_consumer_groups",
        "reg_dec_producer",
        "reg_inc_consumer",
        "launch_pdl",
        "launch_cooperative_grid",
        "maxnreg",
        "waves_per_eu",
        "matrix_instr_nonkdim",
        "kpack",
        "schedule_hint",
        "enable_fp_fusion",
        "enable_warp_specialization",
        "warp_size",
        "cluster_dims",
        "ptx_version",
        "ptx_options",
        "ir_override",
        "allow_fp8e4nv",
        "supported_fp8_dtypes",
        "deprecated_fp8_dot_operand_dtypes",
        "default_dot_input_precision",
        "allowed_dot_input_precisions",
        "max_num_imprecise_acc_default",
        "extern_libs",
        "debug",
        "backend_name",
        "sanitize_overflow",
        "arch",
        "instrumentation_mode",
        "grid",
        "warmup",
        "stream",
    ]
)
"""Keywords that Triton's launcher takes beside the kernel's parameters."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a signature."""

    name: str
    kind: Kind
    default: str | None
    """Normal form of the default; None where there is none."""
    default_words: str
    constexpr: bool
    """Annotated `tl.constexpr`."""


@dataclass(frozen=True)
class Signature:
    """Parameters in order, and what wraps the function."""

    parameters: tuple[Parameter, ...]
    jitted: bool = False
    """Compiled by Triton: launched with options beside its parameters."""
    filled: bool = False
    """An autotuner or heuristics fill in parameters: a missing one proves nothing."""

    def names(self) -> set[str]:
        return {p.name for p in self.parameters}


@dataclass(frozen=True)
class Arguments:
    """What a call passes."""

    positional: int
    keywords: tuple[str, ...]
    starred: bool
    """`*args` or `**kwargs` stands in the call: what it adds is unknown."""
    launch: bool
    """`kernel[grid](...)`."""


def signature_of(function: Function, skip_first: bool = False) -> Signature:
    """The signature of a definition; `skip_first` drops `self` or `cls`."""
    a = function.args
    positional = [*((p, "positional-only") for p in a.posonlyargs), *((p, "positional") for p in a.args)]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(a.defaults))
    defaults += a.defaults
    found = [_parameter(p, kind, d) for (p, kind), d in zip(positional, defaults, strict=True)]  # type: ignore[arg-type]
    found = found[1:] if skip_first else found
    found += [_parameter(a.vararg, "*args", None)] if a.vararg else []
    found += [_parameter(p, "keyword-only", d) for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    found += [_parameter(a.kwarg, "**kwargs", None)] if a.kwarg else []
    names = {ast.unparse(d.func if isinstance(d, ast.Call) else d).split(".")[-1] for d in function.decorator_list}
    return Signature(tuple(found), bool(names & {"jit"}), bool(names & {"autotune", "heuristics"}))


def _parameter(node: ast.arg, kind: Kind, default: ast.expr | None) -> Parameter:
    constexpr = node.annotation is not None and "constexpr" in ast.unparse(node.annotation)
    words = one_line(default, 60) if default is not None else ""
    return Parameter(node.arg, kind, normal_form(default) if default is not None else None, words, constexpr)


def dataclass_signature(node: ast.ClassDef) -> Signature | None:
    """The constructor of a plain dataclass; None where it is inherited, generated otherwise or written out."""
    names = [ast.unparse(d) for d in node.decorator_list]
    if node.bases or not any(n.split("(")[0].split(".")[-1] == "dataclass" for n in names):
        return None
    kind: Kind = "keyword-only" if any("kw_only=True" in n for n in names) else "positional"
    found = []
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            annotation = ast.unparse(statement.annotation)
            if "ClassVar" in annotation:
                continue
            if "KW_ONLY" in annotation or (
                statement.value is not None and "init=False" in ast.unparse(statement.value)
            ):
                return None
            value = statement.value
            if isinstance(value, ast.Call) and "field" in ast.unparse(value.func):
                value = value if {"default", "default_factory"} & {k.arg for k in value.keywords} else None
            found.append(_parameter(ast.arg(arg=statement.target.id), kind, value))
    return Signature(tuple(found))


def arguments_of(call: ast.Call) -> Arguments:
    """What a call passes, by count and name."""
    positional = [a for a in call.args if not isinstance(a, ast.Starred)]
    starred = len(positional) < len(call.args) or any(k.arg is None for k in call.keywords)
    keywords = tuple(k.arg for k in call.keywords if k.arg is not None)
    return Arguments(len(positional), keywords, starred, isinstance(call.func, ast.Subscript))


def bind(signature: Signature, arguments: Arguments) -> str:
    """Why the call cannot bind, in words; empty when it can, or when `*` or `**` hides what would decide it."""
    takes = {p.name: p for p in signature.parameters}
    kinds = [p.kind for p in signature.parameters]
    by_position = [p for p in signature.parameters if p.kind in ("positional-only", "positional")]
    if arguments.positional > len(by_position) and "*args" not in kinds:
        return f"it passes {arguments.positional} positional arguments, {len(by_position)} are taken"
    free = LAUNCH_OPTIONS if signature.jitted else frozenset()
    unknown = [
        k
        for k in arguments.keywords
        if (k not in takes or takes[k].kind in ("positional-only", "*args", "**kwargs")) and k not in free
    ]
    if unknown and "**kwargs" not in kinds:
        return f"no parameter takes the keyword {', '.join(unknown)}"
    given = {p.name for p in by_position[: arguments.positional]}
    twice = [k for k in arguments.keywords if k in given]
    if twice:
        return f"{', '.join(twice)} is passed by position and by keyword"
    given |= set(arguments.keywords)
    required = [p.name for p in signature.parameters if p.default is None and p.kind not in ("*args", "**kwargs")]
    missing = [name for name in required if name not in given]
    if missing and not arguments.starred and not signature.filled:
        return f"the parameter {', '.join(missing)} gets no argument"
    return ""


@dataclass(frozen=True)
class Change:
    """One difference of two signatures."""

    category: str
    severity: Literal["crash", "silent-wrong"]
    words: str


def differences(source: Signature, export: Signature) -> list[Change]:
    """What a caller of the source's signature loses with the export's."""
    theirs = {p.name: p for p in export.parameters}
    found = []
    for parameter in source.parameters:
        other = theirs.get(parameter.name)
        if other is None:
            found.append(
                Change("lost parameter", "crash", f"the parameter {parameter.name} ({parameter.kind}) is gone")
            )
        else:
            found += _changes(parameter, other)
    ours = source.names()
    for parameter in export.parameters:
        if parameter.name not in ours and parameter.default is None and parameter.kind not in ("*args", "**kwargs"):
            words = f"the parameter {parameter.name} is new and has no default"
            found.append(Change("new required parameter", "crash", words))
    if not found and _order(source) != _order(export):
        common = [n for n in _order(export) if n in ours]
        if common != _order(source) or _order(export)[: len(common)] != common:
            words = f"positional order {', '.join(_order(source))} became {', '.join(_order(export))}"
            found.append(Change("changed order", "silent-wrong", words))
    return found


def _order(signature: Signature) -> list[str]:
    return [p.name for p in signature.parameters if p.kind in ("positional-only", "positional")]


def _changes(ours: Parameter, theirs: Parameter) -> list[Change]:
    found = []
    if ours.kind != theirs.kind:
        stricter = (ours.kind, theirs.kind) != ("keyword-only", "positional")
        severity: Literal["crash", "silent-wrong"] = "crash" if stricter else "silent-wrong"
        found.append(Change("changed kind", severity, f"{ours.name} was {ours.kind} and is {theirs.kind}"))
    if ours.default is not None and theirs.default is None:
        words = f"{ours.name} had the default {ours.default_words} and has none"
        found.append(Change("lost default", "crash", words))
    elif ours.default != theirs.default:
        words = f"the default of {ours.name} was {ours.default_words or 'none'} and is {theirs.default_words}"
        found.append(Change("changed default", "silent-wrong", words))
    if ours.constexpr != theirs.constexpr:
        was, now = ("tl.constexpr", "a runtime value") if ours.constexpr else ("a runtime value", "tl.constexpr")
        found.append(Change("changed constexpr", "crash", f"{ours.name} was {was} and is {now}"))
    return found


def in_words(changes: Sequence[Change]) -> str:
    """The changes in one sentence."""
    return "; ".join(c.words for c in changes)
