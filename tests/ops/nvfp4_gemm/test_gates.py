"""The tolerance table, the limits made of it, and what they see in wide outputs."""

from __future__ import annotations

import math

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.gate import KINDS
from kda_lab.ops.nvfp4_gemm import cases, emulated, gates, oracle
from kda_lab.ops.protocol import Call
from kda_lab.verify.checks import CHECK_NAMES
from kda_lab.verify.metrics import element_max, rel_l2, row_max

LM_HEAD = 248320


def one(label: str, seed: int = 0) -> Call:
    shape, batch, kind = label.split("-")
    return cases.synthesise(cases.rows([shape], [int(batch[1:])], [kind])[0], seed)


def limits_of(call: Call) -> gates.Limits:
    exact, rounded = oracle.oracle_fp64(call)["out"], oracle.emulate(call)["out"]
    return gates.limits("synthetic", rel_l2(rounded, exact), row_max(rounded, exact))


@pytest.mark.parametrize("kind", KINDS)
def test_the_floor_says_which_limits_hold(kind: str) -> None:
    """BF16 outputs 2e-3, FP32 outputs 1e-5, exact rows equal values."""
    assert gates.limits(kind, 1.66e-3) == gates.Limits(2e-3, 2e-3)
    assert gates.limits(kind, 3e-8) == gates.Limits(1e-5, 1e-5)
    assert gates.limits(kind, 0.0) == gates.Limits(0.0, 0.0)


def test_a_high_floor_raises_the_limits() -> None:
    """Where few outputs make rounding cost more, the limits follow the floors, a row's its own."""
    found = gates.limits("real", 1.9e-3, 2.9e-3)
    assert found.error == pytest.approx(1.1 * 1.9e-3)
    assert found.row_max == pytest.approx(1.1 * 2.9e-3)
    assert gates.limits("real", 1.9e-3).row_max == found.error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("flat", 0.0), r"nvfp4\.gemm: kind is 'flat'; allowed: 'real', 'synthetic'\."),
        (("real", math.nan), r"floor is nan; allowed: a finite number of at least 0\. Mend the oracle\."),
        (("real", 0.0, -1.0), r"row_floor is -1\.0; allowed: a finite number"),
    ],
)
def test_senseless_limits_are_refused(arguments: tuple[object, ...], message: str) -> None:
    """An unknown kind and a floor that is no number are refused: a NaN limit would pass or fail at random."""
    with pytest.raises(ParameterError, match=message):
        gates.limits(*arguments)  # type: ignore[arg-type]


def test_every_check_with_a_tolerance_is_in_the_table() -> None:
    """The table names the checks that the referee runs, but for the launch itself, with this op's changes."""
    fixed = {name for name in CHECK_NAMES if not name.startswith("changed_")} - {"launch"}
    own = {"element_max", *(f"changed_{which}" for which in cases.CHANGES)}
    assert {gate.gate for gate in gates.TOLERANCES} == fixed | own


def test_every_gate_says_where_it_comes_from() -> None:
    """No limit without a source, and real captures are never judged more loosely than synthetic ones."""
    for gate in gates.TOLERANCES:
        assert gate.source
        assert gate.metric
        assert 0 <= gate.real <= gate.synthetic


@pytest.mark.parametrize("kind", cases.KINDS)
@pytest.mark.parametrize("shape", ["tiny_b", "tiny_d", "tiny_e"])
@pytest.mark.parametrize("tile", [16, 48, 128])
def test_fp32_accumulation_in_any_order_passes(shape: str, kind: str, tile: int) -> None:
    """K added up tile by tile, from either end, in FP32: within the limits, exact rows with equal values."""
    call = one(f"{shape}-M9-{kind}", 3)
    reference, limits = oracle.oracle_fp32(call)["out"], limits_of(call)

    def by_tiles(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(x.shape[0], weight.shape[0])
        for first in reversed(range(0, x.shape[1], tile)):
            total = total + x[:, first : first + tile] @ weight[:, first : first + tile].t()
        return total

    out = torch.empty_like(call.outputs["out"])
    emulated.Gemm(product=by_tiles)(call.with_outputs(out=out))
    assert rel_l2(out, reference) <= limits.error
    assert row_max(out, reference) <= limits.row_max
    exact = oracle.oracle_fp64(call)
    assert element_max(out, exact["out"], oracle.allowance(call, exact)["out"]) <= 0.51


@pytest.mark.parametrize(("kind", "share"), [("fp32", 0.01), ("any_scale", 0.51), ("exact", 0.0)])
def test_a_sum_rounded_towards_zero_is_far_within_the_allowance(kind: str, share: float) -> None:
    """As a tensor core may keep it: 16 exact products at a time, and the running sum cut off, not rounded."""
    call = one(f"tiny_b-M9-{kind}", 3)

    def towards_zero(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(x.shape[0], weight.shape[0])
        for first in range(0, x.shape[1], 16):
            tile = slice(first, first + 16)
            exact = total.double() + x[:, tile].double() @ weight[:, tile].double().t()
            total = exact.float()
            total = torch.where(total.double().abs() > exact.abs(), total.nextafter(torch.zeros(())), total)
        return total

    out, exact = torch.empty_like(call.outputs["out"]), oracle.oracle_fp64(call)
    emulated.Gemm(product=towards_zero)(call.with_outputs(out=out))
    assert element_max(out, exact["out"], oracle.allowance(call, exact)["out"]) <= share


@pytest.mark.parametrize(("wrong", "tokens", "sees_whole"), [(16, 9, True), (1, 9, True), (1, 1, False)])
def test_the_row_gate_sees_one_wrong_column_of_the_widest_layer(wrong: int, tokens: int, sees_whole: bool) -> None:
    """Unrelated values in 16 or 1 of 248320 columns; in one token of nine only the row gate sees a single element."""
    draw = torch.Generator().manual_seed(0)
    exact = torch.randn(9, LM_HEAD, generator=draw, dtype=torch.float64)
    out = exact.to(torch.bfloat16)
    out[:tokens, 777 : 777 + wrong] = torch.randn(tokens, wrong, generator=draw).to(torch.bfloat16) * 1.5
    limits = gates.limits("synthetic", rel_l2(exact.to(torch.bfloat16), exact))
    assert (rel_l2(out, exact) > limits.error) == sees_whole
    assert row_max(out, exact) > limits.row_max
