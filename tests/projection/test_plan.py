"""Plans: what is refused, which cells there are, how rounds are mirrored."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.projection import plan
from kda_lab.projection.inputs import RealRows
from kda_lab.projection.plan import ARMS, Cell, Plan


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tokens": []}, r"tokens is \[\]; allowed: at least one of the numbers from 1, each once"),
        ({"tokens": [0]}, r"tokens is \[0\]"),
        ({"tokens": [4, 4]}, r"tokens is \[4, 4\]; allowed: .* each once"),
        ({"attn_tp": [0]}, r"attn_tp is \[0\]; allowed: at least one of the divisors of 96"),
        ({"attn_tp": [5]}, r"attn_tp_size is 5; allowed: a divisor of 96"),
        ({"modes": ["cold"]}, r"modes is \['cold'\]; allowed: at least one of 'eager', 'graph'"),
        ({"rounds": 1}, "rounds is 1; allowed: at least 2"),
        ({"seconds": 0.0}, r"seconds is 0\.0; allowed: at least 0, above 0"),
        ({"window_ms": float("nan")}, "window_ms is nan"),
    ],
)
def test_impossible_plans_are_refused(given: dict[str, Any], words: str) -> None:
    """Empty and repeated lists, unknown modes, sizes that do not divide, times that are none."""
    with pytest.raises(ParameterError, match=words):
        Plan(**given)


def test_a_plan_wants_rows_that_are_there() -> None:
    """More tokens than x has, and a model of another width, are refused before anything is measured."""
    x = RealRows("smollm", "a model", 15, torch.ones(8, 7168).bfloat16(), "abc")
    with pytest.raises(ParameterError, match="tokens is 9; allowed: at most 8, the tokens of smollm layer 15"):
        Plan(tokens=[9, 1], x=x)
    with pytest.raises(ParameterError, match="hidden is 7168; allowed: 3, the width of smollm layer 15"):
        Plan(tokens=[1], x=replace(x, states=x.states[:, :3]))
    assert Plan(tokens=[8], x=x).x is x


def test_the_default_is_the_whole_sweep() -> None:
    """Nine numbers of tokens, five sizes, two modes: 90 cells in a hundred seconds."""
    full = Plan()
    cells = [cell for size in full.attn_tp for cell in full.cells(size)]
    assert (len(cells), len(set(cells)), full.seconds) == (90, 90, 100.0)
    assert cells[1] == Cell(1, 1, "graph")
    assert cells[1].label == "tp1-M1-graph"


def test_weights_rotate_over_what_the_cache_cannot_hold() -> None:
    """As many sets as the bytes need, two at least; every set equally often in a replay of at least 12 calls."""
    assert [plan.set_count(w, 315) for w in (711, 316, 90, 46)] == [2, 2, 4, 7]
    assert [plan.calls_of(n) for n in (2, 5, 7, 12, 20)] == [12, 15, 14, 12, 20]


def test_every_second_round_is_mirrored() -> None:
    """A drift within a pair of rounds falls on both arms alike: every arm has one mean place."""
    for number in range(0, 8, 2):
        assert plan.order_of(number + 1) == plan.order_of(number)[::-1]
        places = Counter[str]()
        for turn in (number, number + 1):
            for place, arm in enumerate(plan.order_of(turn)):
                places[arm] += place
        assert set(places.values()) == {len(ARMS) - 1}
    assert {plan.order_of(number)[0] for number in range(0, 8, 2)} == set(ARMS)
