"""Build a chain: fresh tensors, one arm bound to every product, and the steps of one pass in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kda_lab.errors import Reason, TimingError
from kda_lab.ops.protocol import Arm, Call, Launcher, preparation_of
from kda_lab.timing.chain.plan import ChainPlan
from kda_lab.timing.chain.state import LayerState

ROW_SEED, STATE_SEED = 7_919, 104_729
"""Keep the tensors of a layer's products, and its state, apart from each other."""
STATE_STEP = "state"


@dataclass(frozen=True)
class Step:
    """One launch of the chain: a product, named by its row, or a touch of the state."""

    kind: str
    layer: int
    launch: Launcher


@dataclass(frozen=True)
class Chain:
    """A chain that is ready to run. Called, it launches one pass over all layers on the current stream.

    The activations of every product are fixed tensors: no output is fed forward, since quantising it would time
    another op. What the chain adds to a loop of calls is the order of memory, not the flow of data.
    """

    plan: ChainPlan
    calls: tuple[tuple[Call, ...], ...]
    """Calls by layer, then by row; empty layers where the products are left out."""
    states: tuple[LayerState, ...]
    steps: tuple[Step, ...]

    def __call__(self) -> None:
        for step in self.steps:
            step.launch()

    def prepare(self) -> None:
        """Repeat what depends on contents (weights dequantised beforehand) after inputs were refilled."""
        for step in self.steps:
            again = preparation_of(step.launch)
            if again is not None:
                again()

    def first_of_each_kind(self) -> dict[str, Step]:
        """Step kind to its first step: for the proof of what ran."""
        found: dict[str, Step] = {}
        for step in self.steps:
            found.setdefault(step.kind, step)
        return found

    def count(self, kind: str) -> int:
        """Steps of one kind in a pass."""
        return sum(step.kind == kind for step in self.steps)


def build_chain(op: Any, plan: ChainPlan, arm: Arm | None, *, device: torch.device, seed: int) -> Chain:
    """Fresh tensors and launchers for one chain.

    Args:
        op: with `.cases.make_sets(row, count, seed, device)`.
        plan: geometry.
        arm: runs every product; None leaves the products out, so that the state's own time is measured.
        device: where.
        seed: two chains of one seed hold the same values.

    Raises:
        TimingError: neither products nor state are left.
    """
    by_row: list[Sequence[Call]] = []
    launchers: list[Sequence[Launcher]] = []
    if arm is not None:
        by_row = [layer_sets(op, plan, number, plan.layers, device, seed) for number in range(len(plan.rows))]
        launchers = [arm.bind(sets) for sets in by_row]
    states = _states(plan, device, seed)
    steps = [step for layer in range(plan.layers) for step in _layer_steps(plan, layer, launchers, states)]
    if not steps:
        raise TimingError(
            "timing", [Reason("steps", "0", "at least 1", "Give the chain a state_mb above 0, or an arm.")]
        )
    calls = tuple(tuple(sets[layer] for sets in by_row) for layer in range(plan.layers))
    return Chain(plan, calls, states, tuple(steps))


def layer_sets(op: Any, plan: ChainPlan, number: int, count: int, device: torch.device, seed: int) -> Sequence[Call]:
    """`count` calls of the layer's product `number`, each with weights of its own."""
    return list(op.cases.make_sets(plan.rows[number], count, seed + number * ROW_SEED, device))


def _states(plan: ChainPlan, device: torch.device, seed: int) -> tuple[LayerState, ...]:
    if not plan.state_bytes:
        return ()
    states = tuple(LayerState.of(plan.state_bytes, device) for _ in range(plan.layers))
    for layer, state in enumerate(states):
        state.fill(seed + STATE_SEED + layer)
    return states


def _layer_steps(
    plan: ChainPlan, layer: int, launchers: Sequence[Sequence[Launcher]], states: Sequence[LayerState]
) -> list[Step]:
    """A touch of the layer's state before each product, whether or not the product is there."""
    steps = []
    for number, row in enumerate(plan.rows):
        if states:
            steps.append(Step(STATE_STEP, layer, states[layer].touch))
        if launchers:
            steps.append(Step(row.label, layer, launchers[number][layer]))
    return steps
