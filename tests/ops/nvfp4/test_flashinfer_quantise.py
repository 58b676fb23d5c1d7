"""FlashInfer's quantiser: refused where it would return uninitialised memory, thin where it runs."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest
import torch

from kda_lab import runtime
from kda_lab.errors import ParameterError, UnavailableError
from kda_lab.ops.nvfp4 import flashinfer_quantise, quantise
from kda_lab.ops.nvfp4.containers import prepare_activation
from kda_lab.ops.nvfp4.layouts import unswizzle_128x4

X = torch.ones(3, 64, dtype=torch.bfloat16)
G = torch.ones(1)


def pretend(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None, module: object = None) -> None:
    """A device of this capability, and a FlashInfer that is `module`."""
    found = runtime.OptionalModule("flashinfer", module, "" if module else "unavailable, because it is not installed")  # type: ignore[arg-type]
    monkeypatch.setattr(runtime, "capability", lambda device: capability)
    monkeypatch.setattr(runtime, "import_optional", lambda name: found)


def forbidden(*arguments: object, **options: object) -> None:
    """A quantiser that must not be reached."""
    raise AssertionError("fp4_quantize was called")


@pytest.mark.parametrize("capability", [(8, 9), (9, 0)], ids=["sm89", "sm90"])
def test_a_gpu_below_sm100_is_refused(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    """Where the kernel would be empty it is not called, and the text says what would have come back."""
    pretend(monkeypatch, capability, SimpleNamespace(fp4_quantize=forbidden))
    words = (
        rf"capability {capability[0]}\.{capability[1]} fp4_quantize launches an empty kernel and returns uninitialised"
    )
    with pytest.raises(UnavailableError, match=words):
        flashinfer_quantise.quantise(X, G)


def test_a_cpu_tensor_is_refused() -> None:
    """Without a CUDA device the reason names the device."""
    with pytest.raises(
        UnavailableError, match=r"unavailable, because cpu is no CUDA device\. Use nvfp4\.quantise_triton"
    ):
        flashinfer_quantise.quantise(X, G)


@pytest.mark.parametrize("capability", [(10, 0), (12, 0), (12, 1)], ids=["sm100", "sm120", "sm121"])
def test_from_sm100_on_it_is_called(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    """The call asks for blocks of 16 and the 128x4 swizzle, and its flat scales become the container."""
    asked = {}

    def fp4_quantize(x: torch.Tensor, scale: torch.Tensor, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
        asked.update(options, scale=scale)
        found = quantise.quantise(x, scale, "fast")
        return tuple(
            part.flatten() if part.shape[0] == 128 else part for part in prepare_activation(found.packed, found.scales)
        )  # type: ignore[return-value]

    module = ModuleType("flashinfer")
    module.fp4_quantize = fp4_quantize  # type: ignore[attr-defined]
    pretend(monkeypatch, capability, module)
    assert flashinfer_quantise.why_not("cuda") == ""
    found = flashinfer_quantise.quantise(X, G)
    assert asked == {"sf_vec_size": 16, "is_sf_swizzled_layout": True, "scale": G}
    assert found.x_sf.shape == (128, 4)
    b = quantise.Quantised(found.x_fp4, unswizzle_128x4(found.x_sf, 3, 4))
    assert quantise.agreement(quantise.quantise(X, G), b).holds


def test_a_missing_installation_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a capable device the import's own reason is handed on."""
    pretend(monkeypatch, (12, 0))
    assert flashinfer_quantise.why_not("cuda") == "unavailable, because it is not installed"
    with pytest.raises(UnavailableError, match=r"flashinfer fp4_quantize is unavailable, because it is not installed"):
        flashinfer_quantise.quantise(X, G)


@pytest.mark.parametrize("x", [X.float(), X[:, :24], X.t(), X[0]], ids=["fp32", "width", "strides", "rank"])
def test_inputs_outside_its_range_are_refused(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor) -> None:
    """Another dtype, width, stride or rank does not reach the library."""
    pretend(monkeypatch, (12, 0), SimpleNamespace(fp4_quantize=forbidden))
    with pytest.raises(
        ParameterError, match=r"x is .*; allowed: \[M, K\] torch\.bfloat16 or torch\.float16, contiguous"
    ):
        flashinfer_quantise.quantise(x, G)


def test_a_bf16_global_scale_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would read the bits of a BF16 scale as FP32."""
    pretend(monkeypatch, (12, 0), SimpleNamespace(fp4_quantize=forbidden))
    with pytest.raises(ParameterError, match=r"global_scale is .*; allowed: one torch\.float32 element"):
        flashinfer_quantise.quantise(X, G.to(torch.bfloat16))
