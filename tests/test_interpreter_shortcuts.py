"""The interpreter's shortcuts: `tl` patched once a launch, taken back at its end, and never on an unknown Triton."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from kda_lab import interpreter, interpreter_shortcuts, runtime

pytestmark = pytest.mark.skipif(
    not runtime.interpreter_on(), reason="Triton's interpreter is off: kernels run on the GPU"
)


@triton.jit
def _doubled(x):
    return x + x


@triton.jit
def _sums_kernel(p_in, p_out, N: tl.constexpr):
    total = tl.sum(_doubled(_doubled(tl.load(p_in + tl.arange(0, N)))), axis=0)
    tl.store(p_out, _doubled(total) + tl.max(tl.load(p_in + tl.arange(0, N)), axis=0))


@triton.jit
def _failing_kernel(p_out):
    tl.store(p_out + 4, _doubled(1.0))


@pytest.fixture
def machine() -> ModuleType:
    """Triton's interpreter, mended."""
    interpreter.ensure_faithful()
    import triton.runtime.interpreter as found

    return found


@pytest.fixture
def patches(machine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Modules and classes that Triton patches while the test runs, one entry a time."""
    seen: list[Any] = []
    real: Callable[..., None] = machine._patch_builtin

    def counted(package: Any, builder: Any, scope: Any) -> None:
        seen.append(package)
        real(package, builder, scope)

    monkeypatch.setattr(machine, "_patch_builtin", counted)
    yield seen


def launch() -> float:
    out = torch.zeros(1)
    _sums_kernel[(3,)](torch.arange(4.0), out, N=4)
    return out.item()


def test_a_launch_patches_once_a_namespace(patches: list[Any]) -> None:
    """Three programs with five device functions each, of two namespaces: this file's and that of `tl.sum`."""
    launch()
    # The first use of a function rewrites it, whereby its namespace grows once.
    patches.clear()
    assert launch() == 8 * 6.0 + 3.0
    assert Counter(map(id, patches))[id(tl)] == 2


def test_every_launch_patches_anew_and_takes_it_back(patches: list[Any]) -> None:
    """After a launch, also one that failed, `tl` is what it was before; the next one patches again."""
    before = {name: vars(tl)[name] for name in ("load", "store", "arange", "range", "static_range")}
    assert launch() == launch()
    with pytest.raises(triton.runtime.errors.InterpreterError, match="not its own"):
        _failing_kernel[(1,)](torch.zeros(1))
    assert {name: vars(tl)[name] for name in before} == before
    first = len(patches)
    assert launch() == 8 * 6.0 + 3.0
    assert len(patches) > first


def test_numpy_types_are_those_of_triton(machine: ModuleType) -> None:
    """Asked twice, of each kind of type; one that Triton does not know is refused again and again."""
    original = machine._get_np_dtype.__wrapped__
    scalars = [tl.int1, tl.int8, tl.uint16, tl.int64, tl.float16, tl.bfloat16, tl.float32, tl.float64, tl.float8e5]
    blocks = [tl.block_type(scalar, [4]) for scalar in scalars]
    pointers = [tl.pointer_type(scalar) for scalar in scalars]
    for kind in [*scalars, *blocks, *pointers, tl.block_type(tl.pointer_type(tl.float32), [2, 4])] * 2:
        assert machine._get_np_dtype(kind) == original(kind), kind
    for _ in range(2):
        with pytest.raises(KeyError):
            machine._get_np_dtype(tl.void)


class _Scope:
    """As Triton's, which takes back what was patched."""


def _patch_lang(fn: Any) -> _Scope:
    return _Scope()


class _ByName:
    """Patches by the name that is replaced."""

    def __call__(self, fn: Any) -> _Scope:
        return _patch_lang(fn)


class _Otherwise:
    """Patches by another way."""

    def __call__(self, fn: Any) -> _Scope:
        return _Scope()


def _patch_two(fn: Any, scope: Any) -> None: ...


KNOWN = {
    "_patch_lang": _patch_lang,
    "_LangPatchScope": _Scope,
    "GridExecutor": _ByName,
    "InterpretedFunction": type("InterpretedFunction", (_ByName,), {}),
}


@pytest.mark.parametrize(
    "other",
    [
        {"_patch_lang": None},
        {"_patch_lang": _patch_two},
        {"_LangPatchScope": None},
        {"GridExecutor": type("GridExecutor", (_Otherwise,), {})},
        {"InterpretedFunction": type("InterpretedFunction", (_Otherwise,), {})},
        {"InterpretedFunction": None},
    ],
    ids=["no-patch", "two-parameters", "no-scope", "other-launch", "other-function", "no-function"],
)
def test_an_unknown_triton_stays_as_it_is(other: dict[str, Any]) -> None:
    """Nothing is replaced where one of the pieces is missing or built otherwise; the known ones are taken."""
    known: Any = SimpleNamespace(**{**KNOWN, "GridExecutor": type("GridExecutor", (_ByName,), {})})
    assert interpreter_shortcuts.install(known) == ("_patch_lang",)
    unknown: Any = SimpleNamespace(**{**KNOWN, **other})
    before = dict(vars(unknown))
    assert interpreter_shortcuts.install(unknown) == ()
    assert vars(unknown) == before
