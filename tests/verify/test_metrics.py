"""Error metrics: known values, and every way in which a NaN or a zero could slip through."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.errors import VerificationError
from kda_lab.verify import metrics

SMALL = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20)


def test_rel_l2_of_a_known_case() -> None:
    """A difference of norm 5 to a reference of norm 10 is 0.5."""
    reference = torch.tensor([6.0, 8.0])
    assert metrics.rel_l2(reference + torch.tensor([3.0, -4.0]), reference) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "value, reference, expected",
    [([0.0], [0.0], 0.0), ([1.0], [0.0], math.inf), ([math.nan], [0.0], math.nan), ([math.nan], [1.0], math.nan)],
    ids=["zero-zero", "one-zero", "nan-zero", "nan-one"],
)
def test_rel_l2_at_zero_and_nan(value: list[float], reference: list[float], expected: float) -> None:
    """A zero reference gives 0 or infinity, and NaN stays NaN."""
    assert metrics.rel_l2(torch.tensor(value), torch.tensor(reference)) == pytest.approx(expected, nan_ok=True)


@given(SMALL)
def test_rel_l2_of_itself_is_zero(values: list[float]) -> None:
    """No tensor is away from itself."""
    tensor = torch.tensor(values)
    assert metrics.rel_l2(tensor, tensor) == 0.0


@given(SMALL, st.integers(0, 19), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_one_bad_element_never_passes(values: list[float], at: int, bad: float) -> None:
    """A single NaN or infinity anywhere makes both metrics fail every finite limit."""
    reference, value = torch.tensor(values), torch.tensor(values)
    value[at % len(values)] = bad
    assert not metrics.within(metrics.rel_l2(value, reference), 1e30)
    assert not metrics.within(metrics.row_max(value, reference), 1e30)


def test_fp64_accumulation() -> None:
    """A million small differences are summed without FP32's loss."""
    reference = torch.ones(1_000_000)
    assert metrics.rel_l2(reference * 1.001, reference) == pytest.approx(1.001 - 1, rel=1e-3)


def test_row_max_finds_the_row() -> None:
    """The worst row counts, with its own norm below it."""
    reference = torch.ones(4, 3, 8)
    value = reference.clone()
    value[2, 1] *= 1.5
    assert metrics.row_max(value, reference) == pytest.approx(0.5)
    assert int(metrics.row_errors(value, reference).argmax()) == 2 * 3 + 1


def test_row_max_of_zero_rows() -> None:
    """A zero reference row wants exact zeros: anything else there is infinitely wrong."""
    reference = torch.zeros(2, 4)
    assert metrics.row_max(reference.clone(), reference) == 0.0
    assert metrics.row_max(torch.tensor([[0.0] * 4, [1e-30] * 4]), reference) == math.inf


def test_row_max_hands_nan_on() -> None:
    """A NaN row beside a finite one is not hidden by the maximum."""
    value, reference = torch.ones(3, 4), torch.ones(3, 4)
    value[0, 0] = math.nan
    assert math.isnan(metrics.row_max(value, reference))


def test_row_max_without_rows_and_axes() -> None:
    """No rows give 0; a scalar is one row."""
    assert metrics.row_max(torch.zeros(0, 4), torch.zeros(0, 4)) == 0.0
    assert metrics.row_max(torch.tensor(3.0), torch.tensor(2.0)) == pytest.approx(0.5)


@pytest.mark.parametrize("metric", [metrics.rel_l2, metrics.row_errors], ids=["rel_l2", "row_errors"])
def test_other_shapes_are_refused(metric) -> None:
    """Broadcasting would compare something else: other shapes are an error that names both."""
    with pytest.raises(VerificationError, match=r"output shape is \(2, 1\); allowed: \(2, 3\), that of the reference"):
        metric(torch.zeros(2, 1), torch.zeros(2, 3))


def test_worst() -> None:
    """NaN is worse than everything, and nothing at all is NaN."""
    assert metrics.worst([0.1, 0.3, 0.2]) == 0.3
    assert math.isnan(metrics.worst([0.1, math.nan]))
    assert math.isnan(metrics.worst([]))


@given(st.floats(), st.floats())
def test_within_is_fail_closed(value: float, limit: float) -> None:
    """A pass needs two finite numbers in order."""
    finite = math.isfinite(value) and math.isfinite(limit)
    assert metrics.within(value, limit) == (finite and value <= limit)


def test_the_worst_element_against_its_allowance() -> None:
    """Errors 0.5, 0 and 3 over allowances 1, 0 and 2 give 1.5; an error without an allowance is infinite."""
    reference, allowance = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 2.0])
    assert metrics.element_max(torch.tensor([1.5, 2.0, 0.0]), reference, allowance) == 1.5
    assert metrics.element_max(torch.tensor([1.5, 2.1, 0.0]), reference, allowance) == math.inf
    assert math.isnan(metrics.element_max(torch.tensor([math.nan, 2.0, 3.0]), reference, allowance))
    assert metrics.element_max(torch.empty(0), torch.empty(0), torch.empty(0)) == 0.0
    with pytest.raises(VerificationError, match="output shape is"):
        metrics.element_max(reference, reference, allowance[:2])


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """The worst element is found, and a NaN too, in whichever piece it lies."""
    monkeypatch.setattr(metrics, "CHUNK", chunk)
    reference, allowance = torch.arange(12.0).view(3, 4).t(), torch.full((4, 3), 0.5)
    value = reference.clone()
    value[1, 2] += 3
    assert metrics.element_max(value, reference, allowance) == 6.0
    value[0, 0] = math.nan
    assert math.isnan(metrics.element_max(value, reference, allowance))


def test_a_shared_infinity_is_agreement() -> None:
    """-inf where the reference has it counts as an exact zero of both; the other elements are judged as ever."""
    reference = torch.tensor([[3.0, -math.inf], [-math.inf, -math.inf]])
    value = torch.tensor([[3.3, -math.inf], [-math.inf, -math.inf]])
    assert metrics.rel_l2(value, reference) == pytest.approx(0.1)
    assert metrics.row_errors(value, reference).tolist() == [pytest.approx(0.1), 0.0]
    assert metrics.element_max(value, reference, torch.full((2, 2), 0.1)) == pytest.approx(3.0)


@pytest.mark.parametrize("wrong", [0.0, -3.4e38, math.inf, math.nan])
@pytest.mark.parametrize("at", [(0, 0), (0, 1)], ids=["live", "dead"])
def test_a_missed_infinity_passes_no_limit(wrong: float, at: tuple[int, int]) -> None:
    """A number in the place of -inf, the other infinity, NaN, or -inf in the place of a number: never within."""
    reference = torch.tensor([[3.0, -math.inf]])
    value = reference.clone()
    value[at] = wrong if at == (0, 1) else -math.inf
    for found in (
        metrics.rel_l2(value, reference),
        metrics.row_max(value, reference),
        metrics.element_max(value, reference, torch.ones(1, 2)),
    ):
        assert not metrics.within(found, 1e300)
