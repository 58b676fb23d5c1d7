"""The streamed NVFP4 kernel: its cuts of a shape, its torch twin, its refusals; on SM90 the kernel itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.dispatch.loader import load_source
from kda_lab.ops.nvfp4_gemm import cases
from kda_lab.ops.nvfp4_gemm.oracle import emulate, oracle_fp64
from kda_lab.ops.protocol import Call
from kda_lab.verify.metrics import rel_l2

STREAMED = load_source(Path(__file__).parents[3] / "notebooks" / "candidates" / "nvfp4.gemm" / "streamed.py")
TENSORS = ("x_fp4", "weight", "x_sf", "weight_sf", "alpha")


def called(call: Call, **replaced: torch.Tensor) -> torch.Tensor:
    """The kernel's answer to a call, some of whose inputs are replaced."""
    inputs = {**call.inputs, **replaced}
    dtype = getattr(torch, str(call.scalars["out_dtype"]))
    return STREAMED.gemm(*(inputs[name] for name in TENSORS), out_dtype=dtype)


def drawn(shape: str, M: int, kind: str, device: str = "cpu") -> Call:
    """A call of a named shape with NaN in the padding rows of its scales."""
    (row,) = cases.rows((shape,), (M,), (kind,))
    return cases.with_guard_rows(cases.synthesise(row, 7, device))


def split(packed: int) -> tuple[int, int]:
    """Items a span, and spans that have one more."""
    return packed & 0xFFFFFFFF, packed >> 32


@settings(max_examples=200)
@given(st.integers(1, 16), st.integers(1, STREAMED.MAX_N), st.integers(1, STREAMED.MAX_K // 64))
def test_every_callable_shape_has_a_cut_that_covers_it(M: int, N: int, blocks: int) -> None:
    """Each tile and each step of K belongs to exactly one CTA, and everything fits into shared memory."""
    cut = STREAMED.plan(M, N, blocks * 64)
    tiles, steps = -(-N // 128) * 8, -(-blocks * 64 // 256)
    (tile_each, tile_longer), (step_each, step_longer) = map(split, cut.splits)
    assert tile_each * cut.clusters + tile_longer == tiles
    assert step_each * cut.ranks + step_longer == steps
    assert min(tile_each, step_each) >= 1
    assert cut.shared_bytes <= STREAMED.MAX_SHARED_BYTES


@settings(max_examples=100)
@given(st.integers(1, 16), st.integers(1, STREAMED.MAX_N), st.integers(1, STREAMED.MAX_K // 64))
def test_a_warp_has_a_place_for_every_partial_tile(M: int, N: int, blocks: int) -> None:
    """The slots hold all partial tiles of the busiest warp but its last one."""
    cut = STREAMED.plan(M, N, blocks * 64)
    (tile_each, tile_longer), (step_each, step_longer) = map(split, cut.splits)
    for tiles in {tile_each, tile_each + (tile_longer > 0)}:
        for steps in {step_each, step_each + (step_longer > 0)}:
            each, longer = divmod(tiles * steps, STREAMED.WARPS)
            for warp in range(STREAMED.WARPS):
                begin, size = warp * each + min(warp, longer), each + (warp < longer)
                touched = [u // steps for u in range(begin, begin + size)]
                before_last = len(set(touched)) - 1
                if cut.ranks > 1 and size:
                    assert before_last <= cut.slots


def test_a_device_that_holds_fewer_clusters_gets_another_cut() -> None:
    """The capacity is the device's own: without clusters, K is not shared."""
    assert STREAMED.plan(8, 2560, 9216).ranks == 4
    alone = STREAMED.plan(8, 2560, 9216, {1: 100})
    assert (alone.ranks, alone.clusters) == (1, 100)


@pytest.mark.parametrize("kind", ["fp32", "exact", "any_scale"])
@pytest.mark.parametrize("shape", ["tiny_a", "tiny_c", "tiny_d", "tiny_f"])
@pytest.mark.parametrize("M", [1, 8, 9])
def test_the_twin_is_right(shape: str, M: int, kind: str) -> None:
    """Decoding through FP16 loses nothing: rel-L2 at most 1e-5 in FP32, equal values where all sums are exact."""
    call = drawn(shape, M, kind)
    if call.scalars["out_dtype"] == "float32":
        assert rel_l2(called(call), oracle_fp64(call)["out"]) <= (0.0 if kind == "exact" else 1e-5)
    else:
        assert rel_l2(called(call), oracle_fp64(call)["out"]) <= 2e-3


def test_the_twin_follows_alpha_and_takes_float8_scales() -> None:
    """A negated alpha negates the answer; scales may come as float8_e4m3fn."""
    call = drawn("tiny_a", 4, "fp32")
    other = {name: call.inputs[name].view(torch.float8_e4m3fn) for name in ("x_sf", "weight_sf")}
    expected = called(call)
    assert torch.equal(called(call, alpha=-call.inputs["alpha"]), -expected)
    assert torch.equal(called(call, **other), expected)


@pytest.mark.parametrize(
    ("name", "replacement", "words"),
    [
        ("alpha", torch.ones(1, dtype=torch.bfloat16), "alpha is"),
        ("alpha", torch.ones(()), "alpha is"),
        ("x_fp4", torch.zeros(17, 256, dtype=torch.uint8), r"\(M, N, K\) is \(17, 256, 512\)"),
        ("x_fp4", torch.zeros(4, 12, dtype=torch.uint8), r"\(M, N, K\) is \(4, 256, 24\)"),
        ("x_fp4", torch.zeros(4, 48, dtype=torch.uint8), r"\(M, N, K\) is \(4, 256, 96\)"),
        ("x_sf", torch.zeros(4, 32, dtype=torch.uint8), "x_sf is"),
        ("weight", torch.zeros(256, 256, dtype=torch.uint8), "weight is"),
        ("weight_sf", torch.zeros(32, 256, dtype=torch.uint8), "weight_sf is"),
    ],
    ids=["alpha-bf16", "alpha-0d", "M", "K", "half-atom", "unpadded", "row-major", "scales-row-major"],
)
def test_wrong_operands_are_refused(name: str, replacement: torch.Tensor, words: str) -> None:
    """Lifted out of this project the kernel still says what it cannot take."""
    with pytest.raises(ValueError, match=words):
        called(drawn("tiny_a", 4, "random"), **{name: replacement})


def test_wrong_outputs_and_policies_are_refused() -> None:
    """An output of another dtype or shape, and a policy that does not exist."""
    call = drawn("tiny_a", 4, "random")
    operands = [call.inputs[name] for name in TENSORS]
    with pytest.raises(ValueError, match="out is"):
        STREAMED.gemm(*operands, out=torch.empty(4, 256))
    with pytest.raises(ValueError, match=r"out_dtype is torch\.float16"):
        STREAMED.gemm(*operands, out_dtype=torch.float16)
    with pytest.raises(ValueError, match=r"policies is \("):
        STREAMED.gemm_with_policy(*operands, weight_policy="forever")


def test_policies_change_no_value() -> None:
    """Cache hints are hints."""
    call = drawn("tiny_a", 4, "fp32")
    operands = [call.inputs[name] for name in TENSORS]
    kept = STREAMED.gemm_with_policy(
        *operands, out_dtype=torch.float32, weight_policy="persist", scale_policy="persist"
    )
    assert torch.equal(kept, called(call))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["fp32", "exact", "random", "any_scale"])
@pytest.mark.parametrize("M", [1, 2, 7, 8, 9, 16])
@pytest.mark.parametrize(
    "shape", ["tiny_a", "tiny_b", "tiny_c", "tiny_d", "tiny_f", "4b_down", "27b_down", "9b_gate_up"]
)
def test_the_kernel_is_right_and_repeats_its_bits(shape: str, M: int, kind: str) -> None:
    """On SM90: within the op's limits, every element written, the same bits in every launch."""
    call = drawn(shape, M, kind, "cuda")
    done, expected = called(call), oracle_fp64(call)["out"]
    limit = 0.0 if kind == "exact" else 1e-5 if call.scalars["out_dtype"] == "float32" else 2e-3
    if done.numel() < 1024 and done.dtype is torch.bfloat16:
        # So few elements can lie further away by rounding alone.
        limit = 1.5 * rel_l2(emulate(call)["out"], expected)
    assert rel_l2(done, expected) <= limit
    assert all(torch.equal(called(call), done) for _ in range(20))
