"""The oracles against each other, against sums of Python integers, and on answers known by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.nvfp4 import containers, e2m1, e4m3, layouts
from kda_lab.ops.nvfp4_gemm import cases, oracle
from kda_lab.ops.protocol import Call
from kda_lab.verify.metrics import rel_l2, row_max

HALVES = (0, 1, 2, 3, 4, 6, 8, 12)


def one(label: str, seed: int = 0) -> Call:
    shape, batch, kind = label.split("-")
    return cases.synthesise(cases.rows([shape], [int(batch[1:])], [kind])[0], seed)


def exact_value(call: Call, m: int, n: int) -> Fraction:
    """One output from the definition, byte by byte, in rational numbers."""
    K = call.facts["K"]
    x, w = call.inputs["x_fp4"][m].tolist(), call.inputs["weight"][:, n].tolist()
    x_sf, w_sf = call.inputs["x_sf"].flatten().tolist(), call.inputs["weight_sf"].T.flatten().tolist()

    def code(row: list[int], k: int) -> Fraction:
        nibble = row[k // 2] >> 4 if k % 2 else row[k // 2] & 15
        return Fraction(-HALVES[nibble & 7] if nibble & 8 else HALVES[nibble & 7], 2)

    def scale(container: list[int], row: int, k: int) -> Fraction:
        byte = container[layouts.offset_128x4(row, k // 16, K // 16)]
        exponent, mantissa = byte >> 3, byte & 7
        whole = Fraction(mantissa, 8) if exponent == 0 else 1 + Fraction(mantissa, 8)
        return whole * Fraction(2) ** (max(exponent, 1) - 7)

    total = sum(code(x, k) * scale(x_sf, m, k) * code(w, k) * scale(w_sf, n, k) for k in range(K))
    return total * Fraction(float(call.inputs["alpha"]))


@pytest.mark.parametrize("label", ["tiny_d-M3-random", "tiny_e-M130-any_scale", "tiny_f-M2-exact", "tiny_c-M1-fp32"])
def test_integers_agree_with_rational_arithmetic(label: str) -> None:
    """A sample of outputs, worked out from the bytes in exact fractions, is met to the last bits of FP64."""
    call = one(label, 5)
    M, N = call.facts["M"], call.facts["N"]
    found = oracle.oracle_fp64(call)["out"]
    for m, n in {(0, 0), (M - 1, N - 1), (M // 2, N // 3), (M - 1, 1)}:
        assert float(found[m, n]) == pytest.approx(float(exact_value(call, m, n)), rel=1e-14)


@pytest.mark.parametrize("kind", cases.KINDS)
@pytest.mark.parametrize("shape", sorted(cases.TINY_SHAPES))
@pytest.mark.parametrize("M", [1, 9, 129])
def test_both_roads_agree(shape: str, kind: str, M: int) -> None:
    """FP32 by values and FP64 by integers differ by FP32 rounding, and not at all where all sums are exact."""
    call = cases.with_guard_rows(one(f"{shape}-M{M}-{kind}", 1))
    by_values, by_integers = oracle.oracle_fp32(call)["out"], oracle.oracle_fp64(call)["out"]
    assert row_max(by_values, by_integers) <= (0.0 if kind == "exact" else 1e-6)


@given(st.integers(1, 140), st.integers(1, 140), st.integers(1, 9), st.integers(0, 1000))
@settings(max_examples=25)
def test_both_roads_agree_on_any_geometry(M: int, N: int, blocks: int, seed: int) -> None:
    """Any M and N, any K of whole blocks, arbitrary codes and scales."""
    draw = torch.Generator().manual_seed(seed)

    def operand(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        packed = torch.randint(0, 256, (rows, blocks * 8), dtype=torch.uint8, generator=draw)
        return packed, torch.randint(0, 0x7F, (rows, blocks), dtype=torch.uint8, generator=draw)

    x_fp4, x_sf = containers.prepare_activation(*operand(M))
    weight, weight_sf = containers.prepare_weight(*operand(N))
    inputs = {"x_fp4": x_fp4, "weight": weight, "x_sf": x_sf, "weight_sf": weight_sf, "alpha": torch.tensor([-0.3])}
    call = cases.with_guard_rows(Call("nvfp4.gemm", inputs, {}, {"out": torch.zeros(M, N)}))
    found = oracle.oracle_fp64(call)["out"]
    assert rel_l2(oracle.oracle_fp32(call)["out"], found) < 1e-5


@pytest.mark.parametrize("elements", [1, 96 * 7, 1 << 20])
def test_pieces_of_n_make_no_difference(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    """Cut into single outputs, into pieces that do not divide N, or not at all: the same values."""
    call = one("tiny_e-M5-random")
    whole = oracle.oracle_fp64(call)["out"], oracle.oracle_fp32(call)["out"]
    allowed = oracle.allowance(call, {"out": whole[0]})["out"]
    monkeypatch.setattr(oracle, "CPU_ELEMENTS", elements)
    assert torch.allclose(oracle.oracle_fp64(call)["out"], whole[0], rtol=1e-14, atol=1e-12)
    assert torch.allclose(oracle.oracle_fp32(call)["out"], whole[1], rtol=1e-5, atol=1e-4)
    assert torch.allclose(oracle.allowance(call, {"out": whole[0]})["out"], allowed, rtol=1e-5, atol=0)


def test_one_block_by_hand() -> None:
    """k = 0 and 1 carry 6 and -0.5, scales 2 and 0.5, alpha 3: (6·1 - 0.5·4) · 2 · 0.5 · 3 = 12."""
    x, w = torch.zeros(1, 16), torch.zeros(1, 16)
    x[0, :2], w[0, :2] = torch.tensor([6.0, -0.5]), torch.tensor([1.0, 4.0])
    x_fp4, x_sf = containers.prepare_activation(e2m1.pack(e2m1.encode(x)), e4m3.encode(torch.full((1, 1), 2.0)))
    weight, weight_sf = containers.prepare_weight(e2m1.pack(e2m1.encode(w)), e4m3.encode(torch.full((1, 1), 0.5)))
    inputs = {"x_fp4": x_fp4, "weight": weight, "x_sf": x_sf, "weight_sf": weight_sf, "alpha": torch.tensor([3.0])}
    call = Call("nvfp4.gemm", inputs, {"out_dtype": "bfloat16"}, {"out": torch.zeros(1, 1, dtype=torch.bfloat16)})
    assert oracle.oracle_fp64(call)["out"].item() == 12.0
    assert oracle.oracle_fp32(call)["out"].item() == 12.0
    assert oracle.emulate(call)["out"].item() == 12.0


@pytest.mark.parametrize("kind", cases.KINDS)
def test_emulation_is_the_exact_result_rounded_once(kind: str) -> None:
    """In the output's dtype, with the floor of that dtype."""
    call = one(f"tiny_b-M8-{kind}")
    emulated, exact = oracle.emulate(call)["out"], oracle.oracle_fp64(call)["out"]
    assert emulated.dtype == call.outputs["out"].dtype
    low, high = {"random": (1.4e-3, 1.9e-3), "any_scale": (1.4e-3, 1.9e-3), "fp32": (1e-8, 4e-8), "exact": (0, 0)}[kind]
    assert low <= rel_l2(emulated, exact) <= high


@pytest.mark.parametrize(("label", "ulps"), [("tiny_e-M3-random", 1.0), ("tiny_e-M3-fp32", 0.0)])
def test_allowance_by_hand(label: str, ulps: float) -> None:
    """One ulp of a BF16 output and 1e-5 of the scaled sum of magnitudes, worked out here in FP64."""
    call = one(label)
    M, N, K = oracle.geometry(call)
    exact = oracle.oracle_fp64(call)
    scales = (
        layouts.unswizzle_128x4(call.inputs["x_sf"], M, K // 16),
        layouts.unswizzle_128x4(call.inputs["weight_sf"].t(), N, K // 16),
    )
    x, weight = (
        (e2m1.decode(e2m1.unpack(p)).double().unflatten(1, (-1, 16)) * e4m3.decode(s)[:, :, None]).flatten(1).abs()
        for p, s in zip((call.inputs["x_fp4"], call.inputs["weight"].t().contiguous()), scales, strict=True)
    )
    terms = x @ weight.t() * call.inputs["alpha"].double().abs()
    ulp = 2.0 ** (exact["out"].abs().log2().floor() - 7) * ulps
    assert torch.allclose(oracle.allowance(call, exact)["out"].double(), ulp + 1e-5 * terms, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["alpha_zero", "zero_activations"])
def test_nothing_is_allowed_where_outputs_are_representable(name: str) -> None:
    """Zero results and exact rows must be met to the bit."""
    for call in (cases.edge_calls(1)[name], one("tiny_b-M2-exact")):
        assert not oracle.allowance(call, oracle.oracle_fp64(call))["out"].any()


def test_the_least_ulp_is_that_of_subnormal_numbers() -> None:
    """0 and what is too small for BF16 have the ulp of its smallest number."""
    found = oracle._bf16_ulp(torch.tensor([0.0, 1e-45, 1.0, -1.99, 2.0], dtype=torch.float64))
    assert found.tolist() == [2.0**-133, 2.0**-133, 2.0**-7, 2.0**-7, 2.0**-6]


def test_nan_in_live_scales_shows() -> None:
    """NaN in padding is silent, NaN in a live scale is not: neither oracle hides it."""
    call = one("tiny_d-M3-random")
    broken = call.inputs["weight_sf"].clone()
    broken[0, 0] = 0x7F
    call = call.with_inputs(weight_sf=broken)
    for found in (oracle.oracle_fp64(call)["out"], oracle.oracle_fp32(call)["out"]):
        assert found[:, 0].isnan().all()
        assert not found[:, 1:].isnan().any()


def test_geometry_is_checked() -> None:
    """Operands that disagree on K, and a K without whole blocks, are refused at once."""
    call = one("tiny_d-M3-random")
    with pytest.raises(ParameterError, match=r"weight\.shape\[0\] is 32; allowed: K/2 of x_fp4, 28\."):
        oracle.geometry(call.with_inputs(x_fp4=call.inputs["x_fp4"][:, :28]))
    with pytest.raises(ParameterError, match=r"K is 60; allowed: a multiple of 16\. Pad K with zero codes\."):
        oracle.geometry(call.with_inputs(x_fp4=call.inputs["x_fp4"][:, :30], weight=call.inputs["weight"][:30]))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", cases.KINDS)
def test_oracles_agree_on_the_gpu_and_with_the_cpu(kind: str) -> None:
    """The same call on both devices; exact rows to the last bit."""
    call = cases.with_guard_rows(one(f"tiny_b-M9-{kind}"))
    there = call.to("cuda")
    exact = oracle.oracle_fp64(call)["out"]
    assert torch.allclose(oracle.oracle_fp64(there)["out"].cpu(), exact, rtol=1e-13, atol=1e-12)
    assert row_max(oracle.oracle_fp32(there)["out"].cpu(), exact) <= (0.0 if kind == "exact" else 1e-6)


@pytest.mark.gpu
def test_the_largest_layer_stays_below_8_gb() -> None:
    """lm_head with nine tokens: peak of both oracles beside the call itself."""
    call = cases.make_sets(cases.rows(["lm_head"], [9], ["random"])[0], 1, 0, "cuda")[0]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    exact = oracle.oracle_fp64(call)["out"]
    assert rel_l2(oracle.oracle_fp32(call)["out"], exact) < 1e-6
    assert torch.cuda.max_memory_allocated() - before < 8e9
