"""What an NVFP4 kernel must beat: cuBLAS on a BF16 weight, torch and Triton dequantisers, a plain kernel, FlashInfer.

The first arm is the speed baseline: every ratio of a report divides by it. A dequantised operand is exact in BF16,
so all of them compute the same sums as an FP4 tensor core, and differ in the order of summation only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from kda_lab import interpreter, runtime
from kda_lab.dispatch.flashinfer_fp4 import CAPABILITIES
from kda_lab.errors import Reason, UnavailableError
from kda_lab.ops.nvfp4 import e2m1, layouts
from kda_lab.ops.nvfp4_gemm.oracle import BLOCK, geometry
from kda_lab.ops.nvfp4_gemm.spec import SPEC
from kda_lab.ops.protocol import Arm, Call, Launcher

PREPARED_ROWS = 8192
"""Weight rows dequantised at a time, so that preparing needs little memory beside its result."""


def bf16_values(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[R, K] bf16 values of [R, K/2] codes and [R, K/16] linear scale bytes, in torch; exact, safe in graph capture.

    A table of 256 pairs decodes a byte at a time.
    """
    rows, half = packed.shape
    values = torch.nn.functional.embedding(packed.int(), _pairs(packed.device)).view(rows, -1, BLOCK)
    factors = scales.view(torch.float8_e4m3fn).to(torch.bfloat16)
    return (values * factors[:, :, None]).view(rows, 2 * half)


def operands(call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """x and weight of a call as rows, each with its linear scales: ([M, K/2], [M, K/16], [N, K/2], [N, K/16])."""
    M, N, K = geometry(call)
    x_sf = layouts.unswizzle_128x4(call.inputs["x_sf"], M, K // BLOCK)
    weight_sf = layouts.unswizzle_128x4(call.inputs["weight_sf"].t(), N, K // BLOCK)
    return call.inputs["x_fp4"], x_sf, call.inputs["weight"].t(), weight_sf


_pair_tables: dict[torch.device, torch.Tensor] = {}


def _pairs(device: torch.device) -> torch.Tensor:
    """[256, 2] bf16: both values of each byte; made once a device, since graph capture forbids the copy."""
    if device not in _pair_tables:
        byte = torch.arange(256, dtype=torch.int32).to(torch.uint8)[:, None]
        _pair_tables[device] = e2m1.decode(e2m1.unpack(byte)).to(torch.bfloat16).to(device)
    return _pair_tables[device]


def live_product(x: torch.Tensor, weight: torch.Tensor, alpha: torch.Tensor, out: torch.Tensor) -> None:
    """out = alpha · x @ weight.T with FP32 sums and one rounding; alpha is read on the device.

    Args:
        x: [M, K] bf16.
        weight: [N, K] bf16.
        alpha: [1] fp32.
        out: [M, N] bf16 or fp32; written.
    """
    torch.mul(_fp32_product(x, weight), alpha, out=out)


def _fp32_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if x.device.type == "cuda":
        with _full_reductions():
            return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return x.float() @ weight.float().t()


@contextmanager
def _full_reductions() -> Iterator[None]:
    """cuBLAS adds up split-K partial sums in FP32; by torch's default it may round them to BF16."""
    settings = torch.backends.cuda.matmul
    before = settings.allow_bf16_reduced_precision_reduction
    settings.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        settings.allow_bf16_reduced_precision_reduction = before


class HostAlpha:
    """alpha as a host number, as a serving stack has it: a constant of the layer, read when the weight is loaded.

    One cuBLAS kernel then does all of the work. A captured graph holds the number: after alpha itself has changed,
    `prepare` and a new capture are needed.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.value = float(call.inputs["alpha"])

    def multiply(self, x: torch.Tensor, weight: torch.Tensor) -> None:
        """Write alpha · x @ weight.T into the call's output: one cuBLAS kernel for BF16, two for FP32."""
        out = self.call.outputs["out"]
        if out.dtype == torch.bfloat16:
            with _full_reductions():
                torch.addmm(out, x, weight.t(), beta=0, alpha=self.value, out=out)
        else:
            torch.mul(_fp32_product(x, weight), self.value, out=out)


class CublasLauncher(HostAlpha):
    """A matrix product on operands that `prepare` dequantised to BF16 beforehand."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        M, N, K = geometry(call)
        self.x = torch.empty(M, K, dtype=torch.bfloat16, device=call.device)
        self.weight = torch.empty(N, K, dtype=torch.bfloat16, device=call.device)
        self.prepare()

    def prepare(self) -> None:
        """Dequantise again, into the same buffers, and read alpha: after the call's inputs were refilled."""
        self.value = float(self.call.inputs["alpha"])
        x, x_sf, weight, weight_sf = operands(self.call)
        self.x.copy_(bf16_values(x, x_sf))
        for first in range(0, weight.shape[0], PREPARED_ROWS):
            part = slice(first, first + PREPARED_ROWS)
            self.weight[part] = bf16_values(weight[part], weight_sf[part])

    def __call__(self) -> None:
        self.multiply(self.x, self.weight)


class DequantiseLauncher(HostAlpha):
    """Two Triton kernels that write BF16 operands, then cuBLAS: what a stack without FP4 does for prefill."""

    def __init__(self, call: Call, kernels: ModuleType, scratch: tuple[torch.Tensor, torch.Tensor]) -> None:
        super().__init__(call)
        self.kernels = kernels
        self.x, self.weight = scratch

    def prepare(self) -> None:
        """Read alpha, after the call's inputs were refilled."""
        self.value = float(self.call.inputs["alpha"])

    def __call__(self) -> None:
        inputs = self.call.inputs
        self.kernels.dequantise(inputs["x_fp4"], inputs["x_sf"], self.x)
        self.kernels.dequantise(inputs["weight"].t(), inputs["weight_sf"].t(), self.weight)
        self.multiply(self.x, self.weight)


@dataclass(frozen=True)
class BaselineArm:
    """An arm made of a function that binds calls of one geometry."""

    name: str
    make: Callable[[Sequence[Call]], list[Launcher]]
    kernels: str = ""
    """File beside this one with the Triton kernels that the arm runs; empty for torch alone."""
    reads_live_lengths: bool = True
    """Every arm here follows its inputs: those with a `prepare` after it ran."""

    @property
    def source_sha256(self) -> str:
        """SHA-256 of the kernels' file; empty without."""
        if not self.kernels:
            return ""
        return hashlib.sha256(Path(__file__).with_name(self.kernels).read_bytes()).hexdigest()

    def unavailable(self, device: torch.device) -> str:
        """Why the arm cannot run on `device`; empty when it can."""
        if not self.kernels or device.type == "cuda" or runtime.interpreter_on():
            return ""
        return f"unavailable, because {self.name} is a Triton kernel and there is neither a GPU nor the interpreter"

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """One launcher a call; on a CPU the interpreter is mended first."""
        if self.kernels and calls and calls[0].device.type == "cpu":
            interpreter.ensure_faithful()
        return self.make(calls)


def _bind_cublas(calls: Sequence[Call]) -> list[Launcher]:
    return [CublasLauncher(call) for call in calls]


def _bind_dequantise_matmul(calls: Sequence[Call]) -> list[Launcher]:
    def launch(call: Call) -> None:
        x, x_sf, weight, weight_sf = operands(call)
        live_product(bf16_values(x, x_sf), bf16_values(weight, weight_sf), call.inputs["alpha"], call.outputs["out"])

    for call in calls:
        _pairs(call.device)
    return [lambda call=call: launch(call) for call in calls]  # type: ignore[misc]


def _bind_dequantise_cublas(calls: Sequence[Call]) -> list[Launcher]:
    from kda_lab.ops.nvfp4_gemm import plain  # lazy: triton

    if not calls:
        return []
    M, N, K = geometry(calls[0])
    # Launches follow each other on one stream, so that all calls share one scratch, as the layers of a model would.
    x, weight = (torch.empty(rows, K, dtype=torch.bfloat16, device=calls[0].device) for rows in (M, N))
    return [DequantiseLauncher(call, plain, (x, weight)) for call in calls]


def _bind_plain(calls: Sequence[Call]) -> list[Launcher]:
    from kda_lab.ops.nvfp4_gemm import plain  # lazy: triton

    def bound(call: Call) -> Launcher:
        tensors = {name: call.inputs[name] for name in SPEC.tensors}
        return lambda: plain.gemm(**tensors, **call.outputs)

    return [bound(call) for call in calls]


@dataclass(frozen=True)
class FlashInferArm:
    """FlashInfer's `mm_fp4`, its backend chosen by FlashInfer: the incumbent that the source thread beat on SM120."""

    name: str = "flashinfer_mm_fp4"
    source_sha256: str = ""
    reads_live_lengths: bool = True

    def unavailable(self, device: torch.device) -> str:
        """Why `mm_fp4` cannot run on `device`; empty when it can."""
        if device.type != "cuda":
            return f"unavailable, because FlashInfer needs a CUDA device and this one is {device.type}"
        found = runtime.capability(device)
        if found not in CAPABILITIES:
            known = ", ".join(f"{major}.{minor}" for major, minor in CAPABILITIES)
            return f"unavailable, because mm_fp4 has backends for capabilities {known} and this one is {found}"
        return runtime.import_optional("flashinfer").reason

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """One launcher a call.

        Raises:
            UnavailableError: an output is FP32, which `mm_fp4` does not write.
        """
        flashinfer = runtime.import_optional("flashinfer").module
        if any(call.outputs["out"].dtype != torch.bfloat16 for call in calls):
            reason = Reason("out_dtype", "'float32'", "'bfloat16'", "Leave FlashInfer out of rows with FP32 outputs.")
            raise UnavailableError(SPEC.name, [reason])

        def bound(call: Call) -> Launcher:
            tensors, out = [call.inputs[name] for name in SPEC.tensors], call.outputs["out"]
            return lambda: flashinfer.mm_fp4(*tensors, torch.bfloat16, out=out)  # type: ignore[union-attr]

        return [bound(call) for call in calls]


ARMS: tuple[Arm, ...] = (
    BaselineArm("cublas_bf16", _bind_cublas),
    BaselineArm("dequantise_matmul", _bind_dequantise_matmul),
    BaselineArm("dequantise_cublas", _bind_dequantise_cublas, kernels="plain.py"),
    BaselineArm("plain_triton", _bind_plain, kernels="plain.py"),
    FlashInferArm(),
)
