"""The oracles agree with each other, with plain arithmetic and with analytic cases; the emulation has its known floor."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_packed_decode import cases, oracle

EDGES = cases.edge_calls(seed=5)


def rel_l2(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value.double() - reference.double()).norm() / reference.double().norm())


def make_call(lengths: list[int], heads: tuple[int, int] = (24, 2), seed: int = 0) -> Call:
    return cases._peaky(f"test-{lengths}", heads, lengths, "test", seed, "cpu")


def plain_attention(call: Call) -> np.ndarray:
    """One dot product, one exponential and one weight at a time, in FP64, by the definition."""
    q, k, v = (call.inputs[name].double().numpy() for name in ("q", "k", "v"))
    starts = call.inputs["cu_seqlens_k"].tolist()
    out = np.zeros(q.shape)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            g = h // (q.shape[1] // k.shape[1])
            weights = [math.exp(float(q[b, h] @ k[i, g]) / 16) for i in range(starts[b], starts[b + 1])]
            for i, weight in zip(range(starts[b], starts[b + 1]), weights, strict=True):
                out[b, h] += weight / sum(weights) * v[i, g]
    return out


def online_softmax(call: Call, tile: int) -> torch.Tensor:
    """The emulated kernel as a loop over tiles with a carried maximum, for one split."""
    shape = oracle.geometry(call)
    out = torch.zeros(shape.B, shape.HQ, shape.D)
    for b in range(shape.B):
        for h in range(shape.HQ):
            g, first = h // shape.group, shape.starts[b]
            top, total, acc = torch.tensor(-math.inf), torch.tensor(0.0), torch.zeros(shape.D)
            for start in range(first, shape.starts[b + 1], tile):
                end = min(start + tile, shape.starts[b + 1])
                scores = call.inputs["k"][start:end, g].float() @ call.inputs["q"][b, h].float()
                scores = scores * (shape.scale * math.log2(math.e))
                new_top = torch.maximum(top, scores.max())
                p, carry = torch.exp2(scores - new_top), torch.exp2(top - new_top)
                total, top = total * carry + p.sum(), new_top
                acc = acc * carry + p.bfloat16().float() @ call.inputs["v"][start:end, g].float()
            out[b, h] = acc / total if total > 0 else acc
    return out.bfloat16()


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=5),
    heads=st.sampled_from([(24, 2), (12, 1), (6, 1), (8, 4), (3, 3)]),
    seed=st.integers(0, 1000),
)
def test_three_oracles_agree(lengths: list[int], heads: tuple[int, int], seed: int) -> None:
    """Per-row FP64, masked FP64 and per-row FP32 give one answer for any lengths and head counts."""
    call = make_call(lengths, heads, seed)
    fp64 = oracle.oracle_fp64(call)["out"]
    assert torch.allclose(oracle.oracle_masked(call)["out"], fp64, rtol=1e-12, atol=1e-12)
    assert torch.allclose(oracle.oracle_fp32(call)["out"].double(), fp64, rtol=1e-4, atol=1e-5)


def test_oracle_is_the_definition() -> None:
    """The vectorised FP64 oracle equals scalar arithmetic written out from the formula."""
    call = make_call([3, 0, 17, 1])
    assert np.allclose(oracle.oracle_fp64(call)["out"].numpy(), plain_attention(call), rtol=1e-12, atol=1e-12)


def test_dtypes_and_shapes() -> None:
    """Oracles return unrounded FP32 and FP64, the emulation BF16, all shaped as the output."""
    call = make_call([5, 9])
    for compute, dtype in (
        (oracle.oracle_fp32, torch.float32),
        (oracle.oracle_fp64, torch.float64),
        (oracle.emulate, torch.bfloat16),
    ):
        out = compute(call)["out"]
        assert out.dtype is dtype
        assert out.shape == call.outputs["out"].shape


@pytest.mark.parametrize("name", ["zero_rows", "all_zero_rows"])
def test_empty_rows_are_exactly_zero(name: str) -> None:
    """A row without keys gives zero bits in every oracle and in the emulation."""
    call = EDGES[name]
    empty = call.inputs["cu_seqlens_k"].diff() == 0
    for compute in (oracle.oracle_fp32, oracle.oracle_fp64, oracle.oracle_masked, oracle.emulate):
        out = compute(call)["out"]
        assert torch.equal(out[empty], torch.zeros_like(out[empty]))
        assert bool((out[~empty] != 0).any()) == bool((~empty).any())


def test_one_key_gives_its_value_bit_for_bit() -> None:
    """A row of length 1 is its V row exactly, since the softmax of one score is 1."""
    call = EDGES["length_one"]
    expected = call.inputs["v"].repeat_interleave(12, dim=1)
    assert torch.equal(oracle.emulate(call)["out"], expected)
    assert torch.equal(oracle.oracle_fp32(call)["out"], expected.float())


def test_zero_keys_give_the_mean_of_the_values() -> None:
    """With all scores equal the output is the mean of V over the row."""
    call = EDGES["zero_keys"]
    first = call.inputs["v"][:64, 0].double().mean(0)
    assert torch.allclose(oracle.oracle_fp64(call)["out"][0, 3], first, rtol=1e-12, atol=1e-12)


def test_a_dominant_key_gives_its_value() -> None:
    """A key 60 above all others in score is the whole output."""
    call = EDGES["dominant_key"]
    at = call.inputs["cu_seqlens_k"][:-1].long() + 5
    expected = call.inputs["v"][at].repeat_interleave(12, dim=1)
    assert torch.equal(oracle.emulate(call)["out"], expected)


def test_big_scores_do_not_overflow() -> None:
    """Scores of a thousand stay finite and the oracles still agree."""
    call = EDGES["big_scores"]
    scores = torch.einsum("hd,nd->hn", call.inputs["q"][0, :12].double(), call.inputs["k"][:129, 0].double()) / 16
    assert scores.abs().max() > 500
    out = oracle.oracle_fp32(call)["out"]
    assert torch.isfinite(out).all()
    assert rel_l2(oracle.emulate(call)["out"], oracle.oracle_fp64(call)["out"]) < 2.5e-3


def test_equal_values_come_out_equal() -> None:
    """With V constant the oracle gives that constant, and the emulation is within one BF16 step of it."""
    call = EDGES["equal_values"]
    assert torch.allclose(oracle.oracle_fp64(call)["out"], torch.tensor(1.7109375, dtype=torch.float64), rtol=1e-12)
    assert (oracle.emulate(call)["out"].float() / 1.7109375 - 1).abs().max() <= 2**-7


def test_adding_a_vector_to_all_keys_changes_nothing() -> None:
    """The softmax does not see a constant added to all scores of a row."""
    call = make_call([40])
    keys = call.inputs["k"].double()
    moved = call.with_inputs(k=keys + torch.linspace(-1, 1, 256, dtype=torch.float64))
    unmoved = call.with_inputs(k=keys)
    assert torch.allclose(oracle.oracle_fp64(moved)["out"], oracle.oracle_fp64(unmoved)["out"], rtol=1e-9, atol=1e-10)


def test_tensor_parallel_halves_make_the_whole() -> None:
    """The first 12 heads over key head 0 alone equal the same heads of the full call."""
    call = make_call([33, 65])
    half = call.with_inputs(q=call.inputs["q"][:, :12], k=call.inputs["k"][:, :1], v=call.inputs["v"][:, :1])
    assert torch.equal(oracle.oracle_fp64(half)["out"], oracle.oracle_fp64(call)["out"][:, :12])


def test_rows_behind_the_live_end_are_not_read() -> None:
    """NaN behind the last live row reaches no oracle."""
    call = make_call([30, 12])
    guarded = cases.with_guard_rows(call, 64)
    for compute in (oracle.oracle_fp32, oracle.oracle_fp64, oracle.oracle_masked, oracle.emulate):
        assert torch.equal(compute(guarded)["out"], compute(call)["out"])


def test_scale_is_taken_from_the_call() -> None:
    """softmax_scale None means D**-0.5; another value is used as given."""
    call = make_call([50])
    given_scale = Call(call.op, call.inputs, {**call.scalars, "softmax_scale": 1 / 16}, call.outputs)
    other = Call(call.op, call.inputs, {**call.scalars, "softmax_scale": 0.5}, call.outputs)
    assert torch.equal(oracle.oracle_fp64(call)["out"], oracle.oracle_fp64(given_scale)["out"])
    assert rel_l2(oracle.oracle_fp64(other)["out"], oracle.oracle_fp64(call)["out"]) > 0.1


@pytest.mark.parametrize("tile", [16, 64])
def test_emulation_is_the_online_softmax(tile: int) -> None:
    """The vectorised emulation equals a loop over tiles with a carried maximum, but for FP32 rounding."""
    call = make_call([150, 0, 16, 33], heads=(4, 2))
    mine, looped = oracle.emulate(call, tile=tile)["out"], online_softmax(call, tile)
    # Different summation orders may flip the last rounding of a few elements by one BF16 step.
    assert (mine == looped).double().mean() > 0.999
    assert rel_l2(mine, looped) < 2e-4


def test_flat_random_inputs_have_the_known_floor() -> None:
    """On independent normal inputs a BF16-P kernel lies between 2.0e-3 and 2.5e-3 from FP64, above the real-tensor gate."""
    generator = torch.Generator().manual_seed(0)
    call = make_call([2051], heads=(12, 1))
    flat = {n: torch.randn(t.shape, generator=generator).bfloat16() for n, t in call.inputs.items() if n in "qkv"}
    call = call.with_inputs(**flat)
    floor = rel_l2(oracle.emulate(call)["out"], oracle.oracle_fp64(call)["out"])
    rounding = rel_l2(oracle.oracle_fp64(call)["out"].bfloat16(), oracle.oracle_fp64(call)["out"])
    assert 2.0e-3 < floor < 2.5e-3
    assert 1.5e-3 < rounding < 1.8e-3


def test_splitting_hardly_moves_the_floor() -> None:
    """Cutting a row into eight splits changes the error by less than 1e-4."""
    call = make_call([858, 64])
    reference = oracle.oracle_fp64(call)["out"]
    errors = [
        rel_l2(oracle.emulate(call, splits, tile)["out"], reference) for splits, tile in ((1, 64), (8, 64), (8, 32))
    ]
    assert max(errors) - min(errors) < 1e-4


def test_process_precision_is_restored() -> None:
    """The FP32 oracle leaves the process's matrix precision as it found it."""
    before = torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    oracle.oracle_fp32(make_call([4]))
    assert (torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision) == before


def test_indivisible_heads_are_refused() -> None:
    """Query heads that key heads do not divide are refused."""
    call = make_call([4], heads=(24, 2))
    with pytest.raises(
        ParameterError, match=r"qsa\.packed_decode: q\.shape\[1\] is 23; allowed: a multiple of k\.shape\[1\], 2"
    ):
        oracle.oracle_fp32(call.with_inputs(q=call.inputs["q"][:, :23]))


def test_offsets_outside_the_buffers_are_refused() -> None:
    """Offsets that leave K are refused before anything is read."""
    call = make_call([4])
    offsets = torch.tensor([0, 5], dtype=torch.int32)
    with pytest.raises(ParameterError, match=r"cu_seqlens_k is 5; allowed: ascending offsets up to 4, the rows of k"):
        oracle.oracle_fp64(call.with_inputs(cu_seqlens_k=offsets))


@pytest.mark.gpu
def test_fp32_oracle_ignores_tf32_on_a_gpu() -> None:
    """With TF32 allowed in the process the FP32 oracle still agrees with FP64 to FP32 accuracy."""
    call = make_call([858]).to("cuda")
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        error = rel_l2(oracle.oracle_fp32(call)["out"], oracle.oracle_fp64(call)["out"])
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert error < 2e-6
