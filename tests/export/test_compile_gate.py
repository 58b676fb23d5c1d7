"""The compile gate: fresh artifacts, resources read from the cubin, limits, and errors that carry the compiler's words."""

from pathlib import Path

import pytest

from kda_lab.contracts.model import CompileUnit
from kda_lab.errors import ExportError
from kda_lab.export import compile_gate
from kda_lab.export.compile_gate import compile_unit, compile_units, shared_limit_bytes

SOURCE = Path(__file__).with_name("toy_units.py")
COPY = CompileUnit(
    function="copy_kernel",
    signature={"p_x": "*bf16", "p_out": "*bf16", "count": "i32", "BLOCK": "constexpr"},
    constants={"BLOCK": 256},
    divisible_by_16=("p_x", "p_out"),
)


@pytest.mark.parametrize("capability", [(9, 0), (12, 1)], ids=["sm90", "sm121"])
def test_unit_compiles_without_a_gpu(tmp_path: Path, capability: tuple[int, int]) -> None:
    """A good unit yields registers, shared bytes and the hash of the one cubin in its cache, interpreter on or not."""
    found = compile_unit(SOURCE, COPY, capability, tmp_path / "cache")
    (cubin,) = (tmp_path / "cache").rglob("*.cubin")
    assert found.cubin_sha256 == compile_gate.hashlib.sha256(cubin.read_bytes()).hexdigest()
    assert found.registers is not None and 8 <= found.registers <= 64
    assert found.spill_bytes == 0
    assert found.shared_bytes <= 1024


def test_divisibility_reaches_the_compiler(tmp_path: Path) -> None:
    """Arguments declared divisible by 16 are loaded by wider instructions than undeclared ones."""
    compile_unit(SOURCE, COPY.model_copy(update={"constants": {"BLOCK": 1024}}), (9, 0), tmp_path / "wide")
    narrow = COPY.model_copy(update={"constants": {"BLOCK": 1024}, "divisible_by_16": ()})
    compile_unit(SOURCE, narrow, (9, 0), tmp_path / "narrow")
    texts = {n: next((tmp_path / n).rglob("*.ptx")).read_text() for n in ("wide", "narrow")}
    assert "tt.divisibility = 16" in next((tmp_path / "wide").rglob("*.ttir")).read_text()
    assert texts["wide"] != texts["narrow"]


def test_a_limit_of_registers_reaches_the_compiler(tmp_path: Path) -> None:
    """A unit that would take more registers stays within the limit that its launch sets."""
    wide = COPY.model_copy(update={"constants": {"BLOCK": 4096}, "num_warps": 1})
    free = compile_unit(SOURCE, wide, (9, 0), tmp_path / "free")
    limited = compile_unit(SOURCE, wide.model_copy(update={"maxnreg": 32}), (9, 0), tmp_path / "limited")
    assert free.registers is not None and limited.registers is not None
    assert limited.registers <= 32 < free.registers


def test_warm_cache_is_refused(tmp_path: Path) -> None:
    """A cache folder that holds anything proves nothing, so it is refused before compiling."""
    (tmp_path / "old.cubin").write_bytes(b"old")
    with pytest.raises(ExportError, match=r"cache_dir is .*; allowed: an empty folder"):
        compile_unit(SOURCE, COPY, (9, 0), tmp_path)


def test_shared_memory_limit_depends_on_the_architecture(tmp_path: Path) -> None:
    """A tile of 128 KB fails on SM120, whose blocks have 99 KB, with both numbers in the message."""
    assert shared_limit_bytes((9, 0)) == 232448
    assert shared_limit_bytes((12, 1)) == 101376
    unit = CompileUnit(
        function="square_dot_kernel",
        signature={"p_a": "*fp32", "p_out": "*fp32"},
        constants={"M": 64, "K": 512},
        num_warps=8,
    )
    with pytest.raises(ExportError, match=r"shared_bytes is \d+; allowed: at most 101376\..*smaller blocks"):
        compile_unit(SOURCE, unit, (12, 0), tmp_path / "small")


def test_unknown_architecture_names_the_known_ones() -> None:
    """A capability without a known limit is refused, never guessed."""
    with pytest.raises(ExportError, match=r"capability is \(8, 0\); allowed: \(9, 0\), "):
        shared_limit_bytes((8, 0))


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (
            {"function": "broken_kernel", "signature": {"p_x": "*fp32"}, "constants": {}, "divisible_by_16": ()},
            "no_such_function",
        ),
        ({"function": "absent"}, "has no Triton function called 'absent'"),
        ({"function": "not_a_kernel"}, "has no Triton function called 'not_a_kernel'"),
        ({"signature": {"p_x": "*bf16"}}, r"missing in the unit: \['p_out', 'count'\]"),
        ({"constants": {}}, r"constexpr arguments without a value: \['BLOCK'\]"),
        ({"divisible_by_16": ("nothing",)}, r"unknown: \['nothing'\]"),
    ],
    ids=["broken", "absent", "not-a-kernel", "missing-argument", "missing-constant", "unknown-argument"],
)
def test_failed_compile_keeps_the_words_of_the_compiler(tmp_path: Path, update: dict[str, object], words: str) -> None:
    """The error names unit and architecture and ends with the tail of the child's stderr."""
    with pytest.raises(ExportError, match=rf"(?s)capability \(9, 0\) does not compile .*{words}"):
        compile_unit(SOURCE, COPY.model_copy(update=update), (9, 0), tmp_path / "cache")


def test_no_units_is_not_a_pass(tmp_path: Path) -> None:
    """An empty list of units fails: nothing compiled is no evidence."""
    with pytest.raises(ExportError, match="at least one unit"):
        compile_units(SOURCE, (), (9, 0), tmp_path)


def test_worker_that_writes_nothing_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that reports success without a cubin fails the gate."""
    silent = tmp_path / "silent.py"
    silent.write_text("")
    monkeypatch.setattr(compile_gate, "_WORKER", silent)
    with pytest.raises(ExportError, match=r"artifacts of copy_kernel is '0 cubin and 0 metadata files'"):
        compile_unit(SOURCE, COPY, (9, 0), tmp_path / "cache")


def test_slow_compile_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile beyond the time limit is killed and named."""
    endless = tmp_path / "endless.py"
    endless.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(compile_gate, "_WORKER", endless)
    monkeypatch.setattr(compile_gate, "TIMEOUT_S", 0.2)
    with pytest.raises(ExportError, match=r"took more than 0\.2 s"):
        compile_unit(SOURCE, COPY, (9, 0), tmp_path / "cache")


def test_units_get_a_cache_each(tmp_path: Path) -> None:
    """Several units of one architecture compile into separate folders and keep their order."""
    other = COPY.model_copy(update={"constants": {"BLOCK": 512}, "num_warps": 8})
    found = compile_units(SOURCE, (COPY, other), (9, 0), tmp_path)
    assert [r.num_warps for r in found] == [4, 8]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sm90-0", "sm90-1"]


CUDA_SOURCE = Path(__file__).with_name("toy_cuda_candidate.cu")
DECODE = CompileUnit(
    function="toy_decode<12, 256>",
    signature={},
    constants={"GROUP": 12, "D": 256},
    num_warps=8,
    options=("-std=c++17",),
    dynamic_shared_bytes=1024,
)


@pytest.mark.parametrize("capability", [(9, 0), (12, 0), (12, 1)], ids=["sm90", "sm120", "sm121"])
def test_cuda_unit_compiles_without_a_gpu(tmp_path: Path, capability: tuple[int, int]) -> None:
    """A template instantiation becomes one cubin; registers are read from it, shared bytes include the launch's."""
    found = compile_unit(CUDA_SOURCE, DECODE, capability, tmp_path / "cache")
    (cubin,) = (tmp_path / "cache").rglob("*.cubin")
    assert found.cubin_sha256 == compile_gate.hashlib.sha256(cubin.read_bytes()).hexdigest()
    assert found.registers is not None and 8 <= found.registers <= 64
    assert (found.spill_bytes, found.shared_bytes) == (0, 1024)


def test_equal_device_code_gives_an_equal_cubin(tmp_path: Path) -> None:
    """The path of the file does not enter, so an export is the same wherever it is made."""
    copy = tmp_path / "elsewhere.cu"
    copy.write_bytes(CUDA_SOURCE.read_bytes())
    first = compile_unit(CUDA_SOURCE, DECODE, (9, 0), tmp_path / "a")
    assert compile_unit(copy, DECODE, (9, 0), tmp_path / "b") == first


def test_static_and_dynamic_shared_memory_count_together(tmp_path: Path) -> None:
    """Static shared memory of the function plus what the launch asks for must fit the architecture."""
    source = tmp_path / "big.cu"
    source.write_text(
        "__global__ void big(float* x) { __shared__ float s[8192]; s[threadIdx.x] = x[0];"
        " __syncthreads(); x[threadIdx.x] = s[threadIdx.x ^ 1]; }\n"
    )
    unit = DECODE.model_copy(update={"function": "big", "dynamic_shared_bytes": 70 * 1024})
    assert compile_unit(source, unit, (9, 0), tmp_path / "wide").shared_bytes == 102 * 1024
    with pytest.raises(ExportError, match=r"shared_bytes is 104448; allowed: at most 101376\."):
        compile_unit(source, unit, (12, 0), tmp_path / "narrow")


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ({"function": "toy_decode<12>"}, r'NVRTC_ERROR_COMPILATION: .*function template "toy_decode"'),
        ({"function": "absent"}, r'identifier "absent" is undefined'),
        ({"options": ("-no-such-option",)}, r"NVRTC_ERROR_INVALID_OPTION"),
        ({"options": ("-arch=sm_120a",)}, r"name \['sm_120a'\]; allowed here: sm_90, sm_90a, sm_90f"),
    ],
    ids=["template", "absent", "option", "architecture"],
)
def test_failed_cuda_compile_keeps_the_words_of_nvrtc(tmp_path: Path, update: dict[str, object], words: str) -> None:
    """The error names unit and architecture and ends with the tail of NVRTC's log."""
    with pytest.raises(ExportError, match=rf"(?s)capability \(9, 0\) does not compile .*{words}"):
        compile_unit(CUDA_SOURCE, DECODE.model_copy(update=update), (9, 0), tmp_path / "cache")


def test_architecture_of_a_unit_reaches_nvrtc(tmp_path: Path) -> None:
    """An instruction of sm_90a alone compiles when the unit's options ask for sm_90a, and not without."""
    source = tmp_path / "special.cu"
    source.write_text('__global__ void special() { asm volatile("wgmma.fence.sync.aligned;"); }\n')
    unit = DECODE.model_copy(update={"function": "special", "options": ("-arch=sm_90a",)})
    assert compile_unit(source, unit, (9, 0), tmp_path / "a").registers is not None
    with pytest.raises(ExportError, match="does not compile"):
        compile_unit(source, unit.model_copy(update={"options": ()}), (9, 0), tmp_path / "plain")


def test_resources_are_those_of_the_named_function(tmp_path: Path) -> None:
    """A file may hold several functions: what is recorded is what the unit names, in either order."""
    source = tmp_path / "two.cu"
    heavy = "float a[32]; for (int i = 0; i < 32; ++i) a[i] = x[i * 32]; for (int i = 0; i < 32; ++i) x[i] = a[31 - i];"
    source.write_text("__global__ void light(float* x) {}\n" + "__global__ void heavy(float* x) {" + heavy + "}\n")
    used = [
        compile_unit(source, DECODE.model_copy(update={"function": name}), (9, 0), tmp_path / name).registers
        for name in ("light", "heavy")
    ]
    assert used[0] is not None and used[1] is not None and used[0] + 16 < used[1]
