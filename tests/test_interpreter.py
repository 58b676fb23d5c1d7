"""The interpreter's mend: each fact shown raw in a fresh process, and right after the mend."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab import interpreter, interpreter_probe, runtime
from kda_lab.errors import UnavailableError

pytestmark = pytest.mark.skipif(
    not runtime.interpreter_on(), reason="Triton's interpreter is off: kernels run on the GPU"
)

RAW = "import json; from kda_lab import interpreter_probe; print(json.dumps(interpreter_probe.faults()))"
WRONG_IN_TESTED_VERSIONS = {
    "bf16_dot",
    "bf16_narrowing",
    "bf16_widening",
    "bf16_scalar",
    "bf16_arithmetic",
    "bf16_sum",
    "bf16_from_integer",
    "quiet_masked_nan",
}


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TRITON_INTERPRET": "1", **environment},
    )


@pytest.fixture(scope="module")
def raw_faults() -> dict[str, str]:
    """What the interpreter gets wrong in a process without the mend."""
    return json.loads(run_python(RAW).stdout)


@pytest.fixture(autouse=True)
def mended() -> None:
    interpreter.ensure_faithful()


@triton.jit
def _features_kernel(x_ptr, counter_ptr, out_ptr, rows, N: tl.constexpr):
    at = tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for i in tl.range(0, rows, num_stages=2):
        total += tl.load(x_ptr + i * N + at, mask=at < N - 1, other=0.0, cache_modifier=".cg")
    for i in tl.static_range(2):
        total += i
    tl.debug_barrier()
    arrived = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
    tl.store(out_ptr + at, tl.exp2(total) + arrived)


@triton.jit
def _tile_kernel(x_ptr, out_ptr, live, R: tl.constexpr, N: tl.constexpr):
    row = tl.arange(0, R)[:, None]
    column = tl.arange(0, N)[None, :]
    tile = tl.load(x_ptr + row * N + column, mask=row < live, other=0.0)
    tl.store(out_ptr + row * N + column, tl.maximum(tile, 0.5).to(tl.bfloat16), mask=row < live)


def test_raw_triton_shows_each_known_fault(raw_faults: dict[str, str]) -> None:
    """In the tested Triton versions each BF16 fact is wrong without the mend; a fixed Triton fails here."""
    if triton.__version__ not in interpreter.TESTED_VERSIONS:
        pytest.skip(f"triton {triton.__version__} is not among the tested versions")
    assert set(raw_faults) - {"loaded_range"} == WRONG_IN_TESTED_VERSIONS


def test_raw_range_fault_is_known_for_one_version(raw_faults: dict[str, str]) -> None:
    """Only Triton 3.6.0 beside a current NumPy refuses range() over loaded scalars."""
    expected = triton.__version__ == "3.6.0" and np.lib.NumpyVersion(np.__version__) >= "2.4.0"
    assert ("loaded_range" in raw_faults) == expected


def test_status_agrees_with_a_raw_process(raw_faults: dict[str, str]) -> None:
    """`mend_status` names as needed exactly what a process without the mend gets wrong."""
    status = interpreter.mend_status()
    assert {fact.name for fact in status if fact.needed} == set(raw_faults)
    assert {fact.name for fact in status} == set(interpreter_probe.PROBES)


@pytest.mark.parametrize("name", interpreter_probe.PROBES)
def test_mended_fact_holds(name: str) -> None:
    """With the mend every probe gives the values that torch gives."""
    assert interpreter_probe.PROBES[name][1]()


def test_mend_is_idempotent() -> None:
    """Asking again neither wraps the builder twice nor changes what it computes."""
    import triton.runtime.interpreter as machine

    before = machine.InterpreterBuilder.create_dot
    interpreter.ensure_faithful()
    assert machine.InterpreterBuilder.create_dot is before
    assert interpreter_probe.faults() == {}


def test_mend_does_nothing_where_the_interpreter_is_off() -> None:
    """On a GPU machine the mend imports no Triton and reports nothing."""
    code = (
        "import sys; from kda_lab import interpreter; interpreter.ensure_faithful(); "
        "assert interpreter.mend_status() == []; assert 'triton.runtime.interpreter' not in sys.modules"
    )
    done = run_python(code, TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("early", ["triton", "kda_lab.interpreter_probe"])
def test_late_switch_is_refused(early: str) -> None:
    """Switching the interpreter on after Triton or a kernel was imported is refused with the remedy."""
    code = f"import os, {early}; os.environ['TRITON_INTERPRET'] = '1'; from kda_lab import interpreter; interpreter.ensure_faithful()"
    done = run_python(code, TRITON_INTERPRET="0")
    assert "interpreter: TRITON_INTERPRET is '1', but Triton was imported before it was set." in done.stderr
    assert "Call runtime.use_interpreter_on_cpu(), or set the variable, before anything imports Triton." in done.stderr


def test_mend_that_fails_its_probes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Triton whose interpreter is still wrong after the mend is refused with version and fault."""
    import triton.runtime.interpreter as machine

    monkeypatch.setattr(machine, interpreter._MARK, False)
    monkeypatch.setattr(interpreter, "_install", lambda machine, tl: None)
    monkeypatch.setattr(interpreter, "_found", {})
    monkeypatch.setattr(interpreter_probe, "faults", lambda: {"bf16_dot": "wrong values"})
    monkeypatch.setattr(triton, "__version__", "99.0")
    with pytest.raises(
        UnavailableError, match=r"triton is '99.0' \(untested\).*still wrong in bf16_dot \(wrong values\)"
    ):
        interpreter.ensure_faithful()


@settings(max_examples=200)
@given(st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=20))
def test_narrowing_is_torchs_rounding(values: list[float]) -> None:
    """Any FP32 value narrows to the BF16 that torch gives, NaN to a NaN."""
    given_values = np.array(values, dtype=np.float32)
    mine = torch.from_numpy(interpreter.narrow(given_values).view(np.int16)).view(torch.bfloat16)
    theirs = torch.from_numpy(given_values).to(torch.bfloat16)
    assert torch.equal(mine.isnan(), theirs.isnan())
    assert torch.equal(mine.nan_to_num(0.0), theirs.nan_to_num(0.0))


@settings(max_examples=100)
@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=20))
def test_widening_then_narrowing_keeps_the_value(patterns: list[int]) -> None:
    """Every BF16 pattern survives the way to FP32 and back, but for a NaN's payload."""
    bits = np.array(patterns, dtype=np.uint16)
    back = interpreter.narrow(interpreter.widen(bits))
    number = ~np.isnan(interpreter.widen(bits))
    assert np.array_equal(back[number], bits[number])
    assert np.isnan(interpreter.widen(back[~number])).all()


def test_truncation_drops_the_lower_half() -> None:
    """Rounding towards zero is kept for casts that ask for it."""
    assert interpreter.widen(interpreter.narrow(np.array([1.99999], np.float32), truncate=True)).item() == 1.9921875


def test_features_of_split_kernels_work() -> None:
    """Atomics with a memory order, barriers, cache modifiers, staged and static ranges, and exp2 run."""
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.5, 0.0, -1.0, 9.0]])
    counter, out = torch.full((1,), 5, dtype=torch.int32), torch.zeros(4)
    _features_kernel[(1,)](x, counter, out, 2, 4)
    expected = torch.exp2(torch.tensor([2.5, 3.0, 3.0, 1.0])) + 5
    assert torch.allclose(out, expected)
    assert counter.item() == 6


def test_masked_tiles_read_and_write_live_rows_only() -> None:
    """A masked 2-D load does not read dead rows and a masked store does not write them."""
    x = torch.tensor([[0.25, 1.0], [2.0, -1.0], [float("nan")] * 2, [float("nan")] * 2], dtype=torch.bfloat16)
    out = torch.full((4, 2), 7.0, dtype=torch.bfloat16)
    _tile_kernel[(1,)](x, out, 2, 4, 2)
    assert out.tolist() == [[0.5, 1.0], [2.0, 0.5], [7.0, 7.0], [7.0, 7.0]]
