"""Reasons and the error tree: one template for every message, all reasons at once."""

from __future__ import annotations

import pickle

import pytest

from kda_lab import errors
from kda_lab.errors import ContractError, KdaLabError, Reason

TREE = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, KdaLabError) and e is not KdaLabError]


def test_a_reason_says_given_allowed_and_remedy() -> None:
    """The template: field is given; allowed: values. What to do."""
    reason = Reason("x.dtype", "torch.float32", "torch.bfloat16", "Cast x.")
    assert str(reason) == "x.dtype is torch.float32; allowed: torch.bfloat16. Cast x."
    assert str(Reason("B", "0", "1 to 128")) == "B is 0; allowed: 1 to 128."


def test_an_error_joins_all_reasons() -> None:
    """Room first, then every reason, not only the first."""
    error = ContractError("qsa.packed_decode", [Reason("B", "0", "1 to 128"), Reason("D", "64", "256")])
    assert str(error) == "qsa.packed_decode: B is 0; allowed: 1 to 128. D is 64; allowed: 256."
    assert [r.field for r in error.reasons] == ["B", "D"]


def test_a_shared_remedy_is_said_once() -> None:
    """Behind the last reason that has it; the reasons keep it."""
    reasons = [Reason("B", "0", "1", "Ask."), Reason("C", "0", "2", "Look."), Reason("D", "0", "3", "Ask.")]
    error = ContractError("room", reasons)
    assert str(error) == "room: B is 0; allowed: 1. C is 0; allowed: 2. Look. D is 0; allowed: 3. Ask."
    assert error.reasons == tuple(reasons)


@pytest.mark.parametrize("kind", TREE, ids=lambda e: e.__name__)
def test_each_class_inherits_what_a_caller_would_catch(kind: type[KdaLabError]) -> None:
    """Every error is a KdaLabError and a builtin, and stands in the tree of the module's docstring."""
    builtins = [
        base
        for base in kind.__mro__
        if base.__module__ == "builtins" and base not in (Exception, BaseException, object)
    ]
    assert builtins
    assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("kind", TREE, ids=lambda e: e.__name__)
@pytest.mark.parametrize("content", ["one sentence: with a colon", [Reason("a", "1", "2")]], ids=["text", "reasons"])
def test_an_error_survives_a_process_boundary(kind: type[KdaLabError], content: object) -> None:
    """Pickled and back: same class, room, reasons and words."""
    error = kind("room", content)  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.room, again.reasons, str(again)) == (kind, "room", error.reasons, str(error))
