"""The work model against the table of the roofline and hand-computed sectors."""

from __future__ import annotations

import pytest
import torch

from kda_lab.ops.nvfp4_gemm import cases
from kda_lab.ops.nvfp4_gemm.work import traffic_bytes, work
from kda_lab.ops.protocol import Call


def hollow(shape: str, M: int) -> Call:
    """A call of a large layer on the meta device: shapes without memory."""
    K, N = cases.SHAPES[shape]
    inputs = {"x_fp4": torch.empty(M, K // 2, dtype=torch.uint8, device="meta")}
    inputs["weight"] = torch.empty(N, K // 2, dtype=torch.uint8, device="meta").t()
    return Call("nvfp4.gemm", inputs, {}, {"out": torch.empty(M, N, dtype=torch.bfloat16, device="meta")})


@pytest.mark.parametrize(
    ("shape", "one", "nine", "gflop"),
    [
        ("4b_gate_up", 26.601, 26.906, 0.094),
        ("4b_down", 13.354, 13.432, 0.047),
        ("9b_gate_up", 56.707, 57.117, 0.201),
        ("9b_down", 28.424, 28.539, 0.101),
        ("27b_gate_up", 100.383, 100.961, 0.357),
        ("27b_down", 50.293, 50.445, 0.178),
        ("lm_head", 715.7, 719.7, 2.543),
    ],
)
def test_megabytes_and_flops_of_the_published_shapes(shape: str, one: float, nine: float, gflop: float) -> None:
    """Bytes moved and FLOPs agree with the hand-made table, to half of its last digit and the four bytes of alpha."""
    tolerance = 0.06 if shape == "lm_head" else 6e-4
    assert work(hollow(shape, 1)).bytes_moved / 1e6 == pytest.approx(one, abs=tolerance)
    assert work(hollow(shape, 9)).bytes_moved / 1e6 == pytest.approx(nine, abs=tolerance)
    assert work(hollow(shape, 1)).flops / 1e9 == pytest.approx(gflop, abs=5e-4)


def test_each_term_of_a_small_call() -> None:
    """Three tokens, N 16, K 64: every term by hand."""
    done = work(cases.synthesise(cases.rows(["tiny_d"], [3], ["fp32"])[0], 0))
    assert done.bytes_read == 16 * 32 + 16 * 4 + 3 * 32 + 128 * 4 + 4
    assert done.bytes_written == 3 * 16 * 4
    assert done.flops == 2 * 3 * 16 * 64


@pytest.mark.parametrize(("M", "sectors"), [(1, 1), (2, 1), (9, 5), (31, 16), (128, 16), (129, 17)])
def test_sectors_of_the_activation_scales(M: int, sectors: int) -> None:
    """One token touches one sector of an atom, nine touch five, 31 all sixteen, a second atom counts anew."""
    K, N = cases.SHAPES["27b_down"]
    rest = (M + N) * K // 2 + N * K // 16 + 32 + 2 * M * N
    assert traffic_bytes(hollow("27b_down", M)) - rest == sectors * 32 * K // 64


def test_one_token_touches_a_sixteenth_of_its_scales() -> None:
    """K/2 bytes where the container has 8·K, so traffic lies below the bytes of the contract."""
    K = cases.SHAPES["4b_down"][0]
    call = hollow("4b_down", 1)
    assert work(call).bytes_moved - traffic_bytes(call) == 8 * K - K // 2 + 4 - 32
