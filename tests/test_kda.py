"""The KDA door: what importing it loads, what it passes on, what it falls back to, and how it refuses."""

from __future__ import annotations

import inspect
import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kda_lab import kda
from kda_lab.captures.kda import kda_ops
from kda_lab.contracts.facts import CallFacts
from kda_lab.dispatch.dispatcher import DISPATCHER, Dispatcher
from kda_lab.errors import ContractError, ParameterError, Reason
from kda_lab.ops.protocol import Call
from kda_lab.ops.registry import load_op
from kda_lab.timing.recheck import poison
from kda_lab.verify.metrics import element_max, rel_l2

OPS = tuple(kda.OPS)
HEAVY = ("triton", "flashinfer", "fla", "scipy", "pandas", "matplotlib", "IPython", "papermill", "pyarrow")
LABORATORY = ("verify", "timing", "report", "export", "batch", "captures", "cli", "interpreter", "ops.registry")
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


def own_outputs(name: str) -> list[str]:
    """Outputs of an op that it does not update in place."""
    spec = kda.OPS[name]
    return [output for output in spec.outputs if output not in spec.tensors]


def small_call(name: str) -> Call:
    """The first small call of an op's captures, on the CPU."""
    cases = load_op(f"kda.{name}").cases
    return cases.synthesise(cases.capture_rows()[0], 3, "cpu")


def given(call: Call) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Positional and keyword arguments of a call of the door, on the memory in `call.outputs`."""
    spec = load_op(call.op).spec
    tensors = [call.outputs[n] if n in call.updated else call.inputs[n] for n in spec.tensors]
    return tensors, {**call.scalars, **{n: t for n, t in call.outputs.items() if n not in call.updated}}


def test_import_loads_neither_laboratory_nor_heavy_packages() -> None:
    """A serving process that imports the door gets nothing heavy beyond what torch itself loads, and no laboratory."""
    loaded, torch_only = loaded_by("kda_lab.kda"), loaded_by("torch")
    assert "kda_lab.kda" in loaded
    assert [name for name in HEAVY if name in loaded - torch_only] == []
    assert [name for name in LABORATORY if f"kda_lab.{name}" in loaded] == []


def test_every_op_of_the_family_has_its_function() -> None:
    """The door holds the ops that there are, each under the name of its function."""
    assert sorted(spec.name for spec in kda.OPS.values()) == list(kda_ops())
    assert all(callable(getattr(kda, name)) for name in OPS)


@pytest.mark.parametrize("name", OPS)
def test_a_function_has_the_signature_of_its_op(name: str) -> None:
    """Tensors in the op's order, scalars and outputs by keyword, what is updated once, and the forced kernel."""
    door, spec = getattr(kda, name), kda.OPS[name]
    parameters = inspect.signature(door).parameters.values()
    assert tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD) == spec.tensors
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == {*spec.scalars, *own_outputs(name), "kernel"}
    headings = re.findall(r"^    ([A-Z][a-z]+):", door.__doc__ or "", re.MULTILINE)
    assert headings == ["Axes", "Args", "Returns", "Raises", "Numerics", "Work", "Launch", "Source"]


@pytest.mark.parametrize("name", OPS)
def test_a_function_passes_every_argument_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors in order, each scalar and output under its own name, nothing that is updated twice, the forced kernel."""
    recorder, spec = Recorder(), kda.OPS[name]
    monkeypatch.setattr(kda, "DISPATCHER", recorder)
    tensors = [torch.zeros(2, 3) for _ in spec.tensors]
    scalars = {scalar: -1.0 - i for i, scalar in enumerate(spec.scalars)}
    outputs = {output: torch.zeros(1) for output in own_outputs(name)}
    assert getattr(kda, name)(*tensors, **scalars, **outputs, kernel="mine") == "called"
    seen = recorder.arguments
    assert seen["spec"] is spec
    assert all(a is b for a, b in zip(seen["tensors"], tensors, strict=True))
    assert seen["scalars"] == scalars
    assert list(seen["outputs"]) == own_outputs(name)
    assert all(seen["outputs"][output] is outputs[output] for output in outputs)
    assert seen["kernel"] == "mine"


@pytest.mark.parametrize("name", OPS)
def test_a_function_asks_the_rule_of_its_op(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The facts of every argument reach the rule under its op's name, and what it says refuses the call."""
    spec, seen = kda.OPS[name], []

    def rule(facts: CallFacts) -> list[Reason]:
        seen.append(facts)
        return [Reason("weather", "rain", "sun")]

    monkeypatch.setattr(kda, "DISPATCHER", Dispatcher(rules={spec.name: rule}))
    tensors, keywords = given(small_call(name))
    with pytest.raises(ContractError, match="weather is rain; allowed: sun"):
        getattr(kda, name)(*tensors, **keywords)
    (facts,) = seen
    assert set(facts.tensors) == {*spec.tensors, *spec.outputs}
    assert set(facts.scalars) == set(spec.scalars)
    assert all(facts.tensors[n].shape == tuple(t.shape) for n, t in zip(spec.tensors, tensors, strict=True))


@pytest.mark.parametrize("name", [name for name in OPS if len(kda.OPS[name].outputs) > 1])
def test_two_written_tensors_in_one_place_are_refused(name: str) -> None:
    """Any two that a call writes, updated in place or given: refused by name, nothing written, and served apart."""
    call = small_call(name)
    tensors, keywords = given(call)
    if name == "attn_residuals":
        keywords.update(write_prefix=True, add_delta=True, valid=0)
    written = {n: t for n, t in call.outputs.items() if t.numel()}
    for one, other in itertools.combinations(written, 2):
        room = torch.zeros(max(t.numel() * t.element_size() for t in written.values()), dtype=torch.uint8)
        both = {n: room.view(written[n].dtype)[: written[n].numel()].view(written[n].shape) for n in (one, other)}
        mine = [both.get(n, t) for n, t in zip(kda.OPS[name].tensors, tensors, strict=True)]
        own = {n: both.get(n, v) for n, v in keywords.items()}
        with pytest.raises(ContractError, match=rf"({one}|{other}) is the memory of ({one}|{other}); allowed"):
            getattr(kda, name)(*mine, **own)
        assert not room.any()
    getattr(kda, name)(*tensors, **keywords)
    kda.reset_statistics()


def test_what_is_only_read_may_be_given_twice() -> None:
    """Neither bank nor stream is written here, so the stream may be the bank's first snapshot."""
    tensors, keywords = given(small_call("attn_residuals"))
    keywords.update(write_prefix=False, add_delta=False, valid=1)
    tensors[1] = tensors[0][:, 0]
    scalars = {n: v for n, v in keywords.items() if n != "out"}
    assert "is the memory of" not in str(kda.explain("attn_residuals", tensors, scalars))
    assert "prefix is the memory of bank" in str(
        kda.explain("attn_residuals", tensors, {**scalars, "write_prefix": True, "add_delta": True})
    )


@pytest.mark.parametrize("name", OPS)
def test_a_function_falls_back_to_torch_on_a_cpu(name: str) -> None:
    """No kernel serves a CPU: the torch function runs, is counted, and is within the op's own gates of its oracle."""
    op = load_op(f"kda.{name}")
    for row in op.cases.capture_rows():
        kda.reset_statistics()
        call = op.cases.synthesise(row, 3, "cpu")
        right, exact = op.oracle.oracle_fp32(call), op.oracle.oracle_fp64(call)
        poison(call)
        call.restore()
        tensors, keywords = given(call)
        getattr(kda, name)(*tensors, **keywords)
        assert list(kda.statistics().fallbacks.values()) == [1]
        allowed = op.oracle.allowance(call, exact)
        for output, found in call.outputs.items():
            assert element_max(found, exact[output], allowed[output]) <= 1
            if output not in call.separately_judged:
                assert rel_l2(found, right[output]) < 1e-2
        text = str(kda.explain(name, tensors, call.scalars))
        assert text.splitlines()[0] == f"kda.{name}: fallback kda_{name}_torch"
    kda.reset_statistics()


@pytest.mark.parametrize("name", OPS)
def test_every_fallback_is_registered(name: str) -> None:
    """The chain that an op names holds its torch function, and the dispatcher knows it."""
    assert kda.OPS[name].fallback == (f"kda_{name}_torch",)
    assert f"kda_{name}_torch" in DISPATCHER._fallbacks


@pytest.mark.parametrize("name", OPS)
def test_outputs_are_allocated_where_none_is_given(name: str) -> None:
    """What is not updated in place need not be given, and comes back with the op's shapes."""
    call = small_call(name)
    tensors, _ = given(call)
    found = getattr(kda, name)(*tensors, **call.scalars)
    found = found if isinstance(found, tuple) else (found,)
    shapes = [call.outputs[n].shape for n in own_outputs(name) or call.updated]
    assert [t.shape for t in found] == shapes


def test_a_call_outside_of_everything_is_refused_with_the_words_of_its_op() -> None:
    """Where not even the torch function takes a call it raises, with each wrong field, and nothing is written."""
    call = small_call("packed_decode")
    tensors, keywords = given(call)
    before, out = call.outputs["state"].clone(), keywords["out"].clone()
    tensors[0] = tensors[0].float()
    with pytest.raises(ContractError, match=r"^kda\.packed_decode: unsupported KDA .*mixed_qkv\.dtype"):
        kda.packed_decode(*tensors, **keywords)
    with pytest.raises(ContractError, match=r"lower_bound is -6\.0; allowed: None"):
        kda.packed_decode(*given(call)[0], **{**keywords, "lower_bound": -6.0})
    assert torch.equal(call.outputs["state"], before) and torch.equal(keywords["out"], out)


def zeroed(tensors: list[torch.Tensor], at: int, axis: int) -> list[torch.Tensor]:
    """The tensors with an extent of 0 in one axis of one of them."""
    shapes = [[0 if (i, a) == (at, axis) else n for a, n in enumerate(t.shape)] for i, t in enumerate(tensors)]
    return [t.new_zeros(shape) for t, shape in zip(tensors, shapes, strict=True)]


@pytest.mark.parametrize("name", OPS)
def test_an_extent_of_zero_is_refused_in_words(name: str) -> None:
    """Any one axis of any tensor, inputs and given outputs: refused or served, never another exception."""
    tensors, keywords = given(small_call(name))
    outputs = [n for n in own_outputs(name) if keywords.get(n) is not None]
    scalars = {n: v for n, v in keywords.items() if n not in outputs}
    every = [*tensors, *(keywords[n] for n in outputs)]
    for at, axis in ((i, a) for i, t in enumerate(every) for a in range(t.dim())):
        changed = zeroed(every, at, axis)
        mine, own = changed[: len(tensors)], dict(zip(outputs, changed[len(tensors) :], strict=True))
        refused = str(kda.explain(name, mine, scalars, own)).splitlines()[0].startswith(f"kda.{name}: raises")
        try:
            getattr(kda, name)(*mine, **scalars, **own)
        except ContractError:
            assert refused
        else:
            assert not refused
    kda.reset_statistics()


@pytest.mark.parametrize("name", OPS)
def test_memory_that_is_written_does_not_overlap_itself(name: str) -> None:
    """What is updated in place and what is given as an output: expanded, or slots less than a slot apart."""
    call = small_call(name)
    tensors, keywords = given(call)
    if name == "attn_residuals":
        keywords.update(write_prefix=True, add_delta=True, valid=0)
    written = {n: t for n, t in call.outputs.items() if t.numel() > 1}
    before = {n: t.clone() for n, t in written.items()}
    for output, tensor in written.items():
        longer = [axis for axis, extent in enumerate(tensor.shape) if extent > 1]
        for step in {0, 1} if longer[1:] else {0}:
            strides = [step if axis == longer[0] else held for axis, held in enumerate(tensor.stride())]
            overlapping = tensor.as_strided(tensor.shape, strides)
            mine = [overlapping if n == output else t for n, t in zip(kda.OPS[name].tensors, tensors, strict=True)]
            own = {n: overlapping if n == output and n not in call.updated else v for n, v in keywords.items()}
            with pytest.raises(ContractError, match=rf"{output}\.strides is .* with a place for each element"):
                getattr(kda, name)(*mine, **own)
    assert all(torch.equal(written[n].nan_to_num(), t.nan_to_num()) for n, t in before.items())
    kda.reset_statistics()


@pytest.mark.parametrize("name", [name for name in OPS if own_outputs(name)])
def test_a_torch_function_that_fails_leaves_what_it_updates(name: str) -> None:
    """An output that cannot be written raises before anything is updated in place, so the call may be made again."""
    call = small_call(name)
    tensors, keywords = given(call)
    before = {n: t.clone() for n, t in zip(kda.OPS[name].tensors, tensors, strict=True)}
    out = keywords["out"]
    keywords["out"] = out.new_zeros([1] * out.dim()).expand(out.shape)
    with pytest.raises(RuntimeError, match="single memory location"):
        DISPATCHER._fallbacks[f"kda_{name}_torch"].run(*tensors, **keywords)
    assert all(torch.equal(t.nan_to_num(), before[n].nan_to_num()) for n, t in zip(before, tensors, strict=True))


@pytest.mark.parametrize("name", OPS)
def test_a_torch_function_writes_as_a_kernel_does_whatever_autograd_says(name: str) -> None:
    """Tensors that require a gradient are written all the same: not one of them, and then an error at the next."""
    plain, tracked = small_call(name), small_call(name)
    for call in (plain, tracked):
        call.restore()
        for tensor in call.outputs.values() if call is tracked else ():
            tensor.requires_grad_()
        tensors, keywords = given(call)
        getattr(kda, name)(*tensors, **keywords)
    assert all(torch.equal(tracked.outputs[n].detach(), t) for n, t in plain.outputs.items())
    kda.reset_statistics()


def test_explain_says_what_a_call_would_raise() -> None:
    """The rules of the op are in the explanation, which launches nothing; unknown names are refused."""
    call = small_call("packed_decode")
    tensors, _ = given(call)
    text = str(kda.explain("packed_decode", tensors, {"lower_bound": 0.5}))
    assert text.splitlines()[0].startswith("kda.packed_decode: raises ContractError")
    assert "lower_bound is 0.5; allowed: None, or a float >= -5 and below 0" in text
    with pytest.raises(ParameterError, match="kda: op is 'decode'; allowed: 'packed_decode', 'fused_decode'"):
        kda.explain("decode", ())
    with pytest.raises(ParameterError, match="number of tensors is 1; allowed: 7"):
        kda.explain("packed_decode", tensors[:1], {"lower_bound": None})


def test_an_unknown_kernel_is_refused() -> None:
    """A forced name that is not exported is a parameter error of the op."""
    tensors, keywords = given(small_call("packed_decode"))
    with pytest.raises(ParameterError, match=r"kda\.packed_decode: kernel is 'nowhere'"):
        kda.packed_decode(*tensors, **keywords, kernel="nowhere")


def test_preparing_an_empty_folder_imports_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without an exported kernel there is nothing to import."""
    monkeypatch.setattr(kda, "DISPATCHER", Dispatcher(tmp_path))
    assert kda.prepare() == ()
