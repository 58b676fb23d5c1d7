"""The portable NVFP4 kernel: right for any shape, exact where it can be, native on SM120, clear in its refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab import interpreter, runtime
from kda_lab.contracts.imagined import imagined_call
from kda_lab.contracts.model import Declaration
from kda_lab.contracts.predicate import check
from kda_lab.dispatch.fallback import chain_reasons
from kda_lab.dispatch.loader import load_source
from kda_lab.export.compile_gate import compile_unit
from kda_lab.ops.nvfp4 import e2m1
from kda_lab.ops.nvfp4.containers import prepare_activation, prepare_weight
from kda_lab.ops.nvfp4_gemm import cases
from kda_lab.ops.nvfp4_gemm.oracle import oracle_fp64
from kda_lab.ops.nvfp4_gemm.spec import SPEC
from kda_lab.ops.protocol import Call
from kda_lab.verify.metrics import rel_l2

PATH = Path(__file__).parents[3] / "notebooks" / "candidates" / "nvfp4.gemm" / "portable.py"
PORTABLE = load_source(PATH)
UNITS = Declaration.model_validate(PORTABLE.CONTRACT).compile_units
interpreter.ensure_faithful()
DEVICE = runtime.default_device()
ANY_SCALE, POWERS_OF_TWO = torch.arange(1, 0x7F), torch.tensor([0x28, 0x30, 0x38, 0x40])
TAILS = (33, 80, 272)
"""M, N and K that leave a tail in every tile of every schedule."""


def drawn(M: int, N: int, K: int, scales: torch.Tensor = ANY_SCALE, alpha: float = 0.03125) -> Call:
    """A call of random codes with scale bytes drawn from `scales`, FP32 output, NaN in the padding rows."""
    draw = torch.Generator().manual_seed(M * 7919 + N * 31 + K)

    def operand(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        packed = torch.randint(0, 256, (rows, K // 2), generator=draw).to(torch.uint8)
        picked = torch.randint(0, len(scales), (rows, K // 16), generator=draw)
        return packed, scales[picked].to(torch.uint8)

    return as_call(operand(M), operand(N), alpha)


def as_call(x: tuple[torch.Tensor, torch.Tensor], w: tuple[torch.Tensor, torch.Tensor], alpha: float = 1.0) -> Call:
    """A call of packed codes and linear scales of both operands."""
    activation, weight = prepare_activation(*x), prepare_weight(*w)
    inputs = {**activation._asdict(), **weight._asdict(), "alpha": torch.tensor([alpha])}
    M, N, K = x[0].shape[0], w[0].shape[0], 2 * x[0].shape[1]
    out = {"out": torch.full((M, N), float("nan"))}
    call = Call("nvfp4.gemm", inputs, {"out_dtype": "float32"}, out, facts={"M": M, "N": N, "K": K, "kind": "random"})
    return cases.with_guard_rows(call).to(DEVICE)


def operands(call: Call) -> tuple[torch.Tensor, ...]:
    """The op's tensors in their order."""
    return tuple(call.inputs[name] for name in ("x_fp4", "weight", "x_sf", "weight_sf", "alpha"))


def computed(call: Call, out_dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What the entry returns."""
    return PORTABLE.gemm(*operands(call), out_dtype=out_dtype)


def launched(call: Call, schedule: Any, *, native: bool = False) -> torch.Tensor:
    """What a launch with a given schedule writes."""
    out = torch.full_like(call.outputs["out"], float("nan"))
    PORTABLE.launch(operands(call), out, schedule, native=native)
    return out


@pytest.mark.parametrize("M", [*range(1, 18), 33])
def test_every_number_of_tokens(M: int) -> None:
    """1 to 17 tokens and 33, with tails in N and K: the definition to 1e-5 in FP32, rounded once in BF16."""
    call = drawn(M, 40, 96)
    exact = oracle_fp64(call)["out"]
    assert rel_l2(computed(call), exact) < 1e-5
    assert torch.equal(computed(call, torch.bfloat16), computed(call).to(torch.bfloat16))


@pytest.mark.parametrize(
    ("M", "N", "K"),
    [(1, 1, 16), (2, 8, 16), (9, 40, 64), (4, 48, 80), (3, 320, 576), (33, 320, 96), (130, 7, 64), (2, 130, 1040)],
)
def test_every_shape(M: int, N: int, K: int) -> None:
    """Any N, any K that is a multiple of 16, more than one scale atom along every axis."""
    call = drawn(M, N, K, alpha=-1.75)
    assert rel_l2(computed(call), oracle_fp64(call)["out"]) < 1e-5


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(1, 150), st.integers(1, 12))
def test_any_shape(M: int, N: int, blocks: int) -> None:
    """Whatever the shape, the definition holds."""
    call = drawn(M, N, 16 * blocks)
    assert rel_l2(computed(call), oracle_fp64(call)["out"]) < 1e-5


def test_every_code_at_every_scale_is_exact() -> None:
    """A one-hot activation of 1 reads each of the 16 codes at each of the 256 scale bytes bit for bit; NaN stays NaN."""
    codes = torch.arange(16, dtype=torch.uint8)
    one_hot = e2m1.pack(torch.eye(16).mul(2).to(torch.uint8))
    scale_bytes = torch.arange(256).to(torch.uint8)[:, None]
    rows = e2m1.pack(codes).repeat(256, 1)
    call = as_call((one_hot, torch.full((16, 1), 0x38, dtype=torch.uint8)), (rows, scale_bytes))
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    wanted = torch.cat([magnitudes, -magnitudes])[:, None] * scale_bytes[:, 0].view(torch.float8_e4m3fn).float()
    out = computed(call).cpu()
    assert torch.equal(out.isnan(), wanted.isnan())
    assert int(out.isnan().sum()) == 2 * 16
    assert torch.equal(out.nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize(
    "schedule", [entry[-1] for entry in PORTABLE.SCHEDULES], ids=lambda s: f"{s.block_m}x{s.block_n}"
)
def test_every_tile_is_exact_with_powers_of_two(schedule: Any) -> None:
    """The tiles that a GPU runs, with a tail along every axis: bit for bit where any order of summation is exact."""
    call = drawn(*TAILS, scales=POWERS_OF_TWO, alpha=0.375)
    assert torch.equal(launched(call, schedule), oracle_fp64(call)["out"].float())


@pytest.mark.parametrize("alpha", [0.0, 1e-8, 1.0, 1e4, -3.0])
def test_alpha(alpha: float) -> None:
    """Alpha multiplies the sum once, whatever its size and sign; 0 gives zeros."""
    call = drawn(3, 24, 64, alpha=alpha)
    assert rel_l2(computed(call), oracle_fp64(call)["out"]) < 1e-5


def test_bytes_that_belong_to_nobody_are_not_read() -> None:
    """NaN in the padding columns of both containers, beside the NaN rows of every other test, changes no bit."""
    call = drawn(5, 24, 80)
    wanted = computed(call)
    for name in ("x_sf", "weight_sf"):
        container = call.inputs[name] if name == "x_sf" else call.inputs[name].t()
        atoms = container.reshape(-1).view(-1, 2, 128, 4)  # K = 80: five columns in two atoms
        atoms[:, 1, :, 1:] = 0x7F
    assert torch.equal(computed(call), wanted)


def test_float8_containers_are_their_bytes() -> None:
    """Scales of dtype float8_e4m3fn give the bits that the same bytes give."""
    call = drawn(2, 24, 64)
    scales = {name: call.inputs[name].view(torch.float8_e4m3fn) for name in ("x_sf", "weight_sf")}
    assert torch.equal(computed(call.with_inputs(**scales)), computed(call))


def test_the_output_is_the_buffer_given_else_a_new_one() -> None:
    """`out` is written and returned; without it the default is BF16."""
    call = drawn(2, 24, 64)
    out = call.outputs["out"]
    assert PORTABLE.gemm(*operands(call), out_dtype=torch.float32, out=out) is out
    assert not out.isnan().any()
    assert PORTABLE.gemm(*operands(call)).dtype == torch.bfloat16


def test_schedules_cover_what_the_contract_allows() -> None:
    """Each size within the contract finds a schedule, and each schedule of both tables serves some size."""
    sizes = [(m, n) for m in (1, 16, 17, 64, 65, PORTABLE.MAX_M) for n in (1, 8192, 8193, PORTABLE.MAX_N)]
    for table, native in ((PORTABLE.SCHEDULES, False), (PORTABLE.SCHEDULES_BLOCK_SCALED, True)):
        assert {PORTABLE.schedule_for(m, n, native=native) for m, n in sizes} == {entry[-1] for entry in table}


@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (12, 0)])
def test_the_capability_chooses_the_kernel(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    """SM120 takes the block-scaled kernel, SM90 and SM100 the up-casting one, and its units are declared for it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    PORTABLE._is_native.cache_clear()
    native = PORTABLE._is_native(torch.device("cuda", 0))
    PORTABLE._is_native.cache_clear()
    units = [u for u in UNITS if capability in u.capabilities]
    assert native == (capability == (12, 0))
    assert {u.function for u in units} == {"_block_scaled_kernel" if native else "_upcast_kernel"}


def decoded(packed: np.ndarray, scale_bytes: np.ndarray) -> np.ndarray:
    """[rows, K] of packed bytes [rows, K/2] times E4M3 scales [rows, K/16]: what `dot_scaled` says of an operand."""
    values = e2m1.decode(e2m1.unpack(torch.from_numpy(np.ascontiguousarray(packed))))
    scales = torch.from_numpy(np.ascontiguousarray(scale_bytes)).view(torch.float8_e4m3fn).float()
    return (values * scales.repeat_interleave(16, dim=1)).numpy()


@pytest.fixture
def modelled_dot_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter with `tl.dot_scaled` as its documentation describes it for E2M1 with E4M3 scales.

    No Triton's own does that; docs/facts.md says what each does.
    """
    if not runtime.interpreter_on():
        pytest.skip("models the instruction in Triton's interpreter, which is off on this machine")
    import triton.language.semantic as semantic
    import triton.runtime.interpreter as machine

    def dot_scaled(self: Any, a: Any, a_scale: Any, _a: Any, b: Any, b_scale: Any, _b: Any, acc: Any, *_: Any) -> Any:
        product = decoded(a.handle.data, a_scale.handle.data) @ decoded(b.handle.data.T, b_scale.handle.data).T
        return self.tensor(machine.TensorHandle(product + acc.handle.data, acc.handle.dtype), acc.type)

    monkeypatch.setattr(semantic.TritonSemantic, "dot_scaled", dot_scaled)


BLOCK_SCALED = [entry[-1] for entry in PORTABLE.SCHEDULES_BLOCK_SCALED]


@pytest.mark.usefixtures("modelled_dot_scaled")
@pytest.mark.parametrize("schedule", BLOCK_SCALED, ids=lambda s: f"{s.block_m}x{s.block_n}")
def test_the_block_scaled_kernel_around_its_instruction(schedule: Any) -> None:
    """Addresses, swizzle, masks and alpha of the block-scaled kernel are right if the instruction is: bit for bit."""
    call = drawn(*TAILS, scales=POWERS_OF_TWO, alpha=0.375)
    assert torch.equal(launched(call, schedule, native=True), oracle_fp64(call)["out"].float())


@pytest.mark.parametrize("schedule", BLOCK_SCALED, ids=lambda s: f"{s.block_m}x{s.block_n}")
def test_sm120_code_holds_the_native_instruction(tmp_path: Path, schedule: Any) -> None:
    """Compiled for SM120, every product is one block-scaled FP4 instruction, within 99 KB and with no spill."""
    wanted = {"BLOCK_M": schedule.block_m, "BLOCK_N": schedule.block_n, "BLOCK_K": schedule.block_k}
    unit = next(u for u in UNITS if u.function == "_block_scaled_kernel" and u.constants == wanted)
    resources = compile_unit(PATH, unit, (12, 0), tmp_path / "cache")
    ptx = next((tmp_path / "cache").rglob("*.ptx")).read_text()
    assert ptx.count("mma.sync") == ptx.count("kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3") > 0
    assert resources.spill_bytes in (0, None)
    assert resources.shared_bytes <= 99 * 1024


def test_sm90_code_uses_the_tensor_cores_and_keeps_subnormals(tmp_path: Path) -> None:
    """Compiled for SM90, decode feeds wgmma from registers, and no FP16 operation flushes code 1 to zero."""
    units = [u for u in UNITS if (9, 0) in u.capabilities and u.constants["WEIGHTS_FIRST"]]
    unit = next(u for u in units if (u.constants["BLOCK_M"], u.constants["BLOCK_N"]) == (16, 64))
    compile_unit(PATH, unit, (9, 0), tmp_path / "cache")
    ptx = next((tmp_path / "cache").rglob("*.ptx")).read_text()
    # The second operand in braces: registers; a descriptor would be one 64-bit register.
    assert re.search(r"wgmma\.mma_async\.sync\.aligned\.m64n16k16\.f32\.f16\.f16 \{[^}]*\}, *\{%r", ptx)
    assert "mul.f16x2" in ptx
    assert ".ftz.f16" not in ptx


WRONG: dict[str, tuple[Any, str]] = {
    "dimensions": (lambda i: {"x_fp4": i["x_fp4"][0]}, r"must have two dimensions"),
    "inner": (lambda i: {"weight": i["weight"][:-8]}, r"weight has 24 rows; allowed: 32 = K/2 as in x_fp4"),
    "k": (
        lambda i: {"x_fp4": i["x_fp4"][:, :20].contiguous(), "weight": i["weight"].t()[:, :20].contiguous().t()},
        r"K is 40; allowed: multiples of 16 up to 131072",
    ),
    "no_tokens": (lambda i: {"x_fp4": i["x_fp4"][:0]}, r"M is 0; allowed: 1 to 65536"),
    "container": (lambda i: {"x_sf": i["x_sf"][:64]}, r"x_sf has shape \(64, 4\); allowed: \(128, 4\)"),
    "weight_container": (lambda i: {"weight_sf": i["weight_sf"][:, :24]}, r"weight_sf has shape \(4, 24\); allowed"),
    "scale_dtype": (lambda i: {"x_sf": i["x_sf"].view(torch.int8)}, r"x_sf is torch.int8; allowed: torch.uint8"),
    "code_dtype": (lambda i: {"weight": i["weight"].view(torch.int8)}, r"x_fp4 and weight must be torch.uint8"),
    "alpha_dtype": (lambda i: {"alpha": i["alpha"].double()}, r"alpha must be one torch.float32"),
    "alpha_count": (lambda i: {"alpha": i["alpha"].repeat(2)}, r"alpha must be one torch.float32"),
    "not_transposed": (lambda i: {"weight": i["weight"].contiguous()}, r"weight and weight_sf the transposed views"),
    "strided": (lambda i: {"x_fp4": i["x_fp4"].repeat(1, 2)[:, ::2]}, r"x_fp4 and x_sf must be contiguous"),
    "meta": (lambda i: {"alpha": i["alpha"].to("meta")}, r"all tensors must be on one device"),
    "out_dtype": (lambda i: {"out_dtype": torch.float16}, r"out_dtype is torch.float16; allowed: torch.bfloat16"),
    "out": (
        lambda i: {"out": torch.zeros(2, 24)},
        r"out is \(2, 24\) torch.float32; allowed: \(2, 24\) torch.bfloat16",
    ),
    "out_strides": (lambda i: {"out": torch.zeros(24, 2, dtype=torch.bfloat16).t()}, r"out must be contiguous"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_kernel_refuses_by_itself(name: str) -> None:
    """Lifted out of this project it still says what it cannot take."""
    inputs = drawn(2, 24, 64).to("cpu").inputs
    change, words = WRONG[name]
    with pytest.raises(ValueError, match=words):
        PORTABLE.gemm(**{**inputs, **change(inputs)})


@pytest.mark.gpu
@pytest.mark.parametrize(("M", "N", "K"), [(1, 2560, 9216), (9, 5120, 17408), (16, 18432, 2560), (4369, 5120, 5120)])
def test_published_shapes_on_a_gpu(M: int, N: int, K: int) -> None:
    """Decode and prefill at shapes of the Qwen models, on the kernel that this GPU takes."""
    call = drawn(M, N, K)
    assert rel_l2(computed(call), oracle_fp64(call)["out"]) < 1e-5


def test_the_contract_refuses_what_the_entry_refuses() -> None:
    """An output dtype of None is a refusal with its field, not an error from inside the kernel."""
    declaration = Declaration.model_validate(PORTABLE.CONTRACT)
    facts = imagined_call(declaration, {"M": 4, "N": 48, "K": 64}, {"out_dtype": "bfloat16"}, (9, 0))
    assert check(declaration, facts)
    (reason,) = check(declaration, replace(facts, scalars={"out_dtype": None})).reasons
    assert str(reason) == "out_dtype is None; allowed: torch.bfloat16, torch.float32."


def test_the_contract_fits_its_op() -> None:
    """It stands in the op's fallback chain, so it declares none of its own."""
    declaration = Declaration.model_validate(PORTABLE.CONTRACT)
    assert declaration.kernel in SPEC.fallback
    assert chain_reasons(declaration, SPEC, declaration.kernel) == []
    assert tuple(declaration.tensors) == (*SPEC.tensors, *SPEC.outputs)
