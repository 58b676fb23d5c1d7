"""Calls that update a tensor in place: what is restored, judged apart, and which mistakes the checks see."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab.ops.arms import launcher
from kda_lab.ops.gate import Limits
from kda_lab.ops.protocol import Call, FunctionArm, OpSpec, Row
from kda_lab.timing import recheck
from kda_lab.verify import checks_of, replay
from kda_lab.verify.reference import make_reference
from kda_lab.verify.stress import stress

SPEC = OpSpec("toy.add", ("x", "pool", "slots"), (), ("out", "pool"))
Write = Callable[[Call], None]


def add(call: Call, pool: torch.Tensor) -> dict[str, torch.Tensor]:
    """Each row of x is added to its slot; out is twice the slot afterwards."""
    pool, slots = pool.clone(), call.inputs["slots"].long()
    pool[slots] += call.inputs["x"].to(pool.dtype)
    return {"out": 2 * pool[slots], "pool": pool}


def right(call: Call) -> None:
    for name, value in add(call, call.outputs["pool"]).items():
        call.outputs[name].copy_(value)


def forgets_the_pool(call: Call) -> None:
    call.outputs["out"].copy_(add(call, call.outputs["pool"])["out"])


def touches_a_foreign_slot(call: Call) -> None:
    right(call)
    call.outputs["pool"][0] *= 1 + 2**-20


def rounds_the_pool(call: Call) -> None:
    right(call)
    pool, slots = call.outputs["pool"], call.inputs["slots"].long()
    pool[slots] = pool[slots].bfloat16().float()


def fresh(seed: int) -> Call:
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn(5, 8, generator=generator)
    inputs = {"x": torch.randn(3, 8, generator=generator), "pool": pool, "slots": torch.tensor([4, 1, 3])}
    call = Call("toy.add", inputs, {}, {"out": torch.zeros(3, 8), "pool": torch.zeros(5, 8)}, "toy")
    call.restore()
    return call


def make_op() -> Any:
    def allowance(call: Call, exact: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        allowed = {name: 0.1 * torch.ones_like(value) for name, value in exact.items()}
        kept = torch.ones(5, dtype=torch.bool)
        kept[call.inputs["slots"].long()] = False
        allowed["pool"][kept] = 0
        return allowed

    def changed(call: Call, name: str, seed: int, source: Call | None) -> dict[str, torch.Tensor]:
        return {**call.inputs, name: fresh(seed + 7).inputs[name]}

    oracle = SimpleNamespace(
        oracle_fp32=lambda call: add(call, call.inputs["pool"]),
        oracle_fp64=lambda call: add(call, call.inputs["pool"].double()),
        emulate=lambda call: add(call, call.inputs["pool"]),
        allowance=allowance,
    )
    cases = SimpleNamespace(
        CHANGES=("x", "pool"),
        changed=changed,
        with_guard_rows=lambda call, count: call,
        make_sets=lambda row, count, seed, device: [fresh(seed + i) for i in range(count)],
    )
    gates = SimpleNamespace(
        limits=lambda kind, floor, row=None: Limits(1e-2, 1e-2), updated_limit=lambda kind, floor: 1e-6
    )
    return SimpleNamespace(spec=SPEC, oracle=oracle, cases=cases, gates=gates)


def capture() -> Any:
    return SimpleNamespace(name="toy", kind="synthetic", call=fresh(1), pinned={}, sha256="0" * 64)


def judge(write: Write, without: str = "") -> tuple[str, ...]:
    op = make_op()
    checks = [check for check in checks_of(op) if check.name != without]
    return replay(op, FunctionArm("toy", write), capture(), "cpu", checks=checks).failed


def test_the_updated_tensor_has_a_check_of_its_own() -> None:
    """The op's checks name it, a right arm passes them, and the record says both errors."""
    op = make_op()
    done = replay(op, FunctionArm("right", right), capture(), "cpu")
    assert done.passed
    assert done.errors["updated"] == 0.0
    assert "error_updated" in [check.name for check in done.checks]


@pytest.mark.parametrize(
    ("write", "caught"),
    [(forgets_the_pool, "error_updated"), (rounds_the_pool, "error_updated"), (touches_a_foreign_slot, "element_max")],
)
def test_a_wrong_pool_is_seen(write: Write, caught: str) -> None:
    """A pool that is not written, written coarsely, or written where nothing was named fails, by the check meant for it."""
    assert caught in judge(write)
    assert "error_fp32" not in judge(write)


def test_only_the_limit_of_the_pool_sees_coarse_rounding() -> None:
    """With the limit of the other output alone, a pool in too few bits would pass the first launch."""
    assert judge(rounds_the_pool, without="error_updated") == ("changed_x", "changed_pool")


def test_every_stressed_launch_begins_with_the_same_contents() -> None:
    """Ten launches in place give equal bits, and a launcher that adds a step of its own does not."""
    reference = make_reference(make_op(), capture(), torch.device("cpu"))
    assert stress(FunctionArm("right", right), reference, launches=10).passed
    count = [0]

    def drifts(call: Call) -> None:
        right(call)
        count[0] += 1
        call.outputs["pool"][4] += count[0]

    assert stress(FunctionArm("drifts", drifts), reference, launches=10).differing == 10


def test_a_launcher_passes_the_updated_memory_once() -> None:
    """The entry gets the output's memory in the tensor's place and no keyword of that name."""
    call, seen = fresh(1), {}

    def entry(x: torch.Tensor, pool: torch.Tensor, slots: torch.Tensor, *, out: torch.Tensor) -> None:
        seen.update(pool=pool, out=out)

    launcher(entry, SPEC, call)()
    assert seen["pool"] is call.outputs["pool"]
    assert seen["out"] is call.outputs["out"]
    assert call.updated == ("pool",)


@pytest.mark.parametrize(("calls", "sets"), [(2, 2), (5, 2), (3, 1)])
def test_the_recheck_counts_the_launches_of_a_set(calls: int, sets: int) -> None:
    """A replay that launches a set several times is compared with the oracle applied as often."""
    op, row = make_op(), Row("toy.add", "toy", {})
    bound = [fresh(i) for i in range(sets)]

    def timed(times: int) -> recheck.Timed:
        def run() -> None:
            for index in range(times):
                right(bound[index % sets])

        return recheck.Timed(bound, [run] * sets, run, seed=1, calls=calls)

    assert recheck.recheck(op, row, timed(calls), synchronise=lambda: None)["passed"]
    wrong = recheck.recheck(op, row, timed(calls + 1), synchronise=lambda: None)
    assert not wrong["passed"]
    assert "updated in place" in wrong["detail"]


def test_limits_of_a_call_with_both_kinds_of_output() -> None:
    """Each kind has its own."""
    found = recheck.limit_of(make_op(), fresh(1))
    assert (found.plain, found.updated) == (1e-2, 1e-6)
