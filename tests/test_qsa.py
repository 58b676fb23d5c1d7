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
from kda_lab.ops.qsa_packed_decode.spec import SPEC

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
    assert (seen["kernel"], seen["demands"]) == ("grouped", ())


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
