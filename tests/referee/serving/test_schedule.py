"""The order of cells: bracketed by the baseline, and balanced against drift."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

from kda_lab.referee.serving.plan import Plan
from kda_lab.referee.serving.schedule import schedule


def test_two_arms_run_in_mirrored_rounds(make_plan: Callable[..., Plan]) -> None:
    """One round is baseline, candidate, repeat; the next runs backwards: without repeats A B B A."""
    cells = schedule(make_plan(rounds=2))
    assert [c.arm for c in cells] == ["base", "cand", "base-control", "base-control", "cand", "base"]
    assert [c.arm for c in cells if c.role != "control"] == ["base", "cand", "cand", "base"]
    assert [c.order for c in cells] == list(range(6))


@pytest.mark.parametrize("rounds", [2, 4, 10])
@pytest.mark.parametrize("concurrency", [[1], [1, 2, 4]], ids=str)
def test_a_linear_drift_favours_no_arm(make_plan: Callable[..., Plan], rounds: int, concurrency: list[int]) -> None:
    """Over an even number of rounds all arms of a concurrency have the same mean place."""
    places: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for cell in schedule(make_plan(rounds=rounds, concurrency=concurrency)):
        places[cell.concurrency, cell.arm].append(cell.order)
    means = {c: {sum(p) / len(p) for (k, _), p in places.items() if k == c} for c in concurrency}
    assert all(len(found) == 1 for found in means.values())


def test_every_cell_of_the_matrix_is_there_once(make_plan: Callable[..., Plan]) -> None:
    """Arms and the repeat, times concurrencies, times rounds; keys are names of their own."""
    cells = schedule(make_plan(rounds=3, concurrency=[1, 2]))
    assert len({c.key for c in cells}) == len(cells) == 3 * 2 * 3


def test_salts_are_shared_by_servers_and_not_on_a_server(make_plan: Callable[..., Plan]) -> None:
    """Arms on servers of their own get the same prompts; what a server sees twice is salted anew."""
    apart = {c.arm: c.salt for c in schedule(make_plan(rounds=1))}
    assert apart["base"] == apart["cand"] != apart["base-control"]
    together = [c.salt for c in schedule(make_plan(cand="arm=base", rounds=2))]
    assert len(set(together)) == 6
