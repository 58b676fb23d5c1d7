"""Identities between KDA's decode ops, each kernel against another kernel on the same tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kda_lab.notebook import ssm_calls
from kda_lab.notebook.ssm_calls import Drawn
from kda_lab.ops.protocol import Arm, Call
from kda_lab.report.qsa_stage_figure import StageCheck
from kda_lab.timing.recheck import poison
from kda_lab.verify import metrics
from kda_lab.verify.guarded import bits

STATE_LIMIT = 1e-5
"""rel-L2 between two FP32 states of a few tokens whose sums run in another order."""
RECORD_LIMIT = 2e-2
"""rel-L2 between packed decode and a replay of up to 15 records, whose d and k̂ are rounded to BF16 (2^-9 each)."""
Arms = Mapping[str, Arm]
"""Op to the arm that computes it."""


def run(arms: Arms, call: Call) -> Call:
    """Launch the op's arm once on poisoned outputs; what is updated in place begins as given."""
    poison(call)
    call.restore()
    arms[call.op].bind([call])[0]()
    return call


def verify_checks(arms: Arms, drawn: Drawn) -> list[StageCheck]:
    """Ring against snapshots: equal outputs and windows, and the fold of n tokens is snapshot n, for every n."""
    snapshots = run(arms, ssm_calls.verify_call(drawn, ring=False))
    ring = run(arms, ssm_calls.verify_call(drawn, ring=True))
    names = f"{arms['kda.verify_ring'].name}, {arms['kda.verify_snapshots'].name}"
    found = [
        _equal(f"{n} with and without the ring", names, ring.outputs[n], snapshots.outputs[n])
        for n in ("out", "windows")
    ]
    live, fold_name = drawn.state_indices >= 0, arms["kda.fold"].name
    named = drawn.state_indices[live].long()
    for accepted in range(drawn.count + 1):
        state = run(arms, ssm_calls.fold_call(drawn, ring, accepted)).outputs["state"][0]
        what = f"fold of {accepted} tokens"
        if not accepted:
            found.append(_equal(f"{what} is the state before", fold_name, state, drawn.state))
            continue
        wanted = drawn.state.clone()
        wanted[named] = snapshots.outputs["snapshots"][live, accepted - 1]
        found.append(_close(f"{what} is snapshot {accepted}", fold_name, (state[named], wanted[named]), STATE_LIMIT))
        found.append(_untouched(f"{what}: other slots", fold_name, state, drawn))
    return found


def replay_checks(arms: Arms, drawn: Drawn, places: int, predecayed: bool) -> list[StageCheck]:
    """All tokens one by one through a ring of `places`: outputs as packed decode's, and its state behind each flush."""
    memory, state = ssm_calls.empty_rings(drawn, places, predecayed), drawn.state
    worst: dict[str, list[float]] = {"outputs": [], "states": []}
    flushes = 0
    for token in range(drawn.count):
        packed = run(arms, ssm_calls.packed_call(drawn, token, state))
        replayed = run(arms, ssm_calls.replay_call(drawn, token, memory, predecayed))
        state = packed.outputs["state"]
        worst["outputs"].append(metrics.rel_l2(replayed.outputs["out"], packed.outputs["out"]))
        full = (token + 1) % places == 0
        if full:
            flushes += 1
            worst["states"].append(metrics.rel_l2(replayed.outputs["state"], state))
        written = {n: replayed.outputs[n] for n in replayed.updated}
        after = 0 if full else (token + 1) % places
        memory = {**memory, **written, "write_positions": torch.full_like(memory["write_positions"], after)}
    keys = "pre-decayed keys" if predecayed else "raw keys"
    name = arms["kda.replay_decode"].name
    words = {"outputs": f"{drawn.count} tokens by replay, {keys}", "states": f"state behind {flushes} flushes, {keys}"}
    # With one place nothing is kept: the same arithmetic as packed decode.
    limit = RECORD_LIMIT if places > 1 else 0.0
    return [_judged(words[what], name, metrics.worst(errors), limit) for what, errors in worst.items()]


def _close(stage: str, arm: str, pair: tuple[torch.Tensor, torch.Tensor], limit: float) -> StageCheck:
    return _judged(stage, arm, metrics.rel_l2(*pair), limit)


def _judged(stage: str, arm: str, error: float, limit: float) -> StageCheck:
    detail = "" if error <= limit else f"error is {error:.3g}; allowed: at most {limit:.3g}"
    return StageCheck(stage, arm, error, limit, "rel-L2", detail)


def _equal(stage: str, arm: str, value: torch.Tensor, reference: torch.Tensor) -> StageCheck:
    """Bit for bit; the error is the number of elements that differ."""
    count = int(torch.count_nonzero(bits(value) != bits(reference)))
    return StageCheck(stage, arm, float(count), 0.0, "elements", f"{count} elements differ" if count else "")


def _untouched(stage: str, arm: str, state: torch.Tensor, drawn: Drawn) -> StageCheck:
    kept = torch.ones(drawn.geometry.slots, dtype=torch.bool, device=state.device)
    kept[drawn.state_indices[drawn.state_indices >= 0].long()] = False
    return _equal(stage, arm, state[kept], drawn.state[kept])
