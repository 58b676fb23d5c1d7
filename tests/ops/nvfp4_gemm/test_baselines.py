"""Baselines: what must be beaten is right first, follows its inputs, and says why it cannot run where it cannot."""

from __future__ import annotations

import pytest
import torch

from kda_lab import runtime
from kda_lab.errors import UnavailableError
from kda_lab.ops.nvfp4 import quantise
from kda_lab.ops.nvfp4_gemm import baselines, cases, gates, oracle
from kda_lab.ops.protocol import Arm, Call, preparation_of
from kda_lab.ops.registry import load_op
from kda_lab.verify.metrics import rel_l2, row_max

NAMES = ["cublas_bf16", "dequantise_matmul", "dequantise_cublas", "plain_triton", "flashinfer_mm_fp4"]
RUN_ON_CPU = baselines.ARMS[:4]
PREPARED = {"cublas_bf16", "dequantise_cublas"}


def one(label: str, device: str = "cpu") -> Call:
    shape, batch, kind = label.split("-")
    call = cases.synthesise(cases.rows([shape], [int(batch[1:])], [kind])[0], 4, device)
    return cases.with_guard_rows(call)


def require_right(call: Call) -> None:
    exact, rounded, out = oracle.oracle_fp64(call)["out"], oracle.emulate(call)["out"], call.outputs["out"]
    limits = gates.limits("synthetic", rel_l2(rounded, exact), row_max(rounded, exact))
    reference = oracle.oracle_fp32(call)["out"]
    assert rel_l2(out, reference) <= limits.error
    assert row_max(out, reference) <= limits.row_max


def test_the_first_arm_is_the_speed_baseline() -> None:
    """Order and names of the arms, which reports and notebooks rely on."""
    assert [arm.name for arm in load_op("nvfp4.gemm").baselines.ARMS] == NAMES


@pytest.mark.parametrize("arm", RUN_ON_CPU, ids=lambda a: a.name)
@pytest.mark.parametrize(
    "label", ["tiny_a-M9-random", "tiny_c-M1-fp32", "tiny_d-M5-exact", "tiny_e-M2-any_scale", "tiny_f-M17-exact"]
)
def test_baselines_that_run_on_a_cpu_pass_the_gates(arm: Arm, label: str) -> None:
    """Against the oracle and with the op's own limits, every kind of row, NaN in the padding, all written."""
    call = one(label)
    call.outputs["out"].fill_(float("nan"))
    arm.bind([call])[0]()
    require_right(call)


@pytest.mark.parametrize("arm", RUN_ON_CPU, ids=lambda a: a.name)
@pytest.mark.parametrize("edge", ["alpha_zero", "alpha_large", "golden_blocks", "zero_scales", "minus_zero"])
def test_baselines_are_right_at_the_edges(arm: Arm, edge: str) -> None:
    """alpha 0, large values, each edge of the quantiser, scales of 0 and codes of -0."""
    call = cases.edge_calls(4)[edge]
    call.outputs["out"].fill_(float("nan"))
    arm.bind([call])[0]()
    require_right(call)


@pytest.mark.parametrize("arm", RUN_ON_CPU, ids=lambda a: a.name)
@pytest.mark.parametrize("which", cases.CHANGES)
def test_baselines_follow_their_inputs(arm: Arm, which: str) -> None:
    """A bound launcher is right on new contents of its buffers, weights included, after `prepare` if it has one."""
    call = one("tiny_c-M3-random")
    call = call.with_inputs(**{n: t.clone() for n, t in call.inputs.items()})
    launcher = arm.bind([call])[0]
    launcher()
    for name, new in {**cases.changed(call, which, 1), "weight": call.inputs["weight"] ^ 0x5A}.items():
        call.inputs[name].copy_(new)
    prepare = preparation_of(launcher)
    assert (prepare is not None) == (arm.name in PREPARED)
    if prepare is not None:
        prepare()
    launcher()
    require_right(call)


@pytest.mark.parametrize("arm", RUN_ON_CPU, ids=lambda a: a.name)
def test_launchers_of_one_bind_do_not_disturb_each_other(arm: Arm) -> None:
    """Three calls bound together and launched in another order, a shared scratch notwithstanding."""
    calls = cases.make_sets(cases.rows(["tiny_f"], [3], ["exact"])[0], 3, 0, "cpu")
    launchers = arm.bind(calls)
    for i in (2, 0, 1):
        launchers[i]()
    for call in calls:
        require_right(call)


def test_preparing_a_tall_weight_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven rows at a time give the operand that all at once give."""
    call = one("tiny_f-M2-any_scale")
    whole = baselines.CublasLauncher(call).weight
    monkeypatch.setattr(baselines, "PREPARED_ROWS", 7)
    assert torch.equal(baselines.CublasLauncher(call).weight, whole)


def test_dequantised_values_are_exact_in_bf16() -> None:
    """Every code with every scale: the BF16 operand equals the FP32 one."""
    packed = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]] * 0x7F, dtype=torch.uint8)
    scales = torch.arange(0x7F, dtype=torch.int32).to(torch.uint8)[:, None]
    assert torch.equal(baselines.bf16_values(packed, scales).float(), quantise.dequantise(packed, scales))


def test_arms_of_triton_kernels_are_known_by_their_source() -> None:
    """The hash of the kernels' file; nothing for torch and FlashInfer."""
    hashes = {arm.name: arm.source_sha256 for arm in baselines.ARMS}
    assert len(hashes["plain_triton"]) == 64
    assert hashes["plain_triton"] == hashes["dequantise_cublas"]
    assert hashes["cublas_bf16"] == hashes["dequantise_matmul"] == hashes["flashinfer_mm_fp4"] == ""


@pytest.mark.parametrize("name", ["plain_triton", "dequantise_cublas"])
def test_triton_arms_need_a_gpu_or_the_interpreter(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Without either they are unavailable, with the reason."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    arm = next(arm for arm in baselines.ARMS if arm.name == name)
    assert arm.unavailable(torch.device("cpu")).endswith("there is neither a GPU nor the interpreter")
    assert arm.unavailable(torch.device("cuda", 0)) == ""


@pytest.mark.parametrize(
    ("device", "found", "reason"),
    [
        ("cpu", None, "unavailable, because FlashInfer needs a CUDA device and this one is cpu"),
        ("cuda", (9, 0), "12.0, 12.1 and this one is (9, 0)"),
    ],
)
def test_flashinfer_says_where_it_has_no_backend(
    monkeypatch: pytest.MonkeyPatch, device: str, found: tuple[int, int] | None, reason: str
) -> None:
    """Unavailable, because …: on a CPU and on SM90, without importing FlashInfer."""
    monkeypatch.setattr(runtime, "capability", lambda device: found)
    monkeypatch.setattr(runtime, "import_optional", lambda name: pytest.fail("FlashInfer was imported"))
    assert baselines.FlashInferArm().unavailable(torch.device(device)).endswith(reason)


def test_flashinfer_is_called_as_its_signature_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands in the op's order, alpha as it is, BF16 into our buffer; FP32 outputs are refused with a reason."""
    seen = []

    class Library:
        @staticmethod
        def mm_fp4(*tensors: object, out: torch.Tensor) -> None:
            seen.append((tensors, out))

    monkeypatch.setattr(runtime, "import_optional", lambda name: runtime.OptionalModule(name, Library, ""))  # type: ignore[arg-type]
    call = one("tiny_a-M2-random")
    baselines.FlashInferArm().bind([call])[0]()
    tensors, out = seen[0]
    names = ("x_fp4", "weight", "x_sf", "weight_sf", "alpha")
    assert all(t is call.inputs[name] for t, name in zip(tensors[:5], names, strict=True))
    assert tensors[5] is torch.bfloat16
    assert out is call.outputs["out"]
    with pytest.raises(UnavailableError, match=r"out_dtype is 'float32'; allowed: 'bfloat16'\. Leave FlashInfer out"):
        baselines.FlashInferArm().bind([one("tiny_a-M2-fp32")])


@pytest.mark.gpu
@pytest.mark.parametrize("label", ["4b_down-M9-random", "tiny_e-M129-any_scale", "tiny_b-M9-fp32", "9b_down-M8-exact"])
@pytest.mark.parametrize("arm", baselines.ARMS, ids=lambda a: a.name)
def test_baselines_are_right_on_the_gpu(arm: Arm, label: str) -> None:
    """Every baseline that this machine offers passes the gates there, in a graph as well as without."""
    device = torch.device("cuda", 0)
    if arm.unavailable(device):
        pytest.skip(arm.unavailable(device))
    call = one(label, "cuda")
    launcher = arm.bind([call])[0]
    launcher()
    torch.cuda.synchronize()
    require_right(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launcher()
    call.outputs["out"].fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    require_right(call)
