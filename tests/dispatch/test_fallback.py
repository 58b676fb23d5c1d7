"""Fallback chains: who is asked, in which order, by which shapes, and that nobody is asked in vain."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kda_lab.contracts.facts import CallFacts, TensorFacts
from kda_lab.contracts.model import Contract
from kda_lab.dispatch.fallback import FallbackFunction, FallbackVerdict, chain_reasons, judge_chain
from kda_lab.dispatch.loader import read_contract
from kda_lab.errors import Reason
from kda_lab.ops.protocol import OpSpec

NO = Reason("device.capability", "9.0", "exactly 12.0")


def facts(rows: int = 4, capability: tuple[int, int] = (9, 0), device: str = "cuda") -> CallFacts:
    """Facts of a toy call."""
    x = TensorFacts("bfloat16", (rows, 8), (8, 1), device, 0 if device == "cuda" else None)
    w = TensorFacts("float32", (8,), (1,), device, x.device_index)
    return CallFacts({"x": x, "w": w}, {"factor": 2}, capability if device == "cuda" else None)


class Asked:
    """A fallback function that keeps the facts it was asked about, and answers as told."""

    def __init__(self, name: str, *reasons: Reason) -> None:
        self.facts: list[CallFacts] = []
        self.function = FallbackFunction(name, lambda *a, **k: name, self._answer)
        self._reasons = reasons

    def _answer(self, given: CallFacts) -> tuple[Reason, ...]:
        self.facts.append(given)
        return self._reasons


@pytest.fixture
def portable(write_kernel: Callable[..., Path]) -> Contract:
    """The contract of a kernel called `portable`: T 1 to 64 callable, nothing dispatched."""
    return read_contract(write_kernel("portable", dispatched=[]))


def test_the_first_member_without_reasons_ends_the_chain(portable: Contract) -> None:
    """Members are asked in the chain's order, and none after the one that takes the call."""
    first, last = Asked("library", NO), Asked("never")
    verdicts = judge_chain(
        ("library", "portable", "never"),
        {"library": first.function, "never": last.function},
        {"portable": portable},
        facts(),
        False,
    )
    assert verdicts == (FallbackVerdict("library", "function", (NO,)), FallbackVerdict("portable", "kernel", ()))
    assert [v.accepted for v in verdicts] == [False, True]
    assert (first.facts, last.facts) == ([facts()], [])


def test_a_kernel_is_judged_by_its_callable_shapes(portable: Contract) -> None:
    """It needs no dispatched shape to serve as a fallback, but its contract holds all the same."""
    (accepted,) = judge_chain(("portable",), {}, {"portable": portable}, facts(64), False)
    (refused,) = judge_chain(("portable",), {}, {"portable": portable}, facts(65), False)
    assert accepted.accepted
    assert [r.field for r in refused.reasons] == ["x.shape[0] (T)"]


def test_a_compiled_architecture_needs_the_opt_in(portable: Contract) -> None:
    """Being a fallback does not make an architecture qualified."""
    asked = facts(capability=(12, 0))
    verdicts = [judge_chain(("portable",), {}, {"portable": portable}, asked, allow)[0] for allow in (False, True)]
    assert [v.accepted for v in verdicts] == [False, True]
    assert "KDA_LAB_ALLOW_COMPILED=1" in str(verdicts[0].reasons[0])


def test_a_fallback_never_runs_interpreted(portable: Contract) -> None:
    """In a process with the mended interpreter a CPU call is still refused: only forcing a kernel interprets it."""
    asked = replace(facts(device="cpu"), interpreted=True)
    (verdict,) = judge_chain(("portable",), {}, {"portable": portable}, asked, False)
    assert [r.field for r in verdict.reasons] == ["x.device", "w.device"]


def test_a_member_that_is_nowhere_is_said(portable: Contract) -> None:
    """A name without function and without kernel is passed over with its reason."""
    absent, found = judge_chain(("missing", "portable"), {}, {"portable": portable}, facts(), False)
    assert (absent.kind, found.accepted) == ("absent", True)
    assert str(absent.reasons[0]) == (
        "missing is absent; allowed: an exported kernel or a registered function. Export it with kda-lab export."
    )


def test_a_registered_function_goes_before_a_kernel_of_its_name(portable: Contract) -> None:
    """A name means one thing: what the process registered."""
    library = Asked("portable")
    (verdict,) = judge_chain(("portable",), {"portable": library.function}, {"portable": portable}, facts(), False)
    assert verdict.kind == "function"


def test_an_answer_that_breaks_is_not_taken_for_a_no() -> None:
    """A function whose judgement raises raises to the caller: nothing else is put in its place."""

    def broken(given: CallFacts) -> Any:
        raise RuntimeError("no answer")

    with pytest.raises(RuntimeError, match="no answer"):
        judge_chain(("a",), {"a": FallbackFunction("a", print, broken)}, {}, facts(), False)


CHAIN = {"kind": "chain", "chain": ["library", "portable"]}


@pytest.mark.parametrize(
    ("kernel", "fallback", "words"),
    [
        ("alpha", CHAIN, ""),
        ("alpha", {"kind": "raise"}, ""),
        ("portable", {"kind": "raise"}, ""),
        (
            "portable",
            CHAIN,
            r"portable\.fallback is chain library, portable; allowed: kind 'raise', for a kernel that is",
        ),
        (
            "alpha",
            {"kind": "chain", "chain": ["portable", "library"]},
            r"alpha\.fallback is chain portable, library; allowed: chain library, portable, as toy\.scale has it\. The op's",
        ),
        (
            "alpha",
            {"kind": "chain", "chain": ["library", "portable", "unknown"]},
            "is chain library, portable, unknown",
        ),
        ("alpha", {"kind": "chain", "chain": ["library"]}, "is chain library; allowed: chain library, portable"),
    ],
)
def test_a_contracts_chain_is_its_ops(
    write_kernel: Callable[..., Path], spec: OpSpec, kernel: str, fallback: Any, words: str
) -> None:
    """A chain in another order, with fewer or with unknown names, or of a member itself, is refused with both chains."""
    contract = read_contract(write_kernel(kernel, fallback=fallback))
    reasons = chain_reasons(contract, replace(spec, fallback=("library", "portable")), kernel)
    assert bool(reasons) == bool(words)
    if words:
        assert re.search(words, str(reasons[0]))


def test_a_chain_where_the_op_has_none_is_refused(write_kernel: Callable[..., Path], spec: OpSpec) -> None:
    """An op that raises has no chain for a contract to repeat."""
    contract = read_contract(write_kernel("alpha", fallback=CHAIN))
    assert [r.allowed for r in chain_reasons(contract, spec, "alpha")] == ["kind 'raise'"]
