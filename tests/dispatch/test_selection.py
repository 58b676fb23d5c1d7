"""Selection as a pure function: forced names, switches, and reasons merged over kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kda_lab.contracts.facts import CallFacts, TensorFacts
from kda_lab.dispatch.fallback import FallbackFunction, FallbackVerdict
from kda_lab.dispatch.loader import read_contracts
from kda_lab.dispatch.selection import Choice, KernelReason, KernelVerdict, Settings, choose, read_settings
from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec("toy.scale", ("x", "w"), ("factor",), ("out",))
FACTS = CallFacts(
    {"x": TensorFacts("bfloat16", (4, 8), (8, 1), "cuda", 0), "w": TensorFacts("float32", (8,), (1,), "cuda", 0)},
    {"factor": 2},
    (9, 0),
)


def verdict(kernel: str, *reasons: Reason) -> KernelVerdict:
    """A kernel's answer with these reasons."""
    return KernelVerdict(kernel, 1, "dispatched", reasons)


def test_one_accepting_kernel_is_the_choice() -> None:
    """The only kernel without a reason takes the call, and no reason is left to report."""
    choice = Choice("toy.scale", (verdict("alpha", Reason("x", "1", "2")), verdict("beta")))
    assert (choice.kernel, choice.reasons()) == ("beta", ())


def test_equal_reasons_of_kernels_become_one() -> None:
    """A reason that several kernels give is printed once, with all their names."""
    shared, own = Reason("x.dtype", "a", "b"), Reason("factor", "0", "1")
    choice = Choice("toy.scale", (verdict("alpha", shared), verdict("beta", shared, own)))
    assert choice.reasons() == (
        KernelReason("x.dtype", "a", "b", "", ("alpha", "beta")),
        KernelReason("factor", "0", "1", "", ("beta",)),
    )
    assert str(choice.reasons()[0]) == "x.dtype is a; allowed: b. (kernel alpha, beta)"


def test_general_reason_replaces_a_kernels_reason_on_the_same_field() -> None:
    """What the op itself says of a field is not repeated by each kernel."""
    general = Reason("max_seqlen_q", "2", "1", "The op says so.")
    choice = Choice("toy.scale", (verdict("alpha", Reason("max_seqlen_q", "2", "an int in 1")),), general=(general,))
    assert choice.reasons() == (general,)


def test_general_reason_overrides_an_accepting_kernel() -> None:
    """A kernel that would accept takes no call that the op refuses."""
    assert Choice("toy.scale", (verdict("alpha"),), general=(Reason("a", "1", "2"),)).kernel == ""


def test_choice_names_every_kernel_of_the_op_only(write_kernel: Callable[..., Path], tmp_path: Path) -> None:
    """Kernels of other ops are not judged; when one is forced, it alone is judged, by its callable shapes."""
    for name, op in (("alpha", "toy.scale"), ("beta", "toy.scale"), ("other", "toy.other")):
        write_kernel(name, op=op)
    folders = read_contracts(tmp_path / "kernels")
    everyone = choose(SPEC, folders, FACTS, Settings())
    forced = choose(SPEC, folders, FACTS, Settings(), "beta")
    assert [(v.kernel, v.shapes) for v in everyone.verdicts] == [("alpha", "dispatched"), ("beta", "dispatched")]
    assert [(v.kernel, v.shapes) for v in forced.verdicts] == [("beta", "callable")]
    assert everyone.accepted == ("alpha", "beta")


def test_forcing_without_any_kernel_says_so() -> None:
    """A forced name where nothing is exported is an error that says there is none to force."""
    with pytest.raises(ParameterError, match=r"kernel is 'alpha'; allowed: none, since no kernel is exported\."):
        choose(SPEC, [], FACTS, Settings(), "alpha")


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The three variables are read, stripped, and default to: nothing forced, on, no opt-in."""
    for name in ("KDA_LAB_KERNEL", "KDA_LAB_DISPATCH", "KDA_LAB_ALLOW_COMPILED"):
        monkeypatch.delenv(name, raising=False)
    assert read_settings() == Settings("", False, False)
    monkeypatch.setenv("KDA_LAB_KERNEL", " alpha ")
    monkeypatch.setenv("KDA_LAB_DISPATCH", "off")
    monkeypatch.setenv("KDA_LAB_ALLOW_COMPILED", "1")
    assert read_settings() == Settings("alpha", True, True)


def test_both_misspelt_switches_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two wrong switches give two reasons."""
    monkeypatch.setenv("KDA_LAB_DISPATCH", "OFF")
    monkeypatch.setenv("KDA_LAB_ALLOW_COMPILED", "yes")
    with pytest.raises(ParameterError) as caught:
        read_settings()
    assert [reason.field for reason in caught.value.reasons] == ["KDA_LAB_DISPATCH", "KDA_LAB_ALLOW_COMPILED"]


def test_selection_needs_no_tensor(
    write_kernel: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A choice is made from facts alone: with every way to make or read a tensor broken it still works."""
    write_kernel("alpha")
    folders = read_contracts(tmp_path / "kernels")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: 1 / 0)
    assert choose(SPEC, folders, FACTS, Settings()).kernel == "alpha"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("KDA_LAB_DISPATCHED", "Did you mean KDA_LAB_DISPATCH?"), ("KDA_LAB_ZZZ___999", "Unset it.")],
)
def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, remedy: str) -> None:
    """A switch that nobody reads would be silently without effect; the nearest known name is the remedy."""
    monkeypatch.setenv(name, "off")
    with pytest.raises(ParameterError, match=f"environment variable is '{name}'; allowed: KDA_LAB_KERNEL, .*") as found:
        read_settings()
    assert str(found.value).endswith(remedy)


CHAIN = replace(SPEC, fallback=("library", "portable"))


def library(*reasons: Reason) -> dict[str, FallbackFunction]:
    """A registered fallback called `library` that gives these reasons."""
    return {"library": FallbackFunction("library", lambda *a, **k: None, lambda facts: reasons)}


def test_a_fallback_kernel_does_not_compete(write_kernel: Callable[..., Path], tmp_path: Path) -> None:
    """A kernel of the chain takes no call from another one, though its dispatched shapes hold too."""
    write_kernel("fast")
    write_kernel("portable")
    choice = choose(CHAIN, read_contracts(tmp_path / "kernels"), FACTS, Settings(), functions=library())
    assert ([v.kernel for v in choice.verdicts], choice.kernel, choice.chain) == (["fast"], "fast", ())


def test_the_chain_is_asked_when_no_kernel_accepts(write_kernel: Callable[..., Path], tmp_path: Path) -> None:
    """The function's reasons are kept, and the kernel behind it takes the call."""
    write_kernel("fast", scalars={"factor": {"kind": "int", "minimum": 5}})
    write_kernel("portable", dispatched=[])
    no = Reason("device.capability", "9.0", "exactly 12.0")
    choice = choose(CHAIN, read_contracts(tmp_path / "kernels"), FACTS, Settings(), functions=library(no))
    assert choice.fallback == FallbackVerdict("portable", "kernel", ())
    assert [str(r) for r in choice.reasons()] == [
        "factor is 2; allowed: an int >= 5. (kernel fast)",
        "device.capability is 9.0; allowed: exactly 12.0. (fallback library)",
    ]


def test_equal_reasons_of_kernels_and_fallbacks_become_one(write_kernel: Callable[..., Path], tmp_path: Path) -> None:
    """What a kernel and a fallback both refuse is said once, with both names."""
    for name in ("fast", "portable"):
        write_kernel(name, scalars={"factor": {"kind": "int", "minimum": 5}})
    choice = choose(CHAIN, read_contracts(tmp_path / "kernels"), FACTS, Settings())
    assert choice.fallback is None
    assert str(choice.reasons()[0]) == "factor is 2; allowed: an int >= 5. (kernel fast; fallback portable)"
    assert [r.field for r in choice.reasons()] == ["factor", "library"]


@pytest.mark.parametrize("case", ["demand", "forced", "claimed-twice"])
def test_no_fallback_hides_what_the_caller_must_know(
    case: str, write_kernel: Callable[..., Path], tmp_path: Path
) -> None:
    """An op's demand, a forced kernel that refuses and two claims end the choice before the chain."""
    write_kernel("fast", **({} if case == "claimed-twice" else {"dispatched": []}))
    write_kernel("other", scalars={"factor": {"kind": "int", "minimum": 5 if case == "forced" else 1}})
    folders = read_contracts(tmp_path / "kernels")
    demands = [Reason("factor", "2", "3")] if case == "demand" else []
    forced = "other" if case == "forced" else None
    choice = choose(CHAIN, folders, FACTS, Settings(), forced, demands, library())
    assert (choice.kernel, choice.fallback, choice.chain) == ("", None, ())
    assert choice.reasons()


def test_a_fallback_kernel_can_be_forced(write_kernel: Callable[..., Path], tmp_path: Path) -> None:
    """Forcing the portable kernel gets it, judged by its callable shapes, before any other."""
    write_kernel("fast")
    write_kernel("portable", dispatched=[])
    folders = read_contracts(tmp_path / "kernels")
    for choice in (
        choose(CHAIN, folders, FACTS, Settings(), "portable"),
        choose(CHAIN, folders, FACTS, Settings("portable")),
    ):
        assert (choice.kernel, choice.forced) == ("portable", "portable")


def test_off_switches_the_first_round_off_and_not_the_chain(write_kernel: Callable[..., Path], tmp_path: Path) -> None:
    """Off means no specialised kernel: the chain runs, its exported kernels included."""
    write_kernel("fast")
    write_kernel("portable", dispatched=[])
    choice = choose(CHAIN, read_contracts(tmp_path / "kernels"), FACTS, Settings(off=True))
    assert choice.kernel == ""
    assert choice.fallback is not None
    assert choice.fallback.name == "portable"
    assert str(choice.reasons()[0]).startswith("KDA_LAB_DISPATCH is 'off'; allowed: 'on' or unset.")


def test_an_op_with_only_its_fallback_exported_says_so(write_kernel: Callable[..., Path], tmp_path: Path) -> None:
    """The reason for taking the fallback is that no other kernel is exported."""
    write_kernel("portable")
    choice = choose(CHAIN, read_contracts(tmp_path / "kernels"), FACTS, Settings())
    assert choice.fallback is not None
    assert str(choice.reasons()[0]) == (
        "kernels is only 'portable', a fallback of this op; allowed: at least one. Export one with kda-lab export."
    )
