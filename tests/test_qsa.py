"""The QSA door: what importing it loads, what it passes on, and how it refuses."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import kda_lab
from kda_lab import qsa
from kda_lab.dispatch.dispatcher import Dispatcher
from kda_lab.errors import ContractError, ParameterError
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_packed_decode.spec import SPEC
from kda_lab.ops.registry import load_op
from kda_lab.verify.metrics import rel_l2

HEAVY = (
    "triton",
    "flashinfer",
    "scipy",
    "pandas",
    "matplotlib",
    "jupyter",
    "jupyter_client",
    "IPython",
    "papermill",
    "pyarrow",
)
LABORATORY = (
    "verify",
    "timing",
    "report",
    "export",
    "batch",
    "captures",
    "cli",
    "interpreter",
    "ops.registry",
    "ops.arms",
)
LIST_MODULES = "import sys, {name}; print(' '.join(sorted(sys.modules)))"


def loaded_by(name: str) -> set[str]:
    """Modules that a fresh process holds after importing one."""
    code = LIST_MODULES.format(name=name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


class Recorder(Dispatcher):
    """A dispatcher that keeps what the door passes on."""

    def call(self, *arguments: Any, **keywords: Any) -> str:
        self.arguments = inspect.signature(Dispatcher.call).bind(self, *arguments, **keywords).arguments
        return "called"


def arguments(batch: int = 2) -> tuple[torch.Tensor, ...]:
    """q, k, v, cu_seqlens_q and cu_seqlens_k of a small call on the CPU."""
    q, kv = torch.zeros(batch, 24, 256, dtype=torch.bfloat16), torch.zeros(2, 5, 2, 256, dtype=torch.bfloat16)
    return q, kv[0], kv[1], torch.arange(batch + 1, dtype=torch.int32), torch.arange(batch + 1, dtype=torch.int32)


def test_import_loads_neither_laboratory_nor_heavy_packages() -> None:
    """A serving process that imports the door gets nothing heavy beyond what torch itself loads, and no laboratory."""
    loaded, torch_only = loaded_by("kda_lab.qsa"), loaded_by("torch")
    assert "kda_lab.qsa" in loaded
    assert [name for name in HEAVY if name in loaded - torch_only] == []
    assert [name for name in LABORATORY if f"kda_lab.{name}" in loaded] == []


def test_door_passes_every_argument_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors go in the op's order, scalars under the op's names, `out` and the forced kernel as given."""
    recorder = Recorder()
    monkeypatch.setattr(qsa, "DISPATCHER", recorder)
    tensors, out = arguments(), torch.zeros(2, 24, 256, dtype=torch.bfloat16)
    assert qsa.packed_decode(*tensors, max_seqlen_k=7, softmax_scale=0.5, out=out, kernel="grouped") == "called"
    seen = recorder.arguments
    assert seen["spec"] is SPEC
    assert all(a is b for a, b in zip(seen["tensors"], tensors, strict=True))
    assert seen["scalars"] == {"max_seqlen_k": 7, "softmax_scale": 0.5, "max_seqlen_q": 1}
    assert seen["outputs"]["out"] is out
    assert seen["kernel"] == "grouped"


def test_signature_is_that_of_the_op() -> None:
    """Positional tensors and keyword-only scalars and outputs are those of the op's specification, plus `kernel`."""
    for door in (qsa.packed_decode, qsa.explain_packed_decode):
        parameters = inspect.signature(door).parameters.values()
        positional = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        keyword = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        assert positional == SPEC.tensors
        assert keyword == {*SPEC.scalars, *SPEC.outputs, "kernel"}


def test_docstring_has_every_heading_in_order() -> None:
    """The door's docstring has the fixed headings, none left out."""
    headings = re.findall(r"^    ([A-Z][a-z]+):", qsa.packed_decode.__doc__ or "", re.MULTILINE)
    assert headings == ["Axes", "Args", "Returns", "Raises", "Numerics", "Work", "Launch", "Source"]


@pytest.mark.parametrize("rows", [2, 0, True, "1", None, 1.0])
def test_more_than_one_query_row_is_refused_by_the_op(
    rows: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Any max_seqlen_q but the int 1 raises with the op's own words, even where no kernel is exported."""
    monkeypatch.setattr(qsa, "DISPATCHER", Dispatcher(tmp_path))
    words = rf"unsupported QSA call: max_seqlen_q is {re.escape(repr(rows))}; allowed: 1\. QSA requires max_seqlen_q=1"
    with pytest.raises(ValueError, match=words):
        qsa.packed_decode(*arguments(), max_seqlen_k=5, max_seqlen_q=rows)


def test_a_tensor_for_max_seqlen_q_is_refused_without_reading_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A tensor in place of the int is named by its type; its value, which may be on a GPU, is not asked for."""
    monkeypatch.setattr(qsa, "DISPATCHER", Dispatcher(tmp_path))
    unreadable = torch.ones((), dtype=torch.int32, device="meta")
    with pytest.raises(ContractError, match="max_seqlen_q is a Tensor; allowed: 1"):
        qsa.packed_decode(*arguments(), max_seqlen_k=5, max_seqlen_q=unreadable)  # type: ignore[arg-type]


def test_unsupported_call_opens_with_the_ops_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a kernel that may run, the call raises a ValueError and there is no fallback."""
    monkeypatch.setattr(qsa, "DISPATCHER", Dispatcher(tmp_path))
    with pytest.raises(ValueError, match=r"^qsa\.packed_decode: unsupported QSA call: kernels is none exported"):
        qsa.packed_decode(*arguments(), max_seqlen_k=5)


def test_unknown_kernel_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A forced name that is not exported is a parameter error of the op."""
    monkeypatch.setattr(qsa, "DISPATCHER", Dispatcher(tmp_path))
    with pytest.raises(
        ParameterError, match=r"qsa\.packed_decode: kernel is 'nowhere'; allowed: none, since no kernel is exported"
    ):
        qsa.packed_decode(*arguments(), max_seqlen_k=5, kernel="nowhere")


def test_explain_takes_the_same_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The explanation of a call prints what calling would do and counts nothing."""
    monkeypatch.setattr(qsa, "DISPATCHER", Dispatcher(tmp_path))
    text = str(qsa.explain_packed_decode(*arguments(), max_seqlen_k=5, max_seqlen_q=2))
    assert text.splitlines()[0] == "qsa.packed_decode: raises ContractError (unsupported QSA call)"
    assert "every kernel: max_seqlen_q is 2; allowed: 1. QSA requires max_seqlen_q=1" in text
    assert qsa.statistics().misses == {}


def test_statistics_of_the_door_are_those_of_its_dispatcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Refusals are counted through the door, and reset through it; preparing an empty folder imports nothing."""
    monkeypatch.setattr(qsa, "DISPATCHER", Dispatcher(tmp_path))
    with pytest.raises(ContractError):
        qsa.packed_decode(*arguments(), max_seqlen_k=5)
    assert list(qsa.statistics().misses.values()) == [1]
    qsa.reset_statistics()
    assert qsa.statistics().misses == {}
    assert qsa.prepare() == ()


def test_shipped_kernels_refuse_a_cpu_call() -> None:
    """With the kernels that the package ships, a call on the CPU is refused: dispatch serves GPUs."""
    with pytest.raises(ContractError, match="unsupported QSA call"):
        qsa.packed_decode(*arguments(), max_seqlen_k=5)
    assert (Path(kda_lab.__file__).parent / "kernels").is_dir()


STAGES = ("compress_keys", "block_scores", "topk_blocks", "expand_blocks", "compact_kv", "paged_decode")
"""Stages with a torch function to fall back to; packed decode has none."""


def stage_call(name: str) -> Call:
    """A small call of a stage on the CPU."""
    cases = load_op(f"qsa.{name}").cases
    edges = cases.edge_calls(3)
    return edges["holes"] if "holes" in edges else next(iter(edges.values()))


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_has_the_signature_of_its_op(name: str) -> None:
    """Tensors in the op's order, scalars and outputs by keyword, and the forced kernel; all headings in its docstring."""
    door, spec = getattr(qsa, name), qsa.STAGES[name]
    parameters = inspect.signature(door).parameters.values()
    assert tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD) == spec.tensors
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == {*spec.scalars, *spec.outputs, "kernel"}
    headings = re.findall(r"^    ([A-Z][a-z]+):", door.__doc__ or "", re.MULTILINE)
    assert headings == ["Axes", "Args", "Returns", "Raises", "Numerics", "Work", "Launch", "Source"]


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_passes_every_argument_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors in order, each scalar and each output under its own name, the forced kernel as given."""
    recorder, spec = Recorder(), qsa.STAGES[name]
    monkeypatch.setattr(qsa, "DISPATCHER", recorder)
    tensors = [torch.zeros(2, 3) for _ in spec.tensors]
    scalars = {scalar: 2 + i for i, scalar in enumerate(spec.scalars)}
    outputs = {output: torch.zeros(1) for output in spec.outputs}
    assert getattr(qsa, name)(*tensors, **scalars, **outputs, kernel="mine") == "called"
    seen = recorder.arguments
    assert seen["spec"] is spec
    assert all(a is b for a, b in zip(seen["tensors"], tensors, strict=True))
    assert seen["scalars"] == scalars
    assert list(seen["outputs"]) == list(spec.outputs)
    assert all(seen["outputs"][output] is outputs[output] for output in outputs)
    assert seen["kernel"] == "mine"


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_falls_back_to_torch_on_a_cpu(name: str) -> None:
    """No kernel serves a CPU: the torch function runs, is counted, and is within the op's own gate of its oracle."""
    qsa.reset_statistics()
    call, op = stage_call(name), load_op(f"qsa.{name}")
    tensors, right = tuple(call.inputs.values()), op.oracle.oracle_fp32(call)
    found = getattr(qsa, name)(*tensors, **call.scalars, **call.outputs)
    found = found if isinstance(found, tuple) else (found,)
    for mine, (output, wanted) in zip(found, right.items(), strict=True):
        assert mine is call.outputs[output]
        assert rel_l2(mine, wanted) < 5e-3
    assert sum(qsa.statistics().fallbacks.values()) == 1
    text = str(qsa.explain(name, tensors, call.scalars))
    assert text.splitlines()[0] == f"qsa.{name}: fallback qsa_{name}_torch"
    qsa.reset_statistics()


def test_a_call_outside_of_everything_is_refused_with_the_words_of_its_op() -> None:
    """Where not even the torch function takes a call it raises, with the stage's opening and each wrong field."""
    scores, lengths = torch.zeros(2, 8, dtype=torch.float64), torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ContractError, match=r"^qsa\.topk_blocks: unsupported QSA top-k call: .*scores\.dtype"):
        qsa.topk_blocks(scores, lengths, k=4)


def test_a_buffer_of_another_width_is_refused() -> None:
    """What k or the ratio says of an output's width is demanded of a given buffer, whatever kernels there are."""
    lengths = torch.zeros(2, dtype=torch.int32)
    wide = torch.zeros(2, 5, dtype=torch.int32)
    with pytest.raises(ContractError, match=r"blocks\.shape\[1\] is 5; allowed: 4"):
        qsa.topk_blocks(torch.zeros(2, 8), lengths, k=4, blocks=wide)
    with pytest.raises(ContractError, match=r"tokens\.shape\[1\] is 5; allowed: 11"):
        qsa.expand_blocks(torch.zeros(2, 2, dtype=torch.int32), lengths, lengths, tokens=wide)


def test_a_buffer_given_twice_is_refused() -> None:
    """Two outputs in one buffer would lose one; the same call with two buffers is served, before and behind it."""
    call = stage_call("compact_kv")
    tensors, packed = tuple(call.inputs.values()), call.outputs["packed_k"]
    for other in (packed.clone(), packed, packed.clone()):
        before = packed.clone()
        if other is packed:
            with pytest.raises(ContractError, match=r"packed_v is the memory of packed_k; allowed: memory of its own"):
                qsa.compact_kv(*tensors, packed_k=packed, packed_v=other)
            assert torch.equal(packed, before)
        else:
            qsa.compact_kv(*tensors, packed_k=packed, packed_v=other)
    outputs = {"packed_k": packed, "packed_v": packed}
    assert "packed_v is the memory of packed_k" in str(qsa.explain("compact_kv", tensors, {}, outputs))
    qsa.reset_statistics()


def test_explain_asks_the_rules_of_a_stage() -> None:
    """What a function refuses by the op's own rule, its explanation refuses in the same words."""
    lengths, wide = torch.zeros(2, dtype=torch.int32), torch.zeros(2, 5, dtype=torch.int32)
    text = str(qsa.explain("topk_blocks", (torch.zeros(2, 8), lengths), {"k": 4}, {"blocks": wide}))
    assert text.startswith("qsa.topk_blocks: raises ContractError")
    assert "every kernel: blocks.shape[1] is 5; allowed: 4." in text


def test_an_unknown_stage_cannot_be_explained() -> None:
    """The stages are listed."""
    with pytest.raises(ParameterError, match="qsa: stage is 'attend'; allowed: 'compress_keys', 'block_scores'"):
        qsa.explain("attend", ())


def test_the_stages_work_together() -> None:
    """Selection, expansion and compaction of one row: the tokens of its two best blocks, and its tail."""
    scores, count = torch.tensor([[1.0, 9.0, 3.0]]), torch.tensor([3], dtype=torch.int32)
    length = torch.tensor([14], dtype=torch.int32)
    blocks = qsa.topk_blocks(scores, count, k=2)
    tokens = qsa.expand_blocks(blocks, length, length - 1)
    assert tokens.tolist() == [[4, 5, 6, 7, 8, 9, 10, 11, 12, 13, -1]]
    pool = torch.arange(16).bfloat16()[:, None, None].expand(16, 1, 256).contiguous()
    table = torch.arange(15, -1, -1, dtype=torch.int32)[None]
    k, v, ends = qsa.compact_kv(tokens, length, torch.zeros_like(length), table, pool, -pool)
    assert ends.tolist() == [0, 10]
    assert k[:, 0, 0].tolist() == [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 0]
    assert torch.equal(v, -k)
