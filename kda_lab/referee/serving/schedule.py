"""The order of cells: the baseline stands on both sides of every candidate, and every other round runs backwards.

With one candidate B, baseline A and its repeat a: A B a, then a B A. Over two rounds A, a and B have the same mean
place, so that a linear drift adds the same to each; without the repeats the order is A B B A. The repeat is the A/A
control of its round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kda_lab.referee.serving.plan import CONTROL_SUFFIX, Plan

Role = Literal["baseline", "candidate", "control"]


@dataclass(frozen=True)
class Cell:
    """One measurement: one arm at one concurrency in one round."""

    order: int
    """Place in the whole schedule, from 0."""
    arm: str
    role: Role
    concurrency: int
    round: int
    visit: int
    """How many cells of this round and concurrency the same server has in the forward order before this one."""

    @property
    def key(self) -> str:
        """Name of the cell, fit for a file."""
        return f"c{self.concurrency}-r{self.round}-{self.arm}"

    @property
    def salt(self) -> str:
        """What salted prompts depend on: the same for arms on servers of their own, so that they answer the same."""
        return f"c{self.concurrency} r{self.round} v{self.visit}"


def schedule(plan: Plan) -> tuple[Cell, ...]:
    """All cells of a plan in their order: rounds outermost, so that a run cut short holds whole rounds."""
    candidates = [arm.name for arm in plan.arms if arm.name != plan.baseline]
    forward: list[tuple[str, Role]] = [(plan.baseline, "baseline")]
    forward += [(name, "candidate") for name in candidates]
    forward += [(plan.baseline + CONTROL_SUFFIX, "control")]
    urls = [plan.arm(arm).base_url for arm, _ in forward]
    visits = {arm: urls[:place].count(urls[place]) for place, (arm, _) in enumerate(forward)}
    cells: list[Cell] = []
    for number in range(plan.rounds):
        for concurrency in plan.concurrency:
            for arm, role in forward if number % 2 == 0 else reversed(forward):
                cells.append(Cell(len(cells), arm, role, concurrency, number, visits[arm]))
    return tuple(cells)
