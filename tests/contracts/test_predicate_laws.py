"""Laws of the predicate over arbitrary facts: it answers, agrees with the contract, ignores order, names what is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kda_lab.contracts.facts import CallFacts, TensorFacts
from kda_lab.contracts.model import Contract
from kda_lab.contracts.predicate import check

TENSORS = st.builds(
    TensorFacts,
    dtype=st.sampled_from(["bfloat16", "float16", "int32", "int64", "nonsense"]),
    shape=st.lists(st.integers(0, 300), max_size=4).map(tuple),
    strides=st.lists(st.integers(0, 2**40), max_size=4).map(tuple),
    device_type=st.sampled_from(["cuda", "cpu", "meta"]),
    device_index=st.sampled_from([None, 0, 1]),
    alignment=st.sampled_from([1, 2, 4, 8, 16, 64, 256]),
)
NAMES = st.sampled_from(["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "out", "other"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text("ab1.", max_size=5),
    st.just(10**400),
    st.just([1]),
    st.just(object()),
)
FACTS = st.builds(
    CallFacts,
    tensors=st.dictionaries(NAMES, TENSORS),
    scalars=st.dictionaries(st.sampled_from(["max_seqlen_k", "softmax_scale", "max_seqlen_q", "other"]), SCALARS),
    capability=st.one_of(st.none(), st.tuples(st.integers(0, 13), st.integers(0, 3))),
    foreign=st.dictionaries(NAMES, st.just("a list"), max_size=2),
)


@given(facts=FACTS, shapes=st.sampled_from(["callable", "dispatched"]), allow=st.booleans())
def test_arbitrary_facts_never_raise_and_never_pass(
    facts: CallFacts, shapes: Any, allow: bool, contract: Contract
) -> None:
    """Whatever the facts, the predicate answers with readable reasons; arbitrary facts are never accepted."""
    decision = check(contract, facts, shapes, allow)
    assert decision.ok == (len(decision.reasons) == 0)
    assert not decision.ok
    for reason in decision.reasons:
        assert reason.field
        assert f"{reason.field} is {reason.given}; allowed: {reason.allowed}." in str(reason)


@given(
    B=st.integers(0, 140),
    topology=st.sampled_from([(24, 2), (12, 1), (24, 1), (12, 2), (16, 2), (1, 1)]),
    max_seqlen_k=st.integers(-1, 2060),
    capability=st.sampled_from([(12, 1), (12, 0), (9, 0)]),
)
def test_ok_exactly_inside_the_contract(
    B: int, topology: tuple[int, int], max_seqlen_k: int, capability: tuple[int, int], contract: Contract, calls: Any
) -> None:
    """The predicate agrees with the contract written out as one condition."""
    facts = calls.scalars(calls.good(B, *topology), max_seqlen_k=max_seqlen_k)
    expected = 1 <= B <= 128 and topology in ((24, 2), (12, 1)) and 1 <= max_seqlen_k <= 2055 and capability == (12, 1)
    assert check(contract, replace(facts, capability=capability)).ok == expected


@given(facts=FACTS, seed=st.integers(0, 1000))
def test_order_of_arguments_does_not_matter(facts: CallFacts, seed: int, contract: Contract) -> None:
    """The same facts in another order of names give the same reasons in the same order."""
    tensors, scalars = list(facts.tensors.items()), list(facts.scalars.items())
    random.Random(seed).shuffle(tensors)
    random.Random(seed + 1).shuffle(scalars)
    shuffled = replace(facts, tensors=dict(tensors), scalars=dict(scalars))
    assert check(contract, facts).reasons == check(contract, shuffled).reasons


MUTATIONS: dict[str, Callable[[TensorFacts, int], dict[str, Any]]] = {
    "dtype": lambda t, n: {"dtype": "float64"},
    "device": lambda t, n: {"device_index": 1 + n} if n % 2 else {"device_type": "cpu", "device_index": None},
    "strides": lambda t, n: {"strides": tuple(s + 1 + n for s in t.strides)},
    "shape": lambda t, n: {"shape": (*t.shape, 1 + n), "strides": (*t.strides, 1)},
    "alignment": lambda t, n: {"alignment": 1},
}


@given(
    name=st.sampled_from(["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"]),
    field=st.sampled_from(sorted(MUTATIONS)),
    n=st.integers(0, 9),
)
def test_one_mutated_field_is_named(name: str, field: str, n: int, contract: Contract, calls: Any) -> None:
    """Spoiling one fact of one tensor of a good call gives a reason that names that tensor and that field."""
    facts = calls.good()
    gate = contract.tensors[name]
    if field == "alignment" and gate.alignment_bytes == 1:
        assert check(contract, calls.change(facts, **{name: {"alignment": 1}}))
        return
    spoilt = calls.change(facts, **{name: MUTATIONS[field](facts.tensors[name], n)})
    reasons = check(contract, spoilt).reasons
    # The first tensor is the measure for the devices of the others, so they may be the ones named.
    fields = {reason.field for reason in reasons}
    assert f"{name}.{field}" in fields or (field == "device" and any(f"of {name}" in r.allowed for r in reasons))


@given(name=st.sampled_from(["max_seqlen_k", "softmax_scale", "max_seqlen_q"]), value=SCALARS)
def test_one_mutated_scalar_is_named_or_allowed(name: str, value: Any, contract: Contract, calls: Any) -> None:
    """Any value of a scalar is either inside its gate or named by the one reason."""
    inside = {
        "max_seqlen_k": type(value) is int and 1 <= value <= 2055,
        "softmax_scale": value is None or (type(value) in (int, float) and 0 <= value <= 3.4028234663852886e38),
        "max_seqlen_q": type(value) is int and value == 1,
    }[name]
    fields = [reason.field for reason in check(contract, calls.scalars(calls.good(), **{name: value})).reasons]
    assert fields == ([] if inside else [name])
