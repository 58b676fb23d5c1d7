"""Top-k oracles: golden rows, three roads to the same bits, and the set-and-threshold rule over all of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.ops.qsa_topk_blocks import cases, oracle
from kda_lab.ops.qsa_topk_blocks.selection import selection_faults

INFINITY = float("inf")
ROADS = (oracle.oracle_fp32, oracle.oracle_fp64, oracle.emulate)
FLOATS = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, 1e-45, float("nan")])


@pytest.mark.parametrize("road", ROADS, ids=lambda road: road.__name__)
@pytest.mark.parametrize(
    ("scores", "length", "k", "wanted"),
    [
        ([1.0, 5.0, 3.0, 4.0], 4, 2, [1, 3]),
        ([1.0, 5.0, 3.0, 4.0], 3, 2, [1, 2]),
        ([1.0, 5.0, 3.0], 3, 5, [0, 1, 2, -1, -1]),
        ([2.0, 2.0, 2.0, 2.0], 4, 2, [0, 1]),
        ([0.0, -0.0, 0.0, 1.0], 4, 2, [0, 3]),
        ([-INFINITY, -INFINITY, -5.0], 3, 2, [0, 2]),
        ([float("nan"), -5.0, -INFINITY], 3, 2, [0, 1]),
        ([-3.0, -1.0, -2.0], 3, 1, [1]),
        ([INFINITY, 1.0, INFINITY], 3, 2, [0, 2]),
        ([1.0], 0, 2, [-1, -1]),
    ],
)
def test_golden_rows(road, scores: list[float], length: int, k: int, wanted: list[int]) -> None:
    """Ascending ids, ties to the lower one, -0 as 0, NaN as -inf, -1 behind the last."""
    call = cases.make_call(torch.tensor([scores]), (length,), k)
    assert road(call)["blocks"].tolist() == [wanted]


@pytest.mark.parametrize("name", sorted(cases.edge_calls(3)))
def test_three_roads_lead_to_the_same_bits(name: str) -> None:
    """Threshold, order and digits agree at every edge, behind guard columns of NaN too, and pass set and threshold."""
    call = cases.with_guard_rows(cases.edge_calls(3)[name], 7)
    first, second, third = (road(call)["blocks"] for road in ROADS)
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    assert first.dtype == torch.int32
    assert selection_faults(first, call.inputs["scores"], call.inputs["lengths"]) == []


@settings(max_examples=25)
@given(st.lists(FLOATS, min_size=1, max_size=20), st.integers(1, 24))
def test_roads_agree_on_any_floats(values: list[float], k: int) -> None:
    """Whatever bits the scores have, the three agree and the selection is valid."""
    call = cases.make_call(torch.tensor([values], dtype=torch.float32), (len(values),), k)
    found = [road(call)["blocks"] for road in ROADS]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert selection_faults(found[0], call.inputs["scores"], call.inputs["lengths"]) == []


def test_ordered_integers_order_as_floats_do() -> None:
    """The images of sorted floats ascend strictly, from -inf to +inf."""
    values = torch.tensor([-INFINITY, -1e30, -1.0, -1e-45, 0.0, 1e-45, 1.0, 1e30, INFINITY])
    images = oracle.ordered_integers(values)
    assert bool((images.diff() > 0).all())
    assert oracle.ordered_integers(torch.tensor([-0.0, float("nan")])).tolist() == [int(images[4]), int(images[0])]


def test_more_than_a_buffer_of_equal_leading_digits() -> None:
    """Where 5000 keys share the threshold's bucket and the wanted ones come last, they are found."""
    call = cases.synthesise(cases.make_row(1, 5000, "bucket"), 1)
    assert oracle.emulate(call)["blocks"][0].tolist() == list(range(5000 - 512, 5000))
