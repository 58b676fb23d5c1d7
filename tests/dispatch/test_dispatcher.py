"""The dispatcher on one call: order of selection, fallbacks, switches, and errors that are never replaced."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kda_lab.contracts.facts import CallFacts
from kda_lab.dispatch.dispatcher import Dispatcher
from kda_lab.dispatch.fallback import FallbackFunction
from kda_lab.errors import ContractError, KernelLoadError, ParameterError, Reason
from kda_lab.ops.protocol import OpSpec

Write = Callable[..., Path]
Run = Callable[..., Any]


def x(rows: int = 4, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """An input [rows, 8]."""
    return torch.zeros(rows, 8, dtype=dtype)


def test_matching_kernel_serves_the_call(write_kernel: Write, run: Run) -> None:
    """A call inside the dispatched shapes of one kernel gets that kernel's result."""
    write_kernel("alpha")
    assert run() == "alpha"


def test_kernel_gets_the_arguments_of_the_op(write_kernel: Write, run: Run) -> None:
    """Tensors go by position, scalars and outputs by name, and the kernel's return value comes back."""
    write_kernel("alpha", source="def scale(x, w, *, factor, out): return x, w.shape, factor, out\n")
    given, out = x(), x()
    got_x, w_shape, factor, got_out = run(x=given, factor=3, out=out)
    assert got_x is given
    assert got_out is out
    assert (w_shape, factor) == ((8,), 3)


def test_no_match_raises_with_all_reasons_and_kernels(write_kernel: Write, run: Run) -> None:
    """An op without fallback raises, opening with its words, and names the kernels behind each reason."""
    write_kernel("alpha")
    write_kernel("beta", scalars={"factor": {"kind": "int", "minimum": 5}})
    with pytest.raises(ContractError) as caught:
        run(x=x(dtype=torch.float16), factor=2)
    assert str(caught.value) == (
        "toy.scale: unsupported toy call: x.dtype is torch.float16; allowed: torch.bfloat16. Cast x. (kernel alpha, beta) "
        "factor is 2; allowed: an int >= 5. (kernel beta)"
    )
    assert [reason.field for reason in caught.value.reasons] == ["x.dtype", "factor"]


def test_a_refusal_is_a_value_error_and_survives_pickling(write_kernel: Write, run: Run) -> None:
    """Callers may catch ValueError, and a refusal crosses process borders with its words and reasons."""
    write_kernel("alpha")
    with pytest.raises(ValueError, match="unsupported toy call") as caught:
        run(factor=0)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.reasons) == (str(caught.value), caught.value.reasons)


def test_cached_refusal_raises_a_new_error_each_time(write_kernel: Write, run: Run) -> None:
    """A refusal that is found in the cache has the same words but is another exception object."""
    write_kernel("alpha")
    errors = []
    for _ in range(2):
        with pytest.raises(ContractError) as caught:
            run(factor=0)
        errors.append(caught.value)
    assert str(errors[0]) == str(errors[1])
    assert errors[0] is not errors[1]


def test_no_kernel_exported_is_said(run: Run) -> None:
    """An empty folder refuses the call and says that nothing is exported."""
    with pytest.raises(
        ContractError,
        match=r"unsupported toy call: kernels is none exported for this op; allowed: at least one\. Export",
    ):
        run()


def test_fallback_runs_when_nothing_matches(
    write_kernel: Write, run: Run, chain_spec: OpSpec, dispatcher: Dispatcher
) -> None:
    """An op with a chain gets the first fallback that exists here, and both the miss and the fallback are counted."""
    write_kernel("alpha")
    assert run(chain_spec) == "alpha"
    assert run(chain_spec, factor=0) == "plain"
    statistics = dispatcher.statistics()
    assert statistics.fallbacks == {"toy.scale: plain": 1}
    assert list(statistics.misses.values()) == [1]


def test_a_fallback_kernel_serves_what_no_other_takes(
    write_kernel: Write, run: Run, dispatcher: Dispatcher, spec: OpSpec
) -> None:
    """An exported kernel named in the chain runs by its callable shapes, is loaded by its hash, and is counted as a fallback."""
    chain = replace(spec, fallback=("portable",))
    write_kernel("fast")
    write_kernel("portable", dispatched=[])
    assert [run(chain), run(chain, rows=9), run(chain, rows=9)] == ["fast", "portable", "portable"]
    statistics = dispatcher.statistics()
    assert (statistics.hits, statistics.fallbacks) == ({"toy.scale: fast": 1}, {"toy.scale: portable": 2})
    ((miss, count),) = statistics.misses.items()
    assert miss.startswith("toy.scale: x.shape[0] (T) is 9; allowed: 1..8.")
    assert miss.endswith("(kernel fast) -> fallback portable")
    assert count == 2


def test_an_exhausted_chain_raises_with_the_reasons_of_every_member(
    write_kernel: Write, spec: OpSpec, tmp_path: Path, gpu: Any
) -> None:
    """When nobody takes the call, the error names the kernels' reasons and each fallback's, by name."""
    write_kernel("fast")
    write_kernel("portable", dispatched=[])
    no = Reason("device.capability", "9.0", "exactly 12.0")
    library = FallbackFunction("library", lambda *a, **k: "library", lambda facts: (no,))
    chain = replace(spec, fallback=("library", "portable", "absent"))
    with pytest.raises(ContractError) as caught:
        Dispatcher(tmp_path / "kernels", [library], gpu).call(
            chain, (x(65), torch.zeros(8)), {"factor": 2}, {"out": None}
        )
    text = str(caught.value)
    assert text.startswith(
        "toy.scale: unsupported toy call: x.shape[0] (T) is 65; allowed: 1..8. Dispatched: D=8 T=1..8."
    )
    assert "device.capability is 9.0; allowed: exactly 12.0. (fallback library)" in text
    assert "x.shape[0] (T) is 65; allowed: 1..64. Callable: D=8 T=1..64. (fallback portable)" in text
    assert text.endswith("Export it with kda-lab export. (fallback absent)")


def test_an_error_of_a_fallback_comes_through(write_kernel: Write, run: Run, spec: OpSpec) -> None:
    """A fallback that raises is not replaced by the next one."""
    chain = replace(spec, fallback=("portable", "plain"))
    write_kernel("portable")
    with pytest.raises(RuntimeError, match="thirteen"):
        run(chain, factor=13)


def test_a_tampered_fallback_kernel_is_not_passed_over(write_kernel: Write, run: Run, spec: OpSpec) -> None:
    """A portable kernel that was edited after its export is loud, though a function stands behind it."""
    folder = write_kernel("portable")
    (folder / "kernel.py").write_text("def scale(x, w, *, factor, out): return 'evil'\n")
    with pytest.raises(KernelLoadError, match=r"portable/kernel\.py sha256"):
        run(replace(spec, fallback=("portable", "plain")))


def test_no_fallback_function_raises(write_kernel: Write, chain_spec: OpSpec, tmp_path: Path, gpu: Any) -> None:
    """A chain whose names have no function here raises instead of doing nothing."""
    write_kernel("alpha")
    with pytest.raises(ContractError, match="unsupported toy call"):
        Dispatcher(tmp_path / "kernels", (), gpu).call(chain_spec, (x(), torch.zeros(8)), {"factor": 0}, {"out": None})


def most_two(facts: CallFacts) -> list[Reason]:
    """A rule of the toy op."""
    factor = facts.scalars["factor"]
    return [Reason("factor", repr(factor), "at most 2", "The op itself says so.")] if factor > 2 else []


def test_the_rule_of_an_op_refuses_whatever_the_kernels_say(
    write_kernel: Write, chain_spec: OpSpec, gpu: Any, tmp_path: Path
) -> None:
    """A call that breaks it raises though a kernel would match and a fallback exists, and explanations say the same."""
    write_kernel("alpha")
    plain = FallbackFunction("plain", lambda *a, **k: "plain", lambda facts: ())
    dispatcher = Dispatcher(tmp_path / "kernels", [plain], gpu, {chain_spec.name: most_two})
    right, wrong = ((chain_spec, (x(), torch.zeros(8)), {"factor": factor}, {"out": None}) for factor in (2, 3))
    words = r"unsupported toy call: factor is 3; allowed: at most 2\. The op itself says so\.$"
    for _ in range(2):
        assert dispatcher.call(*right) == "alpha"
        for kernel in (None, "alpha"):
            with pytest.raises(ContractError, match=words):
                dispatcher.call(*wrong, kernel)
    facts = gpu(chain_spec, {"x": x(), "w": torch.zeros(8)}, {"factor": 3}, {})
    for said in (dispatcher.explain(*wrong), dispatcher.explain_facts(chain_spec, facts)):
        assert (said.outcome, said.choice.general[0].field) == ("raises ContractError (unsupported toy call)", "factor")
    assert dispatcher.explain(*right).outcome == "kernel alpha"


def test_a_rule_is_asked_once_for_each_selection(
    write_kernel: Write, chain_spec: OpSpec, gpu: Any, tmp_path: Path
) -> None:
    """It is asked where no selection is cached, its refusal is kept as well, and other ops are not its concern."""
    write_kernel("alpha")
    write_kernel("other", op="toy.other")
    asked: list[Any] = []

    def rule(facts: CallFacts) -> list[Reason]:
        asked.append(facts.scalars["factor"])
        return most_two(facts)

    dispatcher = Dispatcher(tmp_path / "kernels", (), gpu, {chain_spec.name: rule})
    tensors, other = (x(), torch.zeros(8)), replace(chain_spec, name="toy.other")
    for _ in range(2):
        assert dispatcher.call(chain_spec, tensors, {"factor": 2}, {"out": None}) == "alpha"
        with pytest.raises(ContractError, match="factor is 3; allowed: at most 2"):
            dispatcher.call(chain_spec, tensors, {"factor": 3}, {"out": None})
        assert dispatcher.call(other, tensors, {"factor": 3}, {"out": None}) == "other"
    assert asked == [2, 3]


def test_a_rule_that_breaks_serves_nobody(write_kernel: Write, spec: OpSpec, gpu: Any, tmp_path: Path) -> None:
    """Its error comes through, each time: nothing runs unjudged, and nothing is cached."""
    write_kernel("alpha")

    def broken(facts: CallFacts) -> list[Reason]:
        raise ZeroDivisionError

    dispatcher = Dispatcher(tmp_path / "kernels", (), gpu, {spec.name: broken})
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            dispatcher.call(spec, (x(), torch.zeros(8)), {"factor": 2}, {"out": None})


def test_two_matches_are_an_error_that_names_both(write_kernel: Write, run: Run, chain_spec: OpSpec) -> None:
    """When two kernels claim a call nothing is guessed and no fallback hides it; forcing one resolves it."""
    write_kernel("alpha")
    write_kernel("beta")
    for spec in (None, chain_spec):
        with pytest.raises(
            ContractError,
            match=r"kernels is claimed by 'alpha' and 'beta'; allowed: one kernel a call\. Force one with kernel='alpha'",
        ):
            run(spec) if spec else run()
    assert run(kernel="beta") == "beta"


def test_two_kernels_share_an_op_by_shape(write_kernel: Write, run: Run) -> None:
    """Kernels with disjoint dispatched shapes serve one op together."""
    write_kernel("small", dispatched=[{"axes": {"D": 8, "T": {"minimum": 1, "maximum": 4}}}])
    write_kernel("large", dispatched=[{"axes": {"D": 8, "T": {"minimum": 5, "maximum": 64}}}])
    assert [run(rows=rows) for rows in (1, 4, 5, 64)] == ["small", "small", "large", "large"]


def test_forced_kernel_is_judged_by_callable_shapes(write_kernel: Write, run: Run) -> None:
    """Forcing a kernel reaches its wider callable set and no further."""
    write_kernel("alpha")
    with pytest.raises(
        ContractError,
        match=r"x\.shape\[0\] \(T\) is 9; allowed: 1\.\.8\. Dispatched: D=8 T=1\.\.8\. Force it with kernel='alpha'",
    ):
        run(rows=9)
    assert run(rows=9, kernel="alpha") == "alpha"
    with pytest.raises(ContractError, match=r"x\.shape\[0\] \(T\) is 65; allowed: 1\.\.64"):
        run(rows=65, kernel="alpha")


def test_forced_kernel_that_refuses_is_not_replaced(write_kernel: Write, run: Run, chain_spec: OpSpec) -> None:
    """A forced kernel outside its contract raises even where another kernel or a fallback could serve."""
    write_kernel("alpha")
    write_kernel("beta", scalars={"factor": {"kind": "int", "minimum": 5}})
    with pytest.raises(ContractError, match=r"factor is 2; allowed: an int >= 5\. \(kernel beta\)"):
        run(chain_spec, kernel="beta")


def test_unknown_forced_kernel_lists_the_names(write_kernel: Write, run: Run) -> None:
    """A forced name that no kernel of the op has is an error with the names there are."""
    write_kernel("alpha")
    write_kernel("beta")
    write_kernel("other", op="toy.other")
    for name in ("gamma", "other"):
        with pytest.raises(ParameterError, match=rf"toy\.scale: kernel is '{name}'; allowed: 'alpha', 'beta'\."):
            run(kernel=name)


def test_a_forced_name_that_is_no_string_is_refused(write_kernel: Write, run: Run) -> None:
    """A list in place of a name is refused by its type, not a crash of the cache."""
    write_kernel("alpha")
    with pytest.raises(ParameterError, match=r"kernel is a list; allowed: 'alpha'\."):
        run(kernel=["alpha"])


@pytest.mark.parametrize(
    ("kernel", "given"), [(10**5000, "an int of 16610 bits"), ("a" * 10**6, "'aaa")], ids=["int", "text"]
)
def test_a_forced_name_of_any_size_is_shown_short(write_kernel: Write, run: Run, kernel: Any, given: str) -> None:
    """The message names what was given in a few words; Python refuses to print such an int."""
    write_kernel("alpha")
    with pytest.raises(ParameterError, match=f"kernel is {given}") as caught:
        run(kernel=kernel)
    assert len(str(caught.value)) < 200


def test_environment_forces_a_kernel(write_kernel: Write, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """KDA_LAB_KERNEL forces a kernel from the next call on, and the argument goes before it."""
    write_kernel("alpha")
    write_kernel("beta", dispatched=[])
    assert run() == "alpha"
    monkeypatch.setenv("KDA_LAB_KERNEL", "beta")
    assert run() == "beta"
    assert run(kernel="alpha") == "alpha"
    monkeypatch.delenv("KDA_LAB_KERNEL")
    assert run() == "alpha"


def test_environment_forces_only_where_the_kernel_implements_the_op(
    write_kernel: Write, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of another op's kernel changes nothing here; a name of no kernel at all is an error."""
    write_kernel("alpha")
    write_kernel("other", op="toy.other")
    monkeypatch.setenv("KDA_LAB_KERNEL", "other")
    assert run() == "alpha"
    monkeypatch.setenv("KDA_LAB_KERNEL", "gamma")
    with pytest.raises(
        ParameterError, match=r"toy\.scale: KDA_LAB_KERNEL is 'gamma'; allowed: 'alpha', 'other' or unset\."
    ):
        run()


def test_dispatch_off_disables_every_kernel(
    write_kernel: Write, run: Run, chain_spec: OpSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KDA_LAB_DISPATCH=off lets only fallbacks run, from the next call on and for forced kernels too."""
    write_kernel("alpha")
    assert run() == "alpha"
    monkeypatch.setenv("KDA_LAB_DISPATCH", "off")
    assert run(chain_spec) == "plain"
    for kernel in (None, "alpha"):
        with pytest.raises(
            ContractError,
            match=r"unsupported toy call: KDA_LAB_DISPATCH is 'off'; allowed: 'on' or unset\. Unset KDA_LAB_DISPATCH",
        ):
            run(kernel=kernel)
    monkeypatch.setenv("KDA_LAB_KERNEL", "alpha")
    assert run(chain_spec) == "plain"
    monkeypatch.setenv("KDA_LAB_DISPATCH", "on")
    assert run() == "alpha"


@pytest.mark.parametrize(
    ("name", "allowed"), [("KDA_LAB_DISPATCH", "'on', 'off' or unset"), ("KDA_LAB_ALLOW_COMPILED", "'0', '1' or unset")]
)
def test_misspelt_switch_is_an_error(
    name: str, allowed: str, write_kernel: Write, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A switch with a value that is not listed raises; it never counts as on or off."""
    write_kernel("alpha")
    monkeypatch.setenv(name, "of")
    with pytest.raises(ParameterError, match=rf"dispatch: {name} is 'of'; allowed: {allowed}\."):
        run()


def test_compiled_architecture_needs_the_opt_in(
    write_kernel: Write, run: Run, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An architecture that was only compiled for is refused, forced or not, until the opt-in is set."""
    write_kernel("alpha")
    gpu.capability = (12, 0)
    for kernel in (None, "alpha"):
        with pytest.raises(
            ContractError, match=r"device\.capability is 12\.0; allowed: exactly 9\.0\..*Set KDA_LAB_ALLOW_COMPILED=1"
        ):
            run(kernel=kernel)
    monkeypatch.setenv("KDA_LAB_ALLOW_COMPILED", "1")
    assert run() == "alpha"


@pytest.mark.parametrize("capability", [(12, 1), (9, 1), (8, 9), (10, 0)])
def test_near_capability_is_not_served(
    capability: tuple[int, int], write_kernel: Write, run: Run, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only exact pairs count, even with the opt-in: 12.1 is not 12.0 and 9.1 is not 9.0."""
    write_kernel("alpha")
    monkeypatch.setenv("KDA_LAB_ALLOW_COMPILED", "1")
    gpu.capability = capability
    with pytest.raises(
        ContractError, match=rf"device\.capability is {capability[0]}\.{capability[1]}; allowed: exactly 9\.0 or 12\.0"
    ):
        run()


def test_tampered_kernel_raises_at_its_first_call(write_kernel: Write, run: Run, chain_spec: OpSpec) -> None:
    """A kernel whose source changed after its export is not run and not replaced by a fallback, however often it is called."""
    folder = write_kernel("alpha")
    (folder / "kernel.py").write_text("def scale(x, w, *, factor, out): return 'evil'\n")
    for _ in range(2):
        with pytest.raises(KernelLoadError, match=r"alpha/kernel\.py sha256"):
            run(chain_spec)


def test_an_error_of_the_kernel_comes_through(
    write_kernel: Write, run: Run, chain_spec: OpSpec, dispatcher: Dispatcher
) -> None:
    """A kernel that raises inside its contract raises to the caller: no fallback, no second kernel, no retry."""
    write_kernel("alpha")
    with pytest.raises(RuntimeError, match="thirteen"):
        run(chain_spec, factor=13)
    assert dispatcher._load(dispatcher.folders()[0], chain_spec).module.CALLS == [13]
    assert dispatcher.statistics().fallbacks == {}


def test_a_chain_that_is_not_the_ops_is_refused_when_the_kernel_is_loaded(
    write_kernel: Write, run: Run, chain_spec: OpSpec, dispatcher: Dispatcher
) -> None:
    """A contract that promises other fallbacks than run is refused by a call and by `prepare`, before any import."""
    write_kernel("alpha", "1 / 0\n", fallback={"kind": "chain", "chain": ["plain", "absent"]})
    words = r"dispatch: alpha\.fallback is chain plain, absent; allowed: chain absent, plain, as toy\.scale has it"
    with pytest.raises(KernelLoadError, match=words):
        run(chain_spec)
    with pytest.raises(KernelLoadError, match=words):
        dispatcher.prepare(chain_spec)


def test_a_kernel_with_the_name_of_a_registered_function_is_refused(
    write_kernel: Write, run: Run, dispatcher: Dispatcher
) -> None:
    """A chain's name must mean one thing: the first call that reads the contracts says so, and every later one."""
    write_kernel("alpha")
    write_kernel("plain")
    for _ in range(2):
        with pytest.raises(
            KernelLoadError, match=r"is 'plain'; allowed: a name that no registered fallback function has"
        ):
            run()
