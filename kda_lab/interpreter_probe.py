"""Small Triton kernels with known answers that show whether Triton's interpreter computes BF16 faithfully.

`faults()` runs them and names the facts that are wrong, so that the same code proves that a raw
Triton needs the mend, that the mend works, and that a newer Triton no longer needs it.
Import this module only after the interpreter was switched on: a kernel is made for it or for a GPU
when it is defined.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

SIDE = 16


@triton.jit
def _dot_kernel(a_ptr, b_ptr, out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.arange(0, N)[:, None]
    column = tl.arange(0, N)[None, :]
    a = tl.load(a_ptr + row * N + column)
    b = tl.load(b_ptr + row * N + column)
    tl.store(out_ptr + row * N + column, tl.dot(a, b))


@triton.jit
def _narrow_kernel(x_ptr, out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(x_ptr + at).to(tl.bfloat16))


@triton.jit
def _store_kernel(x_ptr, out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(x_ptr + at))


@triton.jit
def _widen_kernel(x_ptr, out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(x_ptr + at).to(tl.float32))


@triton.jit
def _scale_kernel(x_ptr, out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(x_ptr + at) * 0.0625)


@triton.jit
def _arithmetic_kernel(a_ptr, b_ptr, out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    a = tl.load(a_ptr + at)
    b = tl.load(b_ptr + at)
    tl.store(out_ptr + at, a + b)
    tl.store(out_ptr + N + at, a - b)
    tl.store(out_ptr + 2 * N + at, a * b)
    tl.store(out_ptr + 3 * N + at, tl.where(a < b, a, b))
    tl.store(out_ptr + 4 * N + at, -a)


@triton.jit
def _sum_kernel(x_ptr, out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, N)), axis=0))


@triton.jit
def _integer_kernel(x_ptr, out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(x_ptr + at).to(tl.bfloat16))


@triton.jit
def _range_kernel(bounds_ptr, out_ptr):  # type: ignore[no-untyped-def]
    first = tl.load(bounds_ptr)
    last = tl.load(bounds_ptr + 1)
    total = 0
    for i in range(first, last):
        total += i
    tl.store(out_ptr, total)


@triton.jit
def _quiet_kernel(out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    low = tl.full([N], float("-inf"), tl.float32)
    tl.store(out_ptr + at, tl.where(at >= 0, 0.0, low - low))


def is_interpreted() -> bool:
    """Whether the switch was on before Triton was imported: its own `tl.sum` is a kernel function too."""
    return all(type(function).__name__ == "InterpretedFunction" for function in (tl.sum, _dot_kernel))


def _values(count: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """[count] deterministic values of both signs whose BF16 rounding goes up, down and to even."""
    return ((torch.arange(count, dtype=torch.float32) * 0.7310586) % 4.0 - 2.0).to(dtype)


def _dot_is_right() -> bool:
    a, b = _values(SIDE * SIDE).view(SIDE, SIDE), _values(SIDE * SIDE).flip(0).view(SIDE, SIDE)
    out = torch.zeros(SIDE, SIDE)
    _dot_kernel[(1,)](a, b, out, SIDE)
    return torch.allclose(out, a.float() @ b.float(), rtol=1e-5, atol=1e-5)


def _narrowing_inputs() -> torch.Tensor:
    # 1 + 2^-8 and 1 + 3·2^-8 are ties; the largest FP32 overflows to infinity; 1e-40 is subnormal.
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 3.4e38, float("inf"), float("nan"), 1e-40, 0.0])
    return torch.cat([ties, _values(SIDE - len(ties), torch.float32)])


def _narrowing_is_right() -> bool:
    x = _narrowing_inputs()
    explicit, implicit = torch.zeros(SIDE, dtype=torch.bfloat16), torch.zeros(SIDE, dtype=torch.bfloat16)
    _narrow_kernel[(1,)](x, explicit, SIDE)
    _store_kernel[(1,)](x, implicit, SIDE)
    expected = x.to(torch.bfloat16)
    return all(torch.equal(expected.nan_to_num(7.0), out.nan_to_num(7.0)) for out in (explicit, implicit))


def _widening_is_right() -> bool:
    x = torch.cat([_values(SIDE - 2), torch.tensor([1e-40, float("inf")], dtype=torch.bfloat16)])
    out = torch.zeros(SIDE)
    _widen_kernel[(1,)](x, out, SIDE)
    return torch.equal(out, x.float())


def _scalar_is_right() -> bool:
    x, out = _values(SIDE), torch.zeros(SIDE, dtype=torch.bfloat16)
    _scale_kernel[(1,)](x, out, SIDE)
    return torch.equal(out, x * 0.0625)


def _arithmetic_is_right() -> bool:
    a, b = _values(SIDE), _values(SIDE).flip(0)
    out = torch.zeros(5, SIDE, dtype=torch.bfloat16)
    _arithmetic_kernel[(1,)](a, b, out, SIDE)
    return torch.equal(out, torch.stack([a + b, a - b, a * b, torch.minimum(a, b), -a]))


def _sum_is_right() -> bool:
    x = torch.arange(SIDE, dtype=torch.bfloat16) - 4
    out = torch.zeros(1, dtype=torch.bfloat16)
    _sum_kernel[(1,)](x, out, SIDE)
    return out.item() == x.float().sum().item()


def _integer_cast_is_right() -> bool:
    x = torch.arange(SIDE, dtype=torch.int32) - 8
    out = torch.zeros(SIDE, dtype=torch.bfloat16)
    _integer_kernel[(1,)](x, out, SIDE)
    return torch.equal(out, x.to(torch.bfloat16))


def _range_is_right() -> bool:
    out = torch.zeros(1, dtype=torch.int32)
    _range_kernel[(1,)](torch.tensor([2, 5], dtype=torch.int32), out)
    return out.item() == 2 + 3 + 4


def _silence_is_right() -> bool:
    out = torch.ones(SIDE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _quiet_kernel[(1,)](out, SIDE)
    return bool((out == 0).all())


PROBES: dict[str, tuple[str, Callable[[], bool]]] = {
    "bf16_dot": ("tl.dot multiplies BF16 operands as numbers, not as bit patterns", _dot_is_right),
    "bf16_narrowing": ("FP32 to BF16 rounds to nearest, ties to even", _narrowing_is_right),
    "bf16_widening": ("BF16 to FP32 is exact", _widening_is_right),
    "bf16_scalar": ("a Python scalar times a BF16 tensor works", _scalar_is_right),
    "bf16_arithmetic": ("add, subtract, multiply, negate and compare work on BF16 tensors", _arithmetic_is_right),
    "bf16_sum": ("tl.sum works on BF16 tensors", _sum_is_right),
    "bf16_from_integer": ("an integer casts to BF16 by value", _integer_cast_is_right),
    "loaded_range": ("range() takes bounds that were loaded from memory", _range_is_right),
    "quiet_masked_nan": ("a NaN that a mask discards does not warn", _silence_is_right),
}
"""Fact to (what must hold, the probe that tells whether it holds)."""


def faults() -> dict[str, str]:
    """Facts that do not hold in this process, each with what went wrong; empty when all hold."""
    found: dict[str, str] = {}
    for name, (_, probe) in PROBES.items():
        outcome = _outcome(probe)
        if outcome:
            found[name] = outcome
    return found


def _outcome(probe: Callable[[], Any]) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "" if probe() else "wrong values"
    # Expected: InterpreterError around AttributeError ("get_bf16"), TypeError of int(array), NumPy's warnings.
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
