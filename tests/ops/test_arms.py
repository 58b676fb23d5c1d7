"""Arms of kernel sources: found by name, refused with the allowed names, bound to the op's signature."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import kda_lab.qsa
from kda_lab import runtime
from kda_lab.dispatch.kernel_files import source_digest
from kda_lab.errors import KernelLoadError, ParameterError, UnavailableError
from kda_lab.ops import arms
from kda_lab.ops.protocol import Call, OpSpec
from kda_lab.ops.registry import load_op

ROOT = Path(__file__).parents[2]
CANDIDATES, EXPORTED = ROOT / "notebooks" / "candidates", ROOT / "kda_lab" / "kernels"
OP = "qsa.packed_decode"
CUDA_TOY = ROOT / "tests" / "export" / "toy_cuda_candidate.py"
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_arms_come_with_their_roles() -> None:
    """Candidates first, then the baseline, then peers, in the order asked for."""
    found = arms.chosen_arms(OP, ["grouped"], ["per_head", "torch_sdpa"], CANDIDATES, EXPORTED)
    assert [(a.name, role) for a, role in found] == [
        ("grouped", "candidate"),
        ("per_head", "baseline"),
        ("torch_sdpa", "peer"),
    ]


def test_an_exported_kernel_is_an_arm_too() -> None:
    """By its own name, with the hash of its source."""
    found, _ = arms.chosen_arms(OP, ["qsa_packed_decode_grouped"], ["per_head"], CANDIDATES, EXPORTED)[0]
    assert found.source_sha256 == arms.candidate_arm(CANDIDATES / OP / "grouped.py").source_sha256


@pytest.mark.parametrize(
    ("kernels", "baselines", "words"),
    [
        (["grouped2"], ["per_head"], r"kernels is 'grouped2'; allowed: .*grouped, .*qsa_packed_decode_grouped"),
        (["portable"], ["per_head"], r"allowed: .*grouped, .*qsa_packed_decode_grouped. It is a kernel of nvfp4.gemm"),
        (["grouped", "grouped"], ["per_head"], r"kernels is .*; allowed: each once. Twice: grouped"),
        (["grouped"], ["per_head", "per_head"], r"baselines is .*; allowed: each once. Twice: per_head"),
        (["grouped"], ["perhead"], r"is 'perhead'; allowed: per_head, torch_sdpa, flashinfer_ragged_fa2"),
    ],
    ids=["kernel", "candidate of another op", "doubled kernel", "doubled baseline", "baseline"],
)
def test_unknown_names_list_the_known(kernels: list[str], baselines: list[str], words: str) -> None:
    """A misspelt name says which there are."""
    with pytest.raises(ParameterError, match=words):
        arms.chosen_arms(OP, kernels, baselines, CANDIDATES, EXPORTED)


def test_an_exported_kernel_of_another_op_is_refused() -> None:
    """It is there, but its contract is another op's; the allowed names are those of the op asked for."""
    words = r"kernels is 'qsa_packed_decode_grouped'; allowed: (?!.*grouped,).*portable.* a kernel of qsa.packed_decode"
    with pytest.raises(ParameterError, match=words):
        arms.chosen_arms("nvfp4.gemm", ["qsa_packed_decode_grouped"], ["cublas_bf16"], CANDIDATES, EXPORTED)
    with pytest.raises(ParameterError, match=r"op is 'nvfp4'; allowed: .*'nvfp4.gemm', .*'qsa.packed_decode'"):
        arms.chosen_arms("nvfp4", ["portable"], ["cublas_bf16"], CANDIDATES, EXPORTED)


def test_a_candidate_in_the_folder_of_another_op_is_refused(tmp_path: Path) -> None:
    """Its CONTRACT counts, not where it lies."""
    (tmp_path / "nvfp4.gemm").mkdir()
    shutil.copy(CANDIDATES / OP / "grouped.py", tmp_path / "nvfp4.gemm")
    words = "kernels of nvfp4.gemm is 'grouped'; allowed: grouped. Its CONTRACT is of qsa.packed_decode"
    with pytest.raises(ParameterError, match=words):
        arms.chosen_arms("nvfp4.gemm", ["grouped"], ["cublas_bf16"], tmp_path, tmp_path / "no_kernels")


def test_a_kernel_whose_contract_cannot_be_read_says_why(tmp_path: Path) -> None:
    """A broken folder refuses its own name only, with the loader's reason."""
    for text in ("{", "[]"):
        (tmp_path / "broken").mkdir(exist_ok=True)
        (tmp_path / "broken" / "contract.json").write_text(text)
        with pytest.raises(KernelLoadError):
            arms.chosen_arms(OP, ["broken"], ["per_head"], CANDIDATES, tmp_path)
        assert arms.chosen_arms(OP, ["grouped"], ["per_head"], CANDIDATES, tmp_path)[0][0].name == "grouped"


@pytest.mark.parametrize(
    ("source", "words"),
    [("x = 1\n", "has no valid CONTRACT"), ("CONTRACT = {'op': 'qsa.packed_decode'}\n", "kernel\n  Field required")],
    ids=["absent", "incomplete"],
)
def test_a_source_without_a_contract_is_no_candidate(source: str, words: str, tmp_path: Path) -> None:
    """The refusal says what is missing."""
    path = tmp_path / "candidate.py"
    path.write_text(source)
    with pytest.raises(UnavailableError, match=words):
        arms.candidate_arm(path)


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    """No file, no arm."""
    with pytest.raises(UnavailableError, match="there is no such file"):
        arms.candidate_arm(tmp_path / "nothing.py")


def test_the_door_is_no_arm_on_a_cpu() -> None:
    """Dispatch serves CUDA devices only."""
    door = arms.DispatchedArm("dispatched", load_op(OP).spec, print)
    assert door.unavailable(torch.device("cpu")).startswith("unavailable, because dispatch serves CUDA devices")
    assert door.unavailable(torch.device("cuda", 0)) == ""


def test_the_door_can_stand_among_the_kernels() -> None:
    """Its name gives the op's public function, in the candidate's place."""
    ((arm, role),) = arms.chosen_arms(OP, ["dispatched"], [], CANDIDATES, EXPORTED)
    assert (arm.name, role, arm.door) == ("dispatched", "candidate", kda_lab.qsa.packed_decode)
    assert len(arm.source_sha256) == 64
    ((unserved, _),) = arms.chosen_arms("qsa.topk_blocks", ["dispatched"], [], CANDIDATES, EXPORTED)
    assert unserved.source_sha256 == ""


def test_a_launcher_passes_the_op_s_signature() -> None:
    """Tensors in the op's order, scalars and outputs by name."""
    op = load_op(OP)
    call = op.cases.synthesise(op.cases.rows(("tp2",), (2,), ("short",))[0], 1)
    seen: dict = {}
    arms.launcher(lambda *t, **k: seen.update(tensors=t, **k), op.spec, call)()
    assert [t is call.inputs[n] for t, n in zip(seen["tensors"], op.spec.tensors, strict=True)] == [True] * 5
    assert seen["out"] is call.outputs["out"]
    assert seen["max_seqlen_k"] == call.scalars["max_seqlen_k"]


def test_a_copied_export_is_an_arm(tmp_path: Path) -> None:
    """The folder alone is enough."""
    copy = shutil.copytree(EXPORTED / "qsa_packed_decode_grouped", tmp_path / "qsa_packed_decode_grouped")
    assert arms.exported_arm(copy).state_tensors() is not None


def cuda_copy(tmp_path: Path, old: str = "", new: str = "") -> Path:
    """The toy in CUDA C++ with one edit of its host code."""
    text = CUDA_TOY.read_text()
    assert old in text
    path = tmp_path / f"copy_{len(list(tmp_path.iterdir()))}.py"
    path.write_text(text.replace(old, new, 1) if old else text)
    shutil.copy(CUDA_TOY.with_suffix(".cu"), path.with_suffix(".cu"))
    return path


def test_a_cuda_candidate_carries_one_digest_of_both_files(tmp_path: Path) -> None:
    """What a record names changes with either file."""
    path = cuda_copy(tmp_path)
    found = arms.candidate_arm(path).source_sha256
    assert found == source_digest(path, "cuda") == arms.candidate_arm(CUDA_TOY).source_sha256
    arms.candidate_arm.cache_clear()
    path.with_suffix(".cu").write_text(path.with_suffix(".cu").read_text() + "// changed\n")
    assert arms.candidate_arm(path).source_sha256 not in (found, "")


def test_device_code_that_the_module_did_not_read_is_refused(tmp_path: Path) -> None:
    """Host code that compiles another text than the .cu file beside it would be judged under a false hash."""
    path = cuda_copy(tmp_path, 'SOURCE = Path(__file__).with_suffix(".cu").read_text()', 'SOURCE = "other"')
    with pytest.raises(UnavailableError, match=r"ops: candidate .*text of copy_0\.cu is not held by its host code"):
        arms.candidate_arm(path)


def test_a_cuda_candidate_without_device_code_is_refused(tmp_path: Path) -> None:
    """The .cu file is part of the candidate."""
    path = cuda_copy(tmp_path, 'Path(__file__).with_suffix(".cu").read_text()', '"text"')
    path.with_suffix(".cu").unlink()
    with pytest.raises(UnavailableError, match=r"device source is '.*copy_0\.cu' \(No such file"):
        arms.candidate_arm(path)


def test_a_twin_serves_a_cpu_only_when_it_is_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With CPU_TWIN the arm runs on a CPU, interpreter or not, and says that it is the twin; without, it is refused."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    arm = arms.candidate_arm(CUDA_TOY)
    assert (arm.unavailable(CPU), arm.stand_in(CPU), arm.stand_in(GPU)) == ("", "torch twin", "")
    bare = arms.candidate_arm(cuda_copy(tmp_path, "CPU_TWIN = True", ""))
    assert bare.unavailable(CPU) == "unavailable, because copy_0 is CUDA C++ and says no CPU_TWIN for a cpu"


def test_the_twin_computes_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound on a CPU without the interpreter, the toy's twin agrees with the oracle."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    op = load_op(OP)
    call = op.cases.synthesise(op.cases.rows(("tp2",), (2,), ("short",))[0], 1)
    call.outputs["out"].fill_(float("nan"))
    arms.candidate_arm(CUDA_TOY).bind([call])[0]()
    torch.testing.assert_close(
        call.outputs["out"].float(), op.oracle.oracle_fp32(call)["out"].float(), rtol=0.02, atol=1e-2
    )


@pytest.mark.parametrize(
    ("capability", "words"),
    [
        ((9, 0), ""),
        ((8, 0), "no compile unit for capability 8.0; it has: 12.0, 9.0"),
        (None, "no compile unit for capability unknown; it has: 12.0, 9.0"),
    ],
)
def test_a_cuda_kernel_runs_where_a_unit_is_launched(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None, words: str
) -> None:
    """On a GPU the very capability must be one of a compile unit's."""
    monkeypatch.setattr(runtime, "capability", lambda device: capability)
    reason = arms.candidate_arm(CUDA_TOY).unavailable(GPU)
    assert reason == (f"unavailable, because toy_cuda_candidate has {words}" if words else "")


def test_without_cuda_core_a_cuda_kernel_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that compiles and launches must be there; its own failure is the reason."""
    monkeypatch.setattr(runtime, "capability", lambda device: (9, 0))
    absent = runtime.OptionalModule("cuda.core", None, "unavailable, because importing cuda.core raised ImportError")
    monkeypatch.setattr(runtime, "import_optional", lambda name: absent)
    assert arms.candidate_arm(CUDA_TOY).unavailable(GPU) == absent.reason


def test_a_triton_kernel_says_when_the_interpreter_stands_in() -> None:
    """On a CPU a Triton kernel is judged interpreted."""
    assert arms.candidate_arm(CANDIDATES / OP / "grouped.py").stand_in(CPU) == "interpreter"


def test_names_of_dtypes_become_dtypes() -> None:
    """A call holds 'bfloat16'; the entry gets torch.bfloat16; other scalars and None stay as they are."""
    spec = OpSpec("toy.cast", ("x",), ("out_dtype", "other", "word"), ("out",), dtypes=("out_dtype", "other"))
    x = torch.zeros(1)
    seen: dict = {}
    scalars = {"out_dtype": "bfloat16", "other": None, "word": "float32"}
    arms.launcher(lambda *t, **k: seen.update(k), spec, Call("toy.cast", {"x": x}, scalars, {"out": x}))()
    assert (seen["out_dtype"], seen["other"], seen["word"]) == (torch.bfloat16, None, "float32")


@pytest.mark.parametrize("name", ["bf16", "Tensor", 3])
def test_a_name_that_is_no_dtype_is_refused(name: object) -> None:
    """Only names that torch gives to a dtype."""
    with pytest.raises(ParameterError, match=rf"ops: dtype is {name!r}; allowed: the name of a torch dtype"):
        arms.dtype_of(name)


@pytest.mark.gpu
def test_the_cuda_toy_is_right_on_a_gpu() -> None:
    """Compiled with NVRTC and launched through cuda.core, the toy agrees with the oracle."""
    device = torch.device("cuda", torch.cuda.current_device())
    arm = arms.candidate_arm(CUDA_TOY)
    if arm.unavailable(device):
        pytest.skip(arm.unavailable(device))
    op = load_op(OP)
    call = op.cases.synthesise(op.cases.rows(("tp2",), (2,), ("short",))[0], 1, device)
    call.outputs["out"].fill_(float("nan"))
    arm.bind([call])[0]()
    torch.testing.assert_close(
        call.outputs["out"].float(), op.oracle.oracle_fp32(call)["out"].float(), rtol=0.02, atol=1e-2
    )
