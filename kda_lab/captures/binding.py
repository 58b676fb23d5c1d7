"""Take one Python call apart: tensors and scalars by argument name, and what could not be recorded."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kda_lab.captures.format import dtype_name
from kda_lab.captures.layout import refusal
from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import OpSpec, Scalar


@dataclass(frozen=True)
class Target:
    """A callable by dotted name: the object that holds it, and the attribute."""

    owner: Any
    """A module, a class or an object."""
    attribute: str
    raw: Any
    """The attribute as it is stored: function, staticmethod or classmethod."""
    own: bool
    """Whether the owner itself holds it; False for a method that a class inherits."""
    function: Callable[..., Any]
    """The plain function under a staticmethod or classmethod; the bound method of an object."""
    bound_first: bool
    """Whether the first argument is `self` or `cls`, which is never recorded."""

    @property
    def wrapping(self) -> Callable[[Callable[..., Any]], Any]:
        """How a replacement must be wrapped to sit in the same place."""
        wrapped = isinstance(self.owner, type) and isinstance(self.raw, (staticmethod, classmethod))
        return type(self.raw) if wrapped else lambda function: function


def resolve(dotted: str) -> Target:
    """Find `package.module.function`, `package.module.Class.method` or `package.module.object.method`.

    Raises:
        ParameterError: no such module or attribute, or it is not callable.
    """
    parts = dotted.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:cut])
        try:
            owner: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A module that is there but misses one of its own imports is another fault: show it.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            continue
        return _attribute(dotted, owner, parts[cut:])
    raise ParameterError("captures", [Reason("target", repr(dotted), "package.module.function, importable here")])


def _attribute(dotted: str, owner: Any, names: list[str]) -> Target:
    try:
        for name in names[:-1]:
            owner = getattr(owner, name)
        found = getattr(owner, names[-1])
        raw = inspect.getattr_static(owner, names[-1])
    except AttributeError as error:
        raise ParameterError(
            "captures", [Reason("target", repr(dotted), f"an attribute that exists ({error})")]
        ) from error
    if not callable(found) or isinstance(found, type):
        raise ParameterError(
            "captures", [Reason("target", f"{dotted}, a {type(found).__name__}", "a function or method")]
        )
    own = names[-1] in stored(owner)
    if not isinstance(owner, type):
        # An attribute of an object is called as it is: the class's function would miss its `self` there.
        return Target(owner, names[-1], raw, own, found, bound_first=False)
    function = raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw
    bound_first = not isinstance(raw, staticmethod)
    return Target(owner, names[-1], raw, own, function if callable(function) else found, bound_first)


def stored(owner: Any) -> Mapping[str, Any]:
    """What a module, class or object itself holds; empty for one with slots only."""
    return getattr(owner, "__dict__", {})


@dataclass(frozen=True)
class Arguments:
    """One call's arguments, sorted by kind."""

    tensors: dict[str, torch.Tensor]
    scalars: dict[str, Scalar]
    refused: dict[str, str]
    """Argument name to why it was not recorded."""


def bind(function: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any], skip_first: bool) -> Arguments:
    """Name the arguments of a call by the function's signature, defaults included.

    Builtins without a signature get `arg0`, `arg1`, …. Items of `*rest` are `rest_0`, …; items of
    `**extra` keep their own names.

    Raises:
        TypeError: the arguments do not fit the signature (the call itself will raise the same).
    """
    return split(_pairs(function, args, named, skip_first))


def _pairs(
    function: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any], skip_first: bool
) -> Iterable[tuple[str, Any]]:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return [*((f"arg{i}", value) for i, value in enumerate(args[skip_first:])), *named.items()]
    bound = signature.bind(*args, **named)
    bound.apply_defaults()
    pairs: list[tuple[str, Any]] = []
    for position, (name, value) in enumerate(bound.arguments.items()):
        kind = signature.parameters[name].kind
        if skip_first and position == 0:
            continue
        if kind is inspect.Parameter.VAR_POSITIONAL:
            pairs += [(f"{name}_{i}", item) for i, item in enumerate(value)]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            pairs += list(value.items())
        else:
            pairs.append((name, value))
    return pairs


def split(pairs: Iterable[tuple[str, Any]]) -> Arguments:
    """Sort named values into tensors, scalars and what is refused; a torch dtype is kept by its name, `bfloat16`."""
    found = Arguments({}, {}, {})
    for name, value in pairs:
        if isinstance(value, torch.Tensor):
            if why := refusal(value):
                found.refused[name] = why
            else:
                found.tensors[name] = value
        elif isinstance(value, float) and not math.isfinite(value):
            found.refused[name] = f"{value!r} is no JSON number"
        elif isinstance(value, torch.dtype):
            found.scalars[name] = dtype_name(value)
        elif value is None or type(value) in (bool, int, float, str):
            found.scalars[name] = value
        else:
            found.refused[name] = f"{type(value).__name__} is neither a tensor nor a plain scalar"
    return found


def of_op(arguments: Arguments, spec: OpSpec) -> Arguments:
    """A call of an op's own signature without scalars that are none of the op's, such as a door's `kernel`.

    A function that lacks one of the op's arguments has another signature, and is left as it is.
    """
    if not (set(spec.tensors) <= set(arguments.tensors) and set(spec.scalars) <= set(arguments.scalars)):
        return arguments
    # An output buffer that the caller did not give is None here; it is no scalar of the call either way.
    kept = {name: value for name, value in arguments.scalars.items() if name in (*spec.scalars, *spec.outputs)}
    others = {n: f"{v!r} is no argument of {spec.name}" for n, v in arguments.scalars.items() if n not in kept}
    return Arguments(arguments.tensors, kept, {**arguments.refused, **others})


def named_results(result: Any, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """The tensors of a return value by output name: one tensor, a tuple or list in order, or a dict by key."""
    if isinstance(result, torch.Tensor):
        pairs: Iterable[tuple[str, Any]] = [(names[0], result)] if names else []
    elif isinstance(result, (tuple, list)):
        pairs = zip(names, result, strict=False)
    elif isinstance(result, dict):
        pairs = [(name, result[name]) for name in names if name in result]
    else:
        pairs = []
    return {name: value for name, value in pairs if isinstance(value, torch.Tensor) and not refusal(value)}
