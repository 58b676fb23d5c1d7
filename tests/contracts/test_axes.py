"""Axes: reading extents from shapes, comparing tensors, and describing rules."""

from __future__ import annotations

from kda_lab.contracts.axes import describe_rules, resolve_axes
from kda_lab.contracts.facts import TensorFacts
from kda_lab.contracts.model import ShapeRule, TensorGate


def facts(*shape: int) -> TensorFacts:
    """Facts with a shape; the rest does not matter here."""
    return TensorFacts("float32", shape, shape, "cuda", 0)


def gate(*shape: int | str) -> TensorGate:
    """A gate with a shape."""
    return TensorGate(dtypes=("float32",), shape=shape)


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
        ShapeRule.model_validate({"axes": {"K": {"minimum": 64, "maximum": 512, "multiple_of": 64}}}),
    ]
    assert describe_rules(rules) == "HQ=24 D=64|128 B=1..8; any shapes; K=64..512 (multiples of 64)"
    assert describe_rules([]) == "no shapes"


GEMM_SCALES = {"x": gate("M", "K/2"), "w": gate("K/2", "N"), "x_sf": gate("ceil128(M)", "ceil4(K/16)")}


def test_a_divided_axis_is_read_from_its_quotient() -> None:
    """Half of K is seen, K is known, and containers are compared with what K and M need."""
    axes, reasons = resolve_axes(GEMM_SCALES, {"x": facts(9, 40), "w": facts(40, 3), "x_sf": facts(128, 8)})
    assert ({n: a.extent for n, a in axes.items()}, reasons) == ({"M": 9, "K": 80, "N": 3}, [])
    assert axes["K"].named("K") == "x.shape[1] (K, from K/2)"
    assert axes["M"].named("M") == "x.shape[0] (M)"


def test_a_container_of_the_wrong_extent_says_how_it_is_computed() -> None:
    """The reason names the field, what it should be, the formula, and where its axis was read."""
    _, reasons = resolve_axes(GEMM_SCALES, {"x": facts(8, 40), "w": facts(40, 3), "x_sf": facts(120, 5)})
    assert [str(r) for r in reasons] == [
        "x_sf.shape[0] is 120; allowed: 128, which is ceil128(M) with M=8 from x.shape[0].",
        "x_sf.shape[1] is 5; allowed: 8, which is ceil4(K/16) with K=80 from x.shape[1].",
    ]


def test_tensors_disagree_through_a_divisor() -> None:
    """The second tensor that shows half of K is compared in its own extent."""
    _, (reason,) = resolve_axes(GEMM_SCALES, {"x": facts(8, 40), "w": facts(39, 3)})
    assert str(reason) == "w.shape[0] is 39; allowed: 40, which is K/2 with K=80 from x.shape[1]."


def test_a_rest_of_a_division_allows_no_extent() -> None:
    """Where K is no multiple of 16, no number of exact groups is right, and the reason says why."""
    gates = {"x": gate("K/2"), "groups": gate("K/16")}
    _, (reason,) = resolve_axes(gates, {"x": facts(20), "groups": facts(3)})
    assert str(reason) == "groups.shape[0] is 3; allowed: none, since K=40 from x.shape[0] is no multiple of 16 (K/16)."


def test_a_rounded_dimension_may_come_before_its_axis() -> None:
    """Containers are compared once every axis is known, in whatever order the contract lists them; alone they show nothing."""
    gates = {"x_sf": gate("ceil128(M)"), "x": gate("M")}
    _, (reason,) = resolve_axes(gates, {"x": facts(129), "x_sf": facts(128)})
    assert reason.allowed == "256, which is ceil128(M) with M=129 from x.shape[0]"
    assert resolve_axes(gates, {"x_sf": facts(100)}) == ({}, [])
