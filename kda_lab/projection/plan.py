"""What a study measures: cells of attention-parallel size, tokens and mode, and how long it may take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from kda_lab.errors import ParameterError, Reason
from kda_lab.projection.arms import CONTROL, FIVE, SIDE, THREE
from kda_lab.projection.inputs import DRAWN, Rows
from kda_lab.projection.sizes import K3, ROOM, Model, splits

CellMode = Literal["eager", "graph"]
ARMS = (FIVE, THREE, SIDE, CONTROL)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ATTN_TP = (1, 2, 4, 8, 16)
LEAST_CALLS = 12
"""Calls in one replay, at least: shorter graphs would show the gap between two graphs."""
LEAST_SETS = 2


@dataclass(frozen=True)
class Cell:
    """One operating point."""

    attn_tp: int
    tokens: int
    mode: CellMode

    @property
    def label(self) -> str:
        """`tp8-M4-graph`."""
        return f"tp{self.attn_tp}-M{self.tokens}-{self.mode}"


@dataclass(frozen=True)
class Plan:
    """A study.

    Its time is bounded by `seconds`: a cell begins only where the longest one so far would still fit. One cell takes
    about rounds x 4 arms x (window + two replays), and a tenth of a second for graphs, checks and profiles.

    Raises:
        ParameterError: an empty or impossible list, a repeated value, a number that is not positive, or x lacks so many tokens or is
            of another width.
    """

    tokens: Sequence[int] = TOKENS
    attn_tp: Sequence[int] = ATTN_TP
    modes: Sequence[CellMode] = ("eager", "graph")
    rounds: int = 8
    """Samples of every arm; each even one in the mirrored order of the one before, so that a drift cancels."""
    window_ms: float = 3.0
    """Device time of one sample."""
    seconds: float = 100.0
    seed: int = 0
    model: Model = K3
    x: Rows = DRAWN
    """What is multiplied by the weights, which are drawn whatever x is."""

    def __post_init__(self) -> None:
        reasons = [
            Reason(name, repr(list(given)), f"at least one of {allowed}, each once")
            for name, given, right, allowed in (
                ("tokens", self.tokens, all(n >= 1 for n in self.tokens), "the numbers from 1"),
                ("attn_tp", self.attn_tp, all(n >= 1 for n in self.attn_tp), f"the divisors of {self.model.heads}"),
                ("modes", self.modes, set(self.modes) <= set(get_args(CellMode)), "'eager', 'graph'"),
            )
            if not (given and right and len(set(given)) == len(given))
        ]
        for name, number, least in (
            ("rounds", self.rounds, 2),
            ("seconds", self.seconds, 0),
            ("window_ms", self.window_ms, 0),
        ):
            if not (math.isfinite(number) and number >= least and number > 0):
                reasons.append(Reason(name, repr(number), f"at least {least}, above 0"))
        if self.tokens:
            reasons += self.x.reasons(max(self.tokens), self.model.hidden)
        if reasons:
            raise ParameterError(ROOM, reasons)
        for size in self.attn_tp:
            splits(size, self.model)

    def cells(self, attn_tp: int) -> list[Cell]:
        """Cells of one attention-parallel size: the weights of the others need not be in memory."""
        return [Cell(attn_tp, tokens, mode) for tokens in self.tokens for mode in self.modes]


def set_count(weight_bytes: int, rotated_bytes: int) -> int:
    """Weight sets that together have at least `rotated_bytes`, and never fewer than two."""
    return max(LEAST_SETS, -(-rotated_bytes // weight_bytes))


def calls_of(sets: int) -> int:
    """Calls in one replay: every set equally often."""
    return sets * -(-LEAST_CALLS // sets)


def order_of(number: int) -> tuple[str, ...]:
    """The arms in the order in which round `number` samples them.

    Rounds come in pairs, the second one mirrored; from pair to pair another arm begins.
    """
    turn = number // 2 % len(ARMS)
    turned = (*ARMS[turn:], *ARMS[:turn])
    return turned[::-1] if number % 2 else turned
