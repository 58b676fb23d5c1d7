"""Triton's interpreter, mended so that a BF16 kernel computes on the CPU what it would on a GPU.

Triton keeps BF16 tensors as 16-bit patterns in NumPy arrays and, in every version tried (3.6.0 to
3.9.0), computes on those patterns as if they were integers. `ensure_faithful()` wraps the methods of
the interpreter's builder: BF16 operands are widened to FP32, the operation runs there, and the result
is rounded once to nearest, ties to even. Kernel sources stay as they are.

What stays different from a GPU: programs run one after another, so a program that waits for another
never ends; `tl.dot` on FP32 operands is not rounded to TF32; a BF16 `tl.sum` is rounded once instead of
after every addition; FP8 conversions are Triton's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from kda_lab import runtime
from kda_lab.errors import UnavailableError

TESTED_VERSIONS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
"""Triton versions on which the mend was tried; on any other the self-test decides."""
_MARK = "_kda_lab_mended"
_found: dict[str, str] = {}


@dataclass(frozen=True)
class Fact:
    """One thing the interpreter must do, and what this Triton did before the mend."""

    name: str
    what: str
    needed: bool
    """Whether this Triton gets it wrong without the mend."""
    fault: str
    """What went wrong without the mend; empty when nothing did."""


def ensure_faithful() -> None:
    """Install the mend once, prove it by the probes, and do nothing where the interpreter is off.

    Raises:
        UnavailableError: Triton was imported before the interpreter was switched on, or a probe is
            still wrong after the mend (a Triton whose interpreter works otherwise).
    """
    if not runtime.interpreter_on():
        return
    import triton  # lazy: triton
    import triton.language as tl  # lazy: triton
    import triton.runtime.interpreter as machine  # lazy: triton

    if getattr(machine, _MARK, False):
        return
    from kda_lab import interpreter_memory, interpreter_probe, interpreter_shortcuts  # lazy: triton

    if not interpreter_probe.is_interpreted():
        raise UnavailableError(
            "interpreter",
            "TRITON_INTERPRET is '1', but Triton was imported before it was set. "
            "Call runtime.use_interpreter_on_cpu(), or set the variable, before anything imports Triton.",
        )
    _found.update(interpreter_probe.faults())
    _install(machine, tl)
    interpreter_memory.install(machine)
    interpreter_shortcuts.install(machine)
    left = interpreter_probe.faults()
    if left:
        known = "tested" if triton.__version__ in TESTED_VERSIONS else "untested"
        raise UnavailableError(
            "interpreter",
            f"triton is {triton.__version__!r} ({known}); after the mend its interpreter is still wrong in "
            + "; ".join(f"{name} ({fault})" for name, fault in left.items())
            + f". Use one of {', '.join(TESTED_VERSIONS)}, or a GPU.",
        )
    setattr(machine, _MARK, True)
    runtime.declare_interpreter_faithful()


def mend_status() -> list[Fact]:
    """What the interpreter must do, one `Fact` each, with whether this Triton needed the mend for it.

    Installs the mend first. Empty where the interpreter is off.
    """
    ensure_faithful()
    if not runtime.interpreter_on():
        return []
    from kda_lab import interpreter_probe  # lazy: triton

    return [
        Fact(name, what, name in _found, _found.get(name, "")) for name, (what, _) in interpreter_probe.PROBES.items()
    ]


def widen(bits: np.ndarray) -> np.ndarray:
    """BF16 bit patterns (uint16) as FP32 values, exactly; the shape is kept."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: np.ndarray, *, truncate: bool = False) -> np.ndarray:
    """FP32 values as BF16 bit patterns (uint16): nearest, ties to even; or towards zero. NaN stays a NaN."""
    values = np.ascontiguousarray(values, dtype=np.float32).reshape(np.shape(values))
    bits = values.view(np.uint32)
    carry = np.uint32(0) if truncate else np.uint32(0x7FFF) + ((bits >> 16) & 1)
    rounded = np.asarray((bits + carry) >> 16).astype(np.uint16)
    nan = np.isnan(values)
    if not nan.any():
        return rounded
    # A NaN whose payload lies in the lower half would round to infinity.
    quiet = (((bits >> 16) | 0x40) & 0xFFFF).astype(np.uint16)
    return np.where(nan, quiet, rounded)


class _Bf16:
    """Widening and rounding of the interpreter's tensor handles."""

    def __init__(self, machine: ModuleType, tl: ModuleType) -> None:
        self.handle = machine.TensorHandle
        self.tl = tl

    def holds(self, handle: Any) -> bool:
        """Whether a handle carries BF16 patterns (a comparison's result has the dtype but holds booleans)."""
        # NumPy's dtype first: Triton compares its own in Python.
        return handle.data.dtype == np.uint16 and handle.dtype.scalar == self.tl.bfloat16

    def wide(self, handle: Any) -> Any:
        return self.handle(widen(handle.data), self.tl.float32) if self.holds(handle) else handle

    def rounded(self, handle: Any) -> Any:
        if handle.data.dtype == np.bool_:
            return handle
        return self.handle(narrow(handle.data), self.tl.bfloat16)

    def wide_tensor(self, tensor: Any) -> Any:
        if not self.holds(tensor.handle):
            return tensor
        wide_type = tensor.type.with_element_ty(self.tl.float32) if tensor.type.is_block() else self.tl.float32
        return self.tl.core.tensor(self.wide(tensor.handle), wide_type)

    def rounded_tensor(self, tensor: Any) -> Any:
        if tensor.dtype != self.tl.float32:
            return tensor
        narrow_type = tensor.type.with_element_ty(self.tl.bfloat16) if tensor.type.is_block() else self.tl.bfloat16
        return self.tl.core.tensor(self.rounded(tensor.handle), narrow_type)


def _install(machine: ModuleType, tl: ModuleType) -> None:
    bf16, builder = _Bf16(machine, tl), machine.InterpreterBuilder
    builder.get_bf16 = lambda self, value: machine.TensorHandle(narrow(np.array([value], np.float32)), tl.bfloat16)
    for name, operands in (("binary_op", 2), ("ternary_op", 3), ("unary_op", 1), ("create_fma", 3)):
        setattr(builder, name, _arithmetic(getattr(builder, name), operands, bf16))
    builder.cast_impl = _cast(builder.cast_impl, bf16)
    builder.create_fp_to_fp = _convert(builder.create_fp_to_fp, bf16)
    builder.create_dot = _dot(builder.create_dot, bf16)
    for owner, names in ((machine.ReduceOps, ("sum", "min_max")), (machine.ScanOps, ("cumsum", "cumprod"))):
        for name in names:
            setattr(owner, name, _reduction(getattr(owner, name), bf16))
    setattr(machine, "_patch_lang_tensor", _scalar_index(machine._patch_lang_tensor))  # noqa: B010 (mypy knows no such name)
    machine.GridExecutor.__call__ = _silently(machine.GridExecutor.__call__)


def _arithmetic(original: Callable[..., Any], operands: int, bf16: _Bf16) -> Callable[..., Any]:
    @functools.wraps(original)
    def mended(self: Any, *arguments: Any) -> Any:
        handles, rest = arguments[:operands], arguments[operands:]
        # A selection moves patterns and must not touch them.
        if np.where in rest or not any(bf16.holds(handle) for handle in handles):
            return original(self, *arguments)
        return bf16.rounded(original(self, *(bf16.wide(handle) for handle in handles), *rest))

    return mended


def _cast(original: Callable[..., Any], bf16: _Bf16) -> Callable[..., Any]:
    @functools.wraps(original)
    def mended(self: Any, src: Any, dst_type: Any) -> Any:
        src = bf16.wide(src)
        if dst_type.scalar == bf16.tl.bfloat16:
            return bf16.handle(narrow(src.data.astype(np.float32)), bf16.tl.bfloat16)
        return src if dst_type.scalar == src.dtype.scalar else original(self, src, dst_type)

    return mended


def _convert(original: Callable[..., Any], bf16: _Bf16) -> Callable[..., Any]:
    @functools.wraps(original)
    def mended(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        src = bf16.wide(src)
        if dst_type.scalar == bf16.tl.bfloat16 and src.data.dtype.kind == "f":
            truncate = "RTZ" in str(rounding_mode)
            return bf16.handle(narrow(src.data.astype(np.float32), truncate=truncate), bf16.tl.bfloat16)
        return original(self, src, dst_type, rounding_mode)

    return mended


def _dot(original: Callable[..., Any], bf16: _Bf16) -> Callable[..., Any]:
    @functools.wraps(original)
    def mended(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return original(self, bf16.wide(a), bf16.wide(b), *rest)

    return mended


def _reduction(original: Callable[..., Any], bf16: _Bf16) -> Callable[..., Any]:
    @functools.wraps(original)
    def mended(self: Any, given: Any, **options: Any) -> Any:
        value = given[0] if isinstance(given, tuple) else given
        if not bf16.holds(value.handle):
            return original(self, given, **options)
        result = original(self, bf16.wide_tensor(value), **options)
        if isinstance(result, (tuple, list)):
            return type(result)(bf16.rounded_tensor(part) for part in result)
        return bf16.rounded_tensor(result)

    return mended


def _scalar_index(original: Callable[..., None]) -> Callable[..., None]:
    """NumPy no longer turns a one-element array into an int, which Triton 3.6.0 relies on."""

    @functools.wraps(original)
    def mended(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return mended


def _silently(original: Callable[..., None]) -> Callable[..., None]:
    """A GPU does not warn of a NaN or an overflow that a mask discards later, so NumPy must not either."""

    @functools.wraps(original)
    def mended(self: Any, *arguments: Any, **options: Any) -> None:
        with np.errstate(all="ignore"):
            original(self, *arguments, **options)

    return mended
