"""A decode trace as a chain: the calls of one forward pass are one layer of it, and so many forwards run in one graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kda_lab.errors import ParameterError, Reason
from kda_lab.timing.chain.measure import WHOLE
from kda_lab.timing.chain.plan import ChainPlan
from kda_lab.timing.protocol import Protocol

TARGET_LAYERS, DRAFT_STEPS = 12, 3
"""Calls of one forward of the source thread's model: attention layers of the target, steps of the draft."""
VERIFIED_TOKENS = 4
"""Query rows of one request in the target: the token before and three drafted ones."""
NEEDED = ("reference", "control", "policy")
"""Roles whose refusal or missing trials fail a trace."""

Record = dict[str, Any]


def plan_trace(
    op: Any, topology: str, *, requests: int, forwards: int, kinds: Sequence[str], layers: Sequence[int]
) -> ChainPlan:
    """The chain of a decode trace.

    Args:
        op: with `.spec` and `.cases.rows(topologies, batches, kinds)`.
        topology: of all rows.
        requests: decoded together; a target row has four query rows a request, a draft row one.
        forwards: at least 2, so that the first and the last can be judged apart.
        kinds: length classes of the target's rows and of the draft's.
        layers: calls of a forward by the target and by the draft: 12 and 3 for the model of the source thread.

    Raises:
        ParameterError: one reason for each value that is not allowed.
    """
    reasons = []
    for field, value, least in (("requests", requests, 1), ("forwards", forwards, 2)):
        if value < least:
            reasons.append(Reason(field, repr(value), f"at least {least}"))
    if len(kinds) != 2:
        reasons.append(Reason("kinds", repr(list(kinds)), "two: of the target's rows and of the draft's"))
    if len(layers) != 2 or min(layers) < 1:
        reasons.append(Reason("layers", repr(list(layers)), "two numbers of 1 or more: of the target and of the draft"))
    if reasons:
        raise ParameterError("timing", reasons)
    target = op.cases.rows([topology], [VERIFIED_TOKENS * requests], [kinds[0]])
    draft = op.cases.rows([topology], [requests], [kinds[1]])
    model = f"{topology} decode of {requests} request" + "s" * (requests != 1)
    return ChainPlan(op.spec.name, model, tuple(target * layers[0] + draft * layers[1]), forwards, 0)


def calls_of(plan: ChainPlan) -> int:
    """Calls of one pass over all forwards."""
    return plan.layers * len(plan.rows)


def trace_faults(
    records: Sequence[Record], plan: ChainPlan, *, kernels_per_call: Mapping[str, int], protocol: Protocol
) -> list[str]:
    """One sentence for each thing that is wrong or missing; empty when the trace stands. Never a speed.

    Args:
        records: of `judgement.check_chain` and `measure.time_chain`.
        plan: of the chain.
        kernels_per_call: arm to the device activities that its declaration promises for one call.
        protocol: trials an arm needs.
    """
    checks = [r for r in records if r["kind"] == "check"]
    timed = [r for r in records if r["kind"] == "chain"]
    found = [f"{r['arm']}: {r['recheck']['detail']}" for r in [*checks, *timed] if not r["recheck"]["passed"]]
    found += [f"{r['arm']} was refused: {r['reason']}" for r in records if _is_missed(r)]
    for role in ("reference", "policy"):
        if role not in [r["role"] for r in checks]:
            found.append(f"no arm with role {role} was checked; needed: one")
    for arm, role in dict.fromkeys((r["arm"], r["role"]) for r in timed if r["role"] in NEEDED):
        good = sum(not r["dropped"] for r in timed if (r["arm"], r["role"]) == (arm, role))
        if good < protocol.trials:
            found.append(f"{arm} ({role}): {good} good trials; needed: {protocol.trials}")
    for record in timed:
        found += _kernel_faults(record, plan, kernels_per_call.get(record["arm"]))
    return list(dict.fromkeys(found))


def _is_missed(record: Record) -> bool:
    return record["kind"] == "refused" and record["role"] in NEEDED


def _kernel_faults(record: Record, plan: ChainPlan, promised: int | None) -> list[str]:
    """Each call runs what its declaration promises, and a pass runs exactly the activities of its calls."""
    found: list[str] = []
    expected: Counter[str] = Counter()
    for row in plan.rows:
        counts = record["kernels"].get(row.label)
        if counts is None:
            return found
        if promised is not None and sum(counts.values()) != promised:
            found.append(f"{record['arm']}: {sum(counts.values())} kernels for {row.label}, declared {promised}")
        expected.update({name: count * plan.layers for name, count in counts.items()})
    whole = record["kernels"].get(WHOLE)
    if whole is not None and promised is not None and expected != Counter(whole):
        found.append(f"{record['arm']}: a pass ran {whole}; its calls give {dict(expected)}")
    return found
