"""What Triton's interpreter does again and again, done once: same results in less time.

Every kernel and every device function that runs in the interpreter finds the functions of `triton.language` replaced
by ones that compute at once. The end of a launch takes that back, so each launch must do it; Triton does it again at
each call of a device function too. And the NumPy dtype of a Triton type is looked up in a table built for each look.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

PATCH = "_patch_lang"
NUMPY_TYPE = "_get_np_dtype"
Patched = dict[tuple[int, int], Any]
"""Identity and length of a namespace whose functions find `tl` patched, to the namespace."""


def install(machine: ModuleType) -> tuple[str, ...]:
    """Take the shortcuts from now on. Where this Triton's interpreter is built otherwise, it stays as it is.

    Args:
        machine: `triton.runtime.interpreter`.

    Returns:
        Names of its functions that were replaced.
    """
    found = []
    if _patches_by_name(machine):
        patched: Patched = {}
        setattr(machine, PATCH, _once(getattr(machine, PATCH), machine._LangPatchScope, patched))
        machine.GridExecutor.__call__ = _launch(machine.GridExecutor.__call__, patched)
        found.append(PATCH)
    if _takes_one(getattr(machine, NUMPY_TYPE, None)):
        setattr(machine, NUMPY_TYPE, _remembered(getattr(machine, NUMPY_TYPE)))
        found.append(NUMPY_TYPE)
    return tuple(found)


def _patches_by_name(machine: ModuleType) -> bool:
    """Whether a launch and a device function both patch by `_patch_lang(fn)`, and find it by name at each call."""
    scope = getattr(machine, "_LangPatchScope", None)
    callers = [getattr(machine, name, None) for name in ("GridExecutor", "InterpretedFunction")]
    if not _takes_one(getattr(machine, PATCH, None)) or not all(map(inspect.isclass, [scope, *callers])):
        return False
    calls = [inspect.unwrap(caller.__call__) for caller in callers if caller is not None]
    return all(inspect.isfunction(call) and PATCH in call.__code__.co_names for call in calls)


def _takes_one(function: Any) -> bool:
    return inspect.isfunction(function) and len(inspect.signature(function).parameters) == 1


def _once(original: Callable[[Any], Any], scope: Callable[[], Any], patched: Patched) -> Callable[[Any], Any]:
    """What patches `tl` for a function, unless it is patched for the function's namespace already."""

    @functools.wraps(original)
    def mended(fn: Any) -> Any:
        namespace = fn.__globals__
        # One that grew may see a language module that it did not see before.
        key = (id(namespace), len(namespace))
        if key in patched:
            return scope()
        done = original(fn)
        patched[key] = namespace
        return done

    return mended


def _launch(original: Callable[..., None], patched: Patched) -> Callable[..., None]:
    """A launch, before and after which nothing counts as patched: its end takes back what it patched."""

    @functools.wraps(original)
    def mended(self: Any, *arguments: Any, **options: Any) -> None:
        patched.clear()
        try:
            original(self, *arguments, **options)
        finally:
            patched.clear()

    return mended


def _remembered(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """NumPy dtype of a Triton type, remembered by the type's name, which says everything about it."""
    known: dict[str, Any] = {}

    @functools.wraps(original)
    def mended(tt_dtype: Any) -> Any:
        name = getattr(tt_dtype, "name", None)
        if not isinstance(name, str):
            return original(tt_dtype)
        if name not in known:
            known[name] = original(tt_dtype)
        return known[name]

    return mended
