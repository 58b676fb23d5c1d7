"""The NVFP4 door: what it passes on, which kernel or fallback serves a call, and how bad input is refused."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kda_lab import nvfp4
from kda_lab.contracts.facts import CallFacts, call_facts
from kda_lab.contracts.model import Contract
from kda_lab.dispatch.dispatcher import Dispatcher
from kda_lab.dispatch.fallback import FallbackFunction
from kda_lab.dispatch.flashinfer_fp4 import MM_FP4
from kda_lab.errors import ContractError, ParameterError
from kda_lab.ops.nvfp4_gemm.spec import SPEC
from kda_lab.ops.protocol import OpSpec

STREAMED, PORTABLE = "nvfp4_gemm_streamed", "nvfp4_gemm_portable"
SOURCE = """def gemm(x_fp4, weight, x_sf, weight_sf, alpha, *, out_dtype, out):
    return NAME, out_dtype, out
"""
CODES = {"dtypes": ["uint8"], "alignment_bytes": 16}
SCALES = {"dtypes": ["uint8", "float8_e4m3fn"], "alignment_bytes": 16}
CALLABLE = {
    STREAMED: {"M": {"minimum": 1, "maximum": 16}, "N": 16, "K": 64},
    PORTABLE: {"M": {"minimum": 1, "maximum": 2**20}, "N": 1, "K": 16},
}
COMPILED = [{"capability": [12, minor], "status": "compiled"} for minor in (0, 1)]


def contract(kernel: str) -> dict[str, Any]:
    """The contract of one of the op's two kernels, qualified on SM90; the portable one is never dispatched."""
    axes = {
        name: value if isinstance(value, dict) else {"minimum": value, "maximum": 2**20, "multiple_of": value}
        for name, value in CALLABLE[kernel].items()
    }
    source = SOURCE.replace("NAME", repr(kernel)).encode()
    digest = hashlib.sha256(source).hexdigest()
    evidence = {"path": f"reports/evidence/{kernel}/v1/sm90.json", "sha256": "0" * 64}
    return {
        "contract_version": 1,
        "version": 1,
        "op": "nvfp4.gemm",
        "kernel": kernel,
        "entry": "gemm",
        "language": "triton",
        "license": "Apache-2.0",
        "author": "tests",
        "task": "tests",
        "tensors": {
            "x_fp4": {**CODES, "shape": ["M", "K/2"]},
            "weight": {**CODES, "shape": ["K/2", "N"], "transposed": True},
            "x_sf": {**SCALES, "shape": ["ceil128(M)", "ceil4(K/16)"]},
            "weight_sf": {**SCALES, "shape": ["ceil4(K/16)", "ceil128(N)"], "transposed": True},
            "alpha": {"dtypes": ["float32"], "shape": [1]},
            "out": {"dtypes": ["bfloat16", "float32"], "shape": ["M", "N"], "optional": True},
        },
        "scalars": {"out_dtype": {"kind": "dtype", "allowed": ["bfloat16", "float32"]}},
        "callable": [{"axes": axes}],
        "dispatched": [{"axes": axes}] if kernel == STREAMED else [],
        "fallback": {"kind": "raise"} if kernel in SPEC.fallback else {"kind": "chain", "chain": list(SPEC.fallback)},
        "state": {"scratch_bytes": 0, "concurrency": "any", "reset": "none"},
        "kernels_per_call": 1,
        "compile_units": [],
        "sources": [{"path": "kernel.py", "sha256": digest, "language": "triton", "license": "Apache-2.0"}],
        "provenance": {"task": "tests", "author": "tests", "commit": "none", "run": "none", "kda_lab": "0"},
        "architectures": [{"capability": [9, 0], "status": "qualified", "evidence": evidence}, *COMPILED],
        "tolerances": [],
        "gate_power": {"killed": 0, "total": 0, "mutants": []},
        "benchmarks": [],
        "headline": [],
    }


class FakeGpu:
    """Reads the facts of CPU tensors as if they were on a GPU; tensors on the meta device stay off it."""

    capability: tuple[int, int] = (9, 0)

    def __call__(
        self, spec: OpSpec, tensors: Mapping[str, Any], scalars: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> CallFacts:
        facts = call_facts(spec, tensors, scalars, outputs)
        moved = {
            name: t if t.device_type == "meta" else replace(t, device_type="cuda", device_index=0)
            for name, t in facts.tensors.items()
        }
        return CallFacts(moved, facts.scalars, self.capability, facts.foreign)


@pytest.fixture
def gpu() -> FakeGpu:
    """A faked SM90 GPU; set `.capability` for another one."""
    return FakeGpu()


@pytest.fixture
def dispatcher(tmp_path: Path, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Dispatcher:
    """Both kernels of the op, and a FlashInfer that says its name where the real one would run."""
    for kernel in (STREAMED, PORTABLE):
        folder = tmp_path / kernel
        folder.mkdir()
        (folder / "kernel.py").write_text(SOURCE.replace("NAME", repr(kernel)))
        (folder / "contract.json").write_text(json.dumps(contract(kernel)))
    for name in ("KDA_LAB_KERNEL", "KDA_LAB_DISPATCH", "KDA_LAB_ALLOW_COMPILED"):
        monkeypatch.delenv(name, raising=False)
    # FlashInfer counts as installed, whatever this machine has.
    monkeypatch.setattr("kda_lab.dispatch.flashinfer_fp4.importlib.util.find_spec", lambda name: name)
    library = FallbackFunction(
        MM_FP4.name, lambda *a, out_dtype, out: ("flashinfer", out_dtype, out), MM_FP4.unavailable
    )
    made = Dispatcher(tmp_path, [library], gpu)
    monkeypatch.setattr(nvfp4, "DISPATCHER", made)
    return made


def transposed(rows: int, columns: int) -> torch.Tensor:
    """[rows, columns] uint8 with strides (1, rows)."""
    return torch.zeros(columns, rows, dtype=torch.uint8).t()


def arguments(m: int = 8, n: int = 48, k: int = 128) -> dict[str, Any]:
    """A call on the CPU by the names of the op."""
    scales = -(-k // 64) * 4
    return {
        "x_fp4": torch.zeros(m, k // 2, dtype=torch.uint8),
        "weight": transposed(k // 2, n),
        "x_sf": torch.zeros(-(-m // 128) * 128, scales, dtype=torch.uint8),
        "weight_sf": transposed(scales, -(-n // 128) * 128),
        "alpha": torch.ones(1),
    }


def served_by(**changes: Any) -> str:
    """Name of what serves the default call with some arguments replaced."""
    name: str = nvfp4.gemm(**{**arguments(), **changes})[0]  # type: ignore[assignment]
    return name


def test_contracts_of_the_tests_are_contracts() -> None:
    """Both hand-made contracts validate, and their tensors and scalars are those of the op's specification."""
    for kernel in (STREAMED, PORTABLE):
        made = Contract.model_validate(contract(kernel))
        assert tuple(made.tensors) == (*SPEC.tensors, *SPEC.outputs)
        assert tuple(made.scalars) == SPEC.scalars


def test_signature_is_that_of_the_op() -> None:
    """Positional tensors and keyword-only scalars and outputs are those of the op's specification, plus `kernel`."""
    for door in (nvfp4.gemm, nvfp4.explain_gemm):
        parameters = inspect.signature(door).parameters.values()
        assert tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD) == SPEC.tensors
        assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == {*SPEC.scalars, *SPEC.outputs, "kernel"}


def test_docstring_has_every_heading_in_order() -> None:
    """The door's docstring has the fixed headings, none left out."""
    headings = re.findall(r"^    ([A-Z][a-z]+):", nvfp4.gemm.__doc__ or "", re.MULTILINE)
    assert headings == ["Axes", "Args", "Returns", "Raises", "Numerics", "Work", "Launch", "Source"]


def test_door_passes_every_argument_on(dispatcher: Dispatcher) -> None:
    """The kernel gets the dtype and the very output buffer; bfloat16 is the default."""
    out = torch.zeros(8, 48)
    name, dtype, given = nvfp4.gemm(**arguments(), out_dtype=torch.float32, out=out)
    assert (name, dtype) == (STREAMED, torch.float32)
    assert given is out  # type: ignore[comparison-overlap]
    assert nvfp4.gemm(**arguments())[1:] == (torch.bfloat16, None)


@pytest.mark.parametrize(
    ("capability", "shape", "name"),
    [
        ((9, 0), (1, 48, 128), STREAMED),
        ((9, 0), (16, 48, 128), STREAMED),
        ((9, 0), (17, 48, 128), PORTABLE),
        ((9, 0), (8, 40, 128), PORTABLE),
        ((9, 0), (8, 48, 80), PORTABLE),
        ((10, 0), (8, 64, 128), "flashinfer"),
        ((12, 0), (8, 64, 128), "flashinfer"),
        ((12, 1), (300, 64, 128), "flashinfer"),
    ],
    ids=str,
)
def test_a_call_is_served_by_the_first_that_may(
    capability: tuple[int, int], shape: tuple[int, int, int], name: str, dispatcher: Dispatcher, gpu: FakeGpu
) -> None:
    """Small batches get the streamed kernel on SM90, other shapes the portable one, Blackwell gets FlashInfer."""
    gpu.capability = capability
    assert served_by(**arguments(*shape)) == name


@pytest.mark.parametrize("capability", [(12, 0), (12, 1)])
def test_a_compiled_architecture_is_served_with_the_opt_in(
    capability: tuple[int, int], dispatcher: Dispatcher, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP32 output, which FlashInfer has not, raises on SM12x until compiled kernels are allowed."""
    gpu.capability = capability
    fp32 = {**arguments(40), "out_dtype": torch.float32}
    with pytest.raises(ContractError, match=rf"out_dtype is torch\.float32; .*\(fallback {MM_FP4.name}\)") as caught:
        nvfp4.gemm(**fp32)
    assert f"(kernel {STREAMED}; fallback {PORTABLE})" in str(caught.value)
    monkeypatch.setenv("KDA_LAB_ALLOW_COMPILED", "1")
    assert served_by(**fp32) == PORTABLE
    assert served_by(**arguments(4)) == STREAMED


def test_without_flashinfer_its_architectures_are_refused(
    dispatcher: Dispatcher, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where neither kernel is qualified and FlashInfer is not installed, each says why."""
    gpu.capability = (10, 0)
    monkeypatch.setattr("kda_lab.dispatch.flashinfer_fp4.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ContractError) as caught:
        nvfp4.gemm(**arguments())
    text = str(caught.value)
    assert text.startswith("nvfp4.gemm: unsupported NVFP4 GEMM call: device.capability is 10.0; allowed: exactly 9.0.")
    assert (
        f"flashinfer is not installed; allowed: FlashInfer 0.6.18. Install flashinfer-python. (fallback {MM_FP4.name})"
        in text
    )


def test_dispatch_off_leaves_the_chain(dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """With specialised kernels switched off the portable one still serves, and is counted as a fallback."""
    monkeypatch.setenv("KDA_LAB_DISPATCH", "off")
    assert served_by() == PORTABLE
    assert nvfp4.statistics().fallbacks == {f"nvfp4.gemm: {PORTABLE}": 1}


BAD: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "x-dtype": (
        lambda: {"x_fp4": torch.zeros(8, 64, dtype=torch.int8)},
        r"x_fp4\.dtype is torch\.int8; allowed: torch\.uint8",
    ),
    "x-slice": (
        lambda: {"x_fp4": torch.zeros(8, 128, dtype=torch.uint8)[:, :64]},
        r"x_fp4\.strides is \(128, 1\); allowed: contiguous strides for \(8, 64\)",
    ),
    "x-3d": (
        lambda: {"x_fp4": torch.zeros(1, 8, 64, dtype=torch.uint8)},
        r"x_fp4\.shape is \(1, 8, 64\); allowed: 2 dim",
    ),
    "x-none": (lambda: {"x_fp4": None}, r"x_fp4 is None; allowed: a torch\.Tensor"),
    "x-list": (lambda: {"x_fp4": [1]}, r"x_fp4 is a list; allowed: a strided torch\.Tensor"),
    "x-misaligned": (
        lambda: {"x_fp4": torch.zeros(8 * 64 + 8, dtype=torch.uint8)[8:].view(8, 64)},
        r"x_fp4\.alignment is 8 bytes; allowed: a multiple of 16 bytes",
    ),
    "weight-row-major": (
        lambda: {"weight": torch.zeros(64, 48, dtype=torch.uint8)},
        r"weight\.strides is \(48, 1\); allowed: \(1, 64\), the transposed view of a contiguous tensor",
    ),
    "weight-not-transposed": (
        lambda: {"weight": torch.zeros(48, 64, dtype=torch.uint8)},
        r"weight\.shape\[0\] is 48; allowed: 64, which is K/2 with K=128 from x_fp4\.shape\[1\]",
    ),
    "weight-slice": (
        lambda: {"weight": torch.zeros(48, 128, dtype=torch.uint8)[:, :64].t()},
        r"weight\.strides is \(1, 128\); allowed: \(1, 64\)",
    ),
    "weight-other-k": (
        lambda: {"weight": transposed(32, 48)},
        r"weight\.shape\[0\] is 32; allowed: 64, which is K/2 with K=128",
    ),
    "weight-device": (
        lambda: {"weight": torch.zeros(48, 64, dtype=torch.uint8, device="meta").t()},
        r"weight\.device is 'meta'; allowed: a cuda device",
    ),
    "x-scales-unpadded": (
        lambda: {"x_sf": torch.zeros(8, 8, dtype=torch.uint8)},
        r"x_sf\.shape\[0\] is 8; allowed: 128, which is ceil128\(M\) with M=8 from x_fp4\.shape\[0\]",
    ),
    "x-scales-flat": (
        lambda: {"x_sf": torch.zeros(1024, dtype=torch.uint8)},
        r"x_sf\.shape is \(1024,\); allowed: 2 dim",
    ),
    "x-scales-e5m2": (
        lambda: {"x_sf": torch.zeros(128, 8, dtype=torch.float8_e5m2)},
        r"x_sf\.dtype is torch\.float8_e5m2; allowed: torch\.uint8, torch\.float8_e4m3fn",
    ),
    "weight-scales-unpadded": (
        lambda: {"weight_sf": transposed(8, 48)},
        r"weight_sf\.shape\[1\] is 48; allowed: 128, which is ceil128\(N\) with N=48 from weight\.shape\[1\]",
    ),
    "weight-scales-row-major": (
        lambda: {"weight_sf": torch.zeros(8, 128, dtype=torch.uint8)},
        r"weight_sf\.strides is \(128, 1\); allowed: \(1, 8\)",
    ),
    "alpha-bf16": (
        lambda: {"alpha": torch.ones(1, dtype=torch.bfloat16)},
        r"alpha\.dtype is torch\.bfloat16; allowed: torch\.float32",
    ),
    "alpha-0d": (lambda: {"alpha": torch.ones(())}, r"alpha\.shape is \(\); allowed: 1 dimensions \[1\]"),
    "alpha-two": (lambda: {"alpha": torch.ones(2)}, r"alpha\.shape\[0\] is 2; allowed: 1\."),
    "alpha-float": (lambda: {"alpha": 1.0}, r"alpha is a float; allowed: a strided torch\.Tensor"),
    "no-rows": (lambda: arguments(0), r"x_fp4\.shape\[0\] \(M\) is 0; allowed: 1\.\.16"),
    "k-odd-groups": (lambda: arguments(k=72), r"\(K, from K/2\) is 72; allowed: 16\.\.1048576 \(multiples of 16\)"),
    "out-dtype-fp16": (
        lambda: {"out_dtype": torch.float16},
        r"out_dtype is torch\.float16; allowed: torch\.bfloat16, torch\.float32",
    ),
    "out-dtype-name": (lambda: {"out_dtype": "bfloat16"}, r"out_dtype is 'bfloat16'; allowed: torch\.bfloat16"),
    "out-dtype-none": (lambda: {"out_dtype": None}, r"out_dtype is None; allowed: torch\.bfloat16"),
    "out-shape": (
        lambda: {"out": torch.zeros(9, 48, dtype=torch.bfloat16)},
        r"out\.shape\[0\] is 9; allowed: 8, which is M with M=8",
    ),
    "out-transposed": (
        lambda: {"out": torch.zeros(48, 8, dtype=torch.bfloat16).t()},
        r"out\.strides is \(1, 8\); allowed: contiguous",
    ),
    "out-other-dtype": (
        lambda: {"out": torch.zeros(8, 48)},
        r"call: out\.dtype is torch\.float32; allowed: torch\.bfloat16, which is out_dtype\. Pass out_dtype=out\.dtype",
    ),
    "out-fp16": (
        lambda: {"out": torch.zeros(8, 48, dtype=torch.float16)},
        r"out\.dtype is torch\.float16; allowed: torch\.bfloat16, which is out_dtype",
    ),
    "out-number": (lambda: {"out": 1}, r"out is a int; allowed: a strided torch\.Tensor"),
}


@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (12, 0), (12, 1)], ids=str)
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_everyone(
    case: str, capability: tuple[int, int], dispatcher: Dispatcher, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No kernel and no fallback takes a wrong call on any architecture, and the wrong field is named."""
    change, words = BAD[case]
    gpu.capability = capability
    monkeypatch.setenv("KDA_LAB_ALLOW_COMPILED", "1")
    with pytest.raises(ContractError, match=words) as caught:
        nvfp4.gemm(**{**arguments(), **change()})
    assert str(caught.value).startswith("nvfp4.gemm: unsupported NVFP4 GEMM call: ")


def test_scales_may_be_bytes_or_e4m3(dispatcher: Dispatcher) -> None:
    """Both dtypes of a scale container are served, and each selection is cached on its own."""
    as_bytes = arguments()
    as_e4m3 = {**as_bytes, "x_sf": as_bytes["x_sf"].view(torch.float8_e4m3fn)}
    assert [served_by(**as_bytes), served_by(**as_e4m3), served_by(**as_e4m3)] == [STREAMED] * 3
    assert nvfp4.statistics().cached == 2


def test_an_unknown_kernel_is_refused(dispatcher: Dispatcher) -> None:
    """A forced name that is not exported lists those that are; the portable one can be forced."""
    with pytest.raises(ParameterError, match=f"kernel is 'nowhere'; allowed: '{PORTABLE}', '{STREAMED}'"):
        nvfp4.gemm(**arguments(), kernel="nowhere")
    assert served_by(kernel=PORTABLE) == PORTABLE


def test_a_forced_kernel_is_not_replaced(dispatcher: Dispatcher) -> None:
    """The streamed kernel forced beyond its rows raises, though the portable one could serve."""
    with pytest.raises(ContractError, match=r"x_fp4\.shape\[0\] \(M\) is 17; allowed: 1\.\.16"):
        nvfp4.gemm(**arguments(17), kernel=STREAMED)


def test_the_log_says_once_which_path_is_taken_and_why(
    dispatcher: Dispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for the fast path and one for the fallback, with its reasons, however many calls there are."""
    with caplog.at_level(logging.INFO, logger="kda_lab.dispatch"):
        for m in (8, 8, 32, 64, 32):
            nvfp4.gemm(**arguments(m))
    fast, slow = [record.getMessage() for record in caplog.records]
    assert fast == f"nvfp4.gemm: dispatched to kernel {STREAMED}"
    assert slow.startswith(
        f"nvfp4.gemm: fallback {PORTABLE} runs, because nvfp4.gemm: x_fp4.shape[0] (M) is 32; allowed: 1..16."
    )
    assert "device.capability is 9.0; allowed: exactly 10.0, 10.3, 10.7, 11.0, 12.0, 12.1. FlashInfer" in slow
    assert nvfp4.statistics().fallbacks == {f"nvfp4.gemm: {PORTABLE}": 3}


def test_explain_shows_the_whole_decision(dispatcher: Dispatcher) -> None:
    """The kernel's answer and each fallback's are printed; nothing is counted."""
    lines = str(nvfp4.explain_gemm(**arguments(32))).splitlines()
    assert lines[0] == f"nvfp4.gemm: fallback {PORTABLE}"
    assert [line for line in lines if not line.startswith("    ")][1:] == [
        f"  {STREAMED} version 1 rejects (dispatched shapes)",
        f"  fallback {MM_FP4.name} rejects",
        f"  fallback {PORTABLE} accepts (callable shapes)",
    ]
    lines = str(nvfp4.explain_gemm(**arguments())).splitlines()
    assert lines[-1] == f"  fallback {MM_FP4.name}, {PORTABLE}: not asked"
    assert nvfp4.statistics().misses == {}


def test_statistics_are_reset_and_kernels_prepared(dispatcher: Dispatcher) -> None:
    """Both kernels are imported ahead of a capture, and counts start anew."""
    assert nvfp4.prepare() == (PORTABLE, STREAMED)
    served_by()
    assert nvfp4.statistics().hits == {f"nvfp4.gemm: {STREAMED}": 1}
    nvfp4.reset_statistics()
    assert nvfp4.statistics().hits == {}


def test_alpha_is_never_read(dispatcher: Dispatcher) -> None:
    """A call whose tensors have no memory to read is decided all the same."""
    meta = {name: tensor.to("meta") for name, tensor in arguments().items()}
    text = str(nvfp4.explain_gemm(**meta))
    assert "alpha.device is 'meta'; allowed: a cuda device" in text


def test_the_shared_dispatcher_has_the_ops_function() -> None:
    """The dispatcher of the process knows FlashInfer's function by the name that the op writes."""
    explanation = nvfp4.explain_gemm(**arguments())
    assert [v.kind for v in explanation.choice.chain if v.name == MM_FP4.name] == ["function"]


def test_no_output_dtype_is_refused_by_the_contract(dispatcher: Dispatcher) -> None:
    """None for the dtype is a refusal of every kernel and fallback, also outside the dispatched shapes."""
    for rows in (8, 32):
        with pytest.raises(ContractError, match=r"out_dtype is None; allowed: torch\.bfloat16"):
            nvfp4.gemm(**arguments(m=rows), out_dtype=None)  # type: ignore[arg-type]
