"""Axes: reading extents from shapes, comparing tensors, and describing rules."""

from __future__ import annotations

import pytest

from kda_lab.contracts.axes import describe_rules, resolve_axes
from kda_lab.contracts.facts import TensorFacts
from kda_lab.contracts.model import ShapeRule, TensorGate, split_dimension


def facts(*shape: int) -> TensorFacts:
    """Facts with a shape; the rest does not matter here."""
    return TensorFacts("float32", shape, shape, "cuda", 0)


def gate(*shape: int | str) -> TensorGate:
    """A gate with a shape."""
    return TensorGate(dtypes=("float32",), shape=shape)


@pytest.mark.parametrize(
    ("text", "parts"), [("B", ("B", 0)), ("B+1", ("B", 1)), ("HKV-12", ("HKV", -12)), ("k2+3", ("k2", 3))]
)
def test_a_dimension_is_a_name_and_a_constant(text: str, parts: tuple[str, int]) -> None:
    """An axis name may carry one constant, added or subtracted."""
    assert split_dimension(text) == parts


@pytest.mark.parametrize("text", ["", "1B", "B*2", "B+", "B+C", "B + 1", "B+1+1"])
def test_other_expressions_are_refused(text: str) -> None:
    """Anything beyond a name plus a constant is an error that shows the text."""
    with pytest.raises(ValueError, match="is no axis name like B, and no name plus a constant like B"):
        split_dimension(text)


def test_axes_are_read_through_constants() -> None:
    """An axis that is only seen plus one is known without the one."""
    axes, reasons = resolve_axes({"cu": gate("B+1")}, {"cu": facts(5)})
    assert (axes["B"].extent, axes["B"].field, reasons) == (4, "cu.shape[0]", [])


def test_a_disagreement_names_both_tensors() -> None:
    """Two tensors that show different extents of an axis are both named, the first being the measure."""
    gates = {"a": gate("T", "D"), "b": gate("D", "T")}
    _, (reason,) = resolve_axes(gates, {"a": facts(3, 8), "b": facts(8, 4)})
    assert str(reason) == "b.shape[1] is 4; allowed: 3, which is T with T=3 from a.shape[0]."


def test_an_axis_may_disagree_within_one_tensor() -> None:
    """A square tensor must be square."""
    _, (reason,) = resolve_axes({"a": gate("T", "T")}, {"a": facts(3, 4)})
    assert (reason.field, reason.given) == ("a.shape[1]", "4")


def test_absent_tensors_and_wrong_ranks_show_nothing() -> None:
    """Axes of a missing tensor, or of one with another rank, stay unknown."""
    axes, reasons = resolve_axes({"a": gate("T"), "b": gate("D", "E")}, {"b": facts(1, 2, 3)})
    assert (axes, reasons) == ({}, [])


def test_rules_are_described_in_one_line() -> None:
    """Values, choices and ranges read as a person would write them."""
    rules = [
        ShapeRule.model_validate({"axes": {"HQ": 24, "D": [64, 128], "B": {"minimum": 1, "maximum": 8}}}),
        ShapeRule(axes={}),
    ]
    assert describe_rules(rules) == "HQ=24 D=64|128 B=1..8; any shapes"
    assert describe_rules([]) == "no shapes"
