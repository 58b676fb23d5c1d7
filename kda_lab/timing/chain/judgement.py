"""Is a chain right? Its very launches, on changed inputs and poisoned outputs, against the oracle and the state."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kda_lab import runtime
from kda_lab.ops.protocol import Call
from kda_lab.timing.chain import records
from kda_lab.timing.chain.arms import ChainArm
from kda_lab.timing.chain.assembly import Chain, layer_sets
from kda_lab.timing.chain.plan import ChainPlan
from kda_lab.timing.chain.state import deviation
from kda_lab.timing.graph import Replay
from kda_lab.timing.recheck import SEED_OFFSET, limit_of, poison, refill, relative_l2, unwritten
from kda_lab.timing.trials import in_words

Judged = dict[str, Any]
"""Fields `recheck` and `outputs_sha256` of a record."""
_NOTHING = ("", 0.0, 0.0)
"""What is said of the products of a chain without products."""


@dataclass
class Judge:
    """Judges chains of one plan. The limit of a product is found once, since its emulation costs more than a pass."""

    op: Any
    plan: ChainPlan
    limits: dict[str, float] = field(default_factory=dict)

    def judge(self, chain: Chain, replay: Replay, passes: int, *, seed: int, synchronise: Callable[[], None]) -> Judged:
        """Refill the first and the last layer and every state, poison every output, replay once, judge.

        Every product of the chain must be written. Those of the first and the last layer must agree with
        `op.oracle.oracle_fp32`, and every state must hold what that many touches leave behind.

        Args:
            chain: what `replay` launches.
            replay: launches `passes` passes.
            passes: of one replay.
            seed: chains that are judged with one seed see the same values, so that their bits compare.
            synchronise: waits for the device.
        """
        chosen = sorted({0, len(chain.calls) - 1})
        self._refill(chain, chosen, seed + SEED_OFFSET)
        everything = [call for layer in chain.calls for call in layer]
        for call in everything:
            poison(call)
        expected = [state.expected(passes * self.plan.touches_per_layer) for state in chain.states]
        synchronise()
        replay()
        synchronise()
        faults = _state_faults(chain, expected)
        left = unwritten(everything)
        if left:
            faults.append(f"{left} of {len(everything)} products kept poison in their outputs after the replay")
        errors = [self._product(chain, layer, number) for layer in chosen for number in range(len(chain.calls[0]))]
        faults += [
            f"{where}: error is {e:.3g}; allowed: at most {most:.3g}" for where, e, most in errors if not e <= most
        ]
        # The one that uses most of its limit stands for all.
        _, error, limit = max(errors, key=lambda found: found[1] / found[2] if found[2] else found[1], default=_NOTHING)
        verdict = {
            "passed": not faults,
            "error": error if math.isfinite(error) else None,
            "limit": limit,
            "detail": "; ".join(faults),
        }
        return {"recheck": verdict, "outputs_sha256": outputs_sha256(everything)}

    def _product(self, chain: Chain, layer: int, number: int) -> tuple[str, float, float]:
        """Where, error and limit of one product; an error that is not a number is infinite."""
        call = chain.calls[layer][number]
        error = relative_l2(call, self.op.oracle.oracle_fp32(call))
        return f"layer {layer}, {self.plan.rows[number].label}", error, self._limit(number, call)

    def _refill(self, chain: Chain, chosen: Sequence[int], seed: int) -> None:
        for number in range(len(self.plan.rows) if chain.calls[0] else 0):
            targets = [chain.calls[layer][number] for layer in chosen]
            refill(targets, layer_sets(self.op, self.plan, number, len(chosen), targets[0].device, seed))
        for layer, state in enumerate(chain.states):
            state.fill(seed + layer)
        chain.prepare()

    def _limit(self, number: int, call: Call) -> float:
        """Limit of one product, by the gate of the op on values like these."""
        label = self.plan.rows[number].label
        if label not in self.limits:
            self.limits[label] = limit_of(self.op, call).plain
        return self.limits[label]


def _state_faults(chain: Chain, expected: Sequence[torch.Tensor]) -> list[str]:
    faults = []
    for layer, (state, exact) in enumerate(zip(chain.states, expected, strict=True)):
        share = deviation(state, exact)
        if not share <= 1:
            faults.append(f"layer {layer}: the state is off by {share:.3g} times its tolerance: a touch is missing")
    return faults


def outputs_sha256(calls: Sequence[Call]) -> str:
    """One hash over the bytes of all outputs, in order; empty without calls."""
    if not calls:
        return ""
    digest = hashlib.sha256()
    for call in calls:
        for tensor in call.outputs.values():
            digest.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


def check_chain(
    op: Any, plan: ChainPlan, arms: Sequence[ChainArm], *, device: torch.device, seed: int, judge: Judge | None = None
) -> list[dict[str, Any]]:
    """Run one pass of every arm's chain from the host, untimed, and judge it.

    Returns:
        One validated `check` record an arm, or a `refused` one where the arm cannot run here.
    """
    judge = judge or Judge(op, plan)
    provenance = runtime.provenance(device)
    found = []
    for arm in arms:
        identity = {**arm.identity(plan, provenance), "device": device.type}
        refused, judged = arm.unavailable(device), {}
        if not refused:
            try:
                judged = _checked(judge, arm, device, seed)
            # Expected: whatever an arm or its library raises for a geometry that it does not serve.
            except Exception as error:  # noqa: BLE001
                refused = in_words(error)
        checked = {"kind": "check", "interpreter": runtime.interpreter_on(), **judged}
        outcome = {"kind": "refused", "reason": refused} if refused else checked
        found.append(records.validated({**identity, **outcome}))
    return found


def _checked(judge: Judge, arm: ChainArm, device: torch.device, seed: int) -> Judged:
    chain = arm.build(judge.op, judge.plan, device=device, seed=seed)
    wait = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
    return judge.judge(chain, chain, 1, seed=seed, synchronise=wait)
