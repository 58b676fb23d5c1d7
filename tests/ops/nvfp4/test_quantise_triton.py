"""The Triton quantiser: bit-identical to the canonical one, padding included, on whatever runs here."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from kda_lab import runtime
from kda_lab.contracts.model import CompileUnit
from kda_lab.errors import ParameterError, UnavailableError
from kda_lab.export.compile_gate import compile_unit
from kda_lab.ops.nvfp4 import containers, layouts, quantise, quantise_triton

DEVICE = runtime.default_device()
SHAPES = [(1, 64), (9, 576), (129, 80), (3, 16)]


def awkward_rows(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Blocks from 2^-12 to 2^11 with signed zeros, one zero block, a NaN, an infinity and a block of NaN."""
    generator = torch.Generator().manual_seed(rows * 100 + width)
    size = torch.exp2(torch.randint(-12, 12, (rows, width // 16, 1), generator=generator).float())
    x = (torch.randn(rows, width // 16, 16, generator=generator) * size).flatten(1)
    x[0, 0], x[0, 1] = -0.0, math.nan
    if width > 48:
        x[0, 16:32], x[0, 32], x[-1, -16:] = 0.0, -math.inf, math.nan
    return x.to(dtype)


def require_identical(x: torch.Tensor, g: torch.Tensor, order: quantise.Order) -> None:
    """Compare every byte of both outputs with the canonical quantiser's."""
    found = quantise_triton.quantise(x.to(DEVICE), g.to(DEVICE), order)
    canonical = quantise.quantise(x, g, order)
    expected = containers.prepare_activation(canonical.packed, canonical.scales)
    assert found.x_fp4.shape == expected.x_fp4.shape and found.x_sf.shape == expected.x_sf.shape
    assert torch.equal(found.x_sf.cpu(), expected.x_sf)
    assert torch.equal(found.x_fp4.cpu(), expected.x_fp4)


@pytest.fixture(autouse=True)
def dirty_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.empty` hands out bytes 0x7F, so that a padding byte that nobody wrote shows as a NaN scale."""
    empty = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *a, **k: t.fill_(0x7F) if (t := empty(*a, **k)).dtype == torch.uint8 else t
    )


@pytest.mark.parametrize("order", quantise.ORDERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_every_byte_is_the_canonical_one(rows: int, width: int, dtype: torch.dtype, order: quantise.Order) -> None:
    """Masked tails, padding and edge cases included, codes and scales are those of the canonical quantiser."""
    x = awkward_rows(rows, width, dtype)
    for g in (0.37, 3e5):
        require_identical(x, torch.tensor([g]), order)


@pytest.mark.parametrize("order", quantise.ORDERS)
def test_every_bf16_scale_and_value_rounds_alike(order: quantise.Order) -> None:
    """Block maxima over all positive BF16 numbers from 2^-16 to 2^14, each with a ramp below it, round alike."""
    bits = torch.arange((127 - 16) << 7, (127 + 14) << 7, dtype=torch.int16)
    amax = bits.view(torch.bfloat16).float()
    ramp = torch.linspace(-1, 1, 16)
    x = (amax[:, None] * ramp[None, :]).to(torch.bfloat16).view(-1, 256)
    require_identical(x, torch.tensor([1.0]), order)


def test_padding_is_zero() -> None:
    """Rows behind M and columns behind K / 16 are zero bytes in a container that held NaN bytes."""
    x_sf = quantise_triton.quantise(
        torch.ones(5, 80, dtype=torch.bfloat16, device=DEVICE), torch.ones(1, device=DEVICE)
    ).x_sf
    assert x_sf.shape == (128, 8) and layouts.padding_is_clean(x_sf, 5, 5)
    assert int((x_sf != 0).sum()) == 25


def test_no_rows_launch_nothing() -> None:
    """M = 0 gives empty operands."""
    found = quantise_triton.quantise(
        torch.zeros(0, 64, dtype=torch.bfloat16, device=DEVICE), torch.ones(1, device=DEVICE)
    )
    assert found.x_fp4.shape == (0, 32) and found.x_sf.shape == (0, 4)


@pytest.mark.parametrize(
    ("capability", "fast"), [((9, 0), False), ((9, 0), True), ((12, 0), False)], ids=["sm90", "sm90-fast", "sm120"]
)
def test_it_compiles_without_a_gpu(tmp_path: Path, capability: tuple[int, int], fast: bool) -> None:
    """The kernel compiles for SM90 and SM120 without spilling, its divisions are IEEE ones, nothing flushes to zero."""
    unit = CompileUnit(
        function="_quantise_kernel",
        signature={
            "p_x": "*bf16",
            "p_global_scale": "*fp32",
            "p_packed": "*u8",
            "p_scales": "*u8",
            "M": "i32",
            "K": "i32",
        },
        constants={"FAST": fast, "BLOCK_M": quantise_triton.BLOCK_M, "BLOCK_K": quantise_triton.BLOCK_K},
        divisible_by_16=("p_x", "p_packed", "p_scales", "K"),
        num_warps=quantise_triton.NUM_WARPS,
    )
    found = compile_unit(Path(quantise_triton.__file__), unit, capability, tmp_path / "cache")
    assert found.spill_bytes == 0
    ptx = next((tmp_path / "cache").rglob("*.ptx")).read_text()
    assert "div.rn.f32" in ptx
    assert not any(word in ptx for word in ("div.full", "div.approx", "rcp.approx", "fma.rn.f32", "ftz"))


def test_inputs_outside_the_format_are_refused() -> None:
    """Dtype, width, strides, scale and order are refused together, each with what to do."""
    x = torch.zeros(4, 64, dtype=torch.bfloat16)
    with pytest.raises(
        ParameterError, match=r"x\.dtype is torch\.float32; .*global_scale is .*order is 'slow'"
    ) as caught:
        quantise_triton.quantise(x.float(), torch.ones(1, dtype=torch.bfloat16), "slow")  # type: ignore[arg-type]
    assert len(caught.value.reasons) == 3
    for wrong in (x[:, :24], x.t()[:32].t(), x[0]):
        with pytest.raises(ParameterError, match=r"x\.shape is .*; allowed: \[M, K\] contiguous .*call \.contiguous"):
            quantise_triton.quantise(wrong, torch.ones(1))
    with pytest.raises(ParameterError, match=r"global_scale is '\(2,\) .*; allowed: one torch\.float32 element on cpu"):
        quantise_triton.quantise(x, torch.ones(2))


def test_a_cpu_tensor_needs_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the interpreter a CPU tensor is refused with the quantiser that would take it."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(UnavailableError, match=r"x is on cpu and Triton's interpreter is off\. Use nvfp4\.quantise"):
        quantise_triton.quantise(torch.zeros(1, 64, dtype=torch.bfloat16), torch.ones(1))


@pytest.mark.gpu
@pytest.mark.parametrize("order", quantise.ORDERS)
@pytest.mark.parametrize(("rows", "width"), [(1, 5120), (9, 17408), (300, 2560)])
def test_model_widths_on_a_gpu(rows: int, width: int, order: quantise.Order) -> None:
    """At the widths of real layers the GPU writes the canonical bytes, with a calibrated scale."""
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    require_identical(x, quantise.global_scale_of(x), order)


@pytest.mark.gpu
def test_a_graph_replays_with_new_contents() -> None:
    """A captured launch quantises what x and the global scale hold at replay."""
    x, g = torch.randn(9, 576, device="cuda").to(torch.bfloat16), torch.ones(1, device="cuda")
    quantise_triton.quantise(x, g)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = quantise_triton.quantise(x, g)
    x.mul_(3.0)
    g.fill_(7.0)
    graph.replay()
    canonical = quantise.quantise(x, g)
    assert torch.equal(found.x_fp4, canonical.packed)
    assert torch.equal(found.x_sf, layouts.swizzle_128x4(canonical.scales))
