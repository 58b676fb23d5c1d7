"""Limits in replay records: recomputed from the op's gates, never laxer."""

from __future__ import annotations

from typing import Any

import pytest

from kda_lab.errors import ExportError
from kda_lab.export.limits import TOLERANCE, check_limits
from kda_lab.ops.registry import load_op


@pytest.fixture
def replay(records: Any) -> dict[str, Any]:
    found: dict[str, Any] = records.replay("tp2-B1-short")
    return found


def check(replay: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [c for c in replay["checks"] if c["name"] == name]
    return found


@pytest.mark.parametrize("name", ["error_fp32", "row_max"])
def test_limit_may_be_what_the_gates_give_and_no_more(replay: dict[str, Any], name: str) -> None:
    """The recomputed limit is accepted, also where the floor raised it; anything above it is refused."""
    replay["errors"] |= {"floor": 0.006, "floor_row_max": 0.01}
    limits = load_op(replay["op"]).gates.limits("synthetic", 0.006, 0.01)
    largest = {"error_fp32": limits.error, "row_max": limits.row_max}[name]
    check(replay, name)["limit"] = largest
    check_limits(replay)
    check(replay, name)["limit"] = largest + 10 * TOLERANCE
    with pytest.raises(ExportError, match=rf"export\.replays: toy_candidate on tp2-B1-short: limit of {name} is "):
        check_limits(replay)


def with_updated(replay: dict[str, Any], monkeypatch: pytest.MonkeyPatch, limit: float, **errors: Any) -> None:
    """The record as an op would have it whose gates allow what is updated in place three times its floor."""
    gates = load_op(replay["op"]).gates
    monkeypatch.setattr(gates, "updated_limit", lambda kind, floor: 3 * floor, raising=False)
    replay["checks"].append({"name": "error_updated", "passed": True, "value": 0.0, "limit": limit, "detail": ""})
    replay["errors"] |= errors


def test_what_is_updated_in_place_has_a_limit_from_its_own_floor(
    replay: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times that floor is accepted and more is refused, whatever the floor of the other outputs."""
    with_updated(replay, monkeypatch, 3e-6, floor_updated=1e-6)
    check_limits(replay)
    check(replay, "error_updated")["limit"] = 4e-6
    with pytest.raises(ExportError, match="limit of error_updated is 4e-06; allowed: at most 3e-06"):
        check_limits(replay)


@pytest.mark.parametrize("errors", [{}, {"floor_updated": None}, {"floor_updated": "0"}])
def test_a_limit_of_what_is_updated_needs_its_floor(
    replay: dict[str, Any], monkeypatch: pytest.MonkeyPatch, errors: dict[str, Any]
) -> None:
    """A record without the floor cannot show that its limit was right."""
    with_updated(replay, monkeypatch, 1e-6, **errors)
    with pytest.raises(ExportError, match=r"errors is \{'floor_updated': .*allowed: a finite floor of what is updated"):
        check_limits(replay)


@pytest.mark.parametrize("name", ["launch", "guards", "repeat_bits", "state_zero"])
def test_exact_checks_allow_nothing(replay: dict[str, Any], name: str) -> None:
    """A count that must be zero cannot be given room by its record."""
    check(replay, name)["limit"] = 1e9
    with pytest.raises(ExportError, match=rf"limit of {name} is 1000000000\.0; allowed: at most 0"):
        check_limits(replay)


@pytest.mark.parametrize(("field", "value"), [("value", "0"), ("value", False), ("limit", True), ("limit", 1e999)])
def test_values_and_limits_are_numbers(replay: dict[str, Any], field: str, value: object) -> None:
    """Text, booleans and infinity are compared with nothing."""
    check(replay, "error_fp32")[field] = value
    with pytest.raises(ExportError, match=rf"{field} of error_fp32 is .*; allowed: a finite number"):
        check_limits(replay)


def test_check_named_twice_is_refused(replay: dict[str, Any]) -> None:
    """A passed check cannot hide a failed one of the same name."""
    replay["checks"].append(dict(check(replay, "guards")))
    with pytest.raises(ExportError, match="check guards is 2 times; allowed: once"):
        check_limits(replay)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"errors": {}}, "allowed: finite floors"),
        ({"errors": {"floor": -1.0}}, "floor is -1.0"),
        ({"capture_kind": "imagined"}, "kind is 'imagined'"),
        ({"op": "no.such"}, "op is 'no.such'"),
    ],
)
def test_limits_that_cannot_be_recomputed_are_refused(
    replay: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    """Without a floor, a known kind and a known op there is nothing to hold a limit against."""
    with pytest.raises(ExportError, match=rf"export\.replays: toy_candidate on .*{words}"):
        check_limits({**replay, **change})


@pytest.mark.parametrize(
    ("floor", "largest"), [(0.0, 0.0), (3e-8, 1e-5), (1.66e-3, 2e-3)], ids=["exact", "fp32", "bf16"]
)
def test_limits_follow_what_a_product_s_floor_says(replay: dict[str, Any], floor: float, largest: float) -> None:
    """A matrix product with an exact, an FP32 or a BF16 floor has its own limit; exact means 0, with no excess."""
    product = {**replay, "op": "nvfp4.gemm", "errors": {"floor": floor, "floor_row_max": floor}}
    product["checks"] = [{**check(replay, "error_fp32"), "limit": largest}]
    check_limits(product)
    product["checks"][0]["limit"] = largest + 1e-10
    with pytest.raises(ExportError, match=r"limit of error_fp32 is .*The gates of nvfp4\.gemm give that limit"):
        check_limits(product)


def test_the_limit_of_single_elements_is_that_of_the_op(replay: dict[str, Any]) -> None:
    """An element's error over its allowance may be 1, and a record that allows more is refused."""
    product = {**replay, "op": "nvfp4.gemm", "errors": {"floor": 1.66e-3, "floor_row_max": 1.66e-3}}
    product["checks"] = [{**check(replay, "row_max"), "name": "element_max", "limit": 1.0}]
    check_limits(product)
    product["checks"][0]["limit"] = 1.5
    with pytest.raises(ExportError, match=r"limit of element_max is 1\.5; allowed: at most 1\."):
        check_limits(product)
