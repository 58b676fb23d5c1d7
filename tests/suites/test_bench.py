"""The bench: launches counted, answers judged by element and as a whole, state read and reset."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab.suites.bench import Bench
from kda_lab.verify.launching import ArmFailure

TP2 = (12, 1)


def test_launches_are_counted(bench_of: Any) -> None:
    """Those of a bound launcher and those of a graph's stand-in on a CPU."""
    bench: Bench = bench_of("right")
    call = bench.call((5, 3), TP2)
    launch = bench.bind(call)
    launch()
    launch()
    bench.captured(call)()
    assert bench.launches == 3


def test_a_right_answer_has_no_fault(bench_of: Any) -> None:
    """Poisoned before the launch, copied after it."""
    bench: Bench = bench_of("right")
    assert bench.judged(bench.call((65, 0, 1), TP2)) == ""


def test_a_wrong_element_and_a_wrong_whole_are_faults(bench_of: Any) -> None:
    """One element far off, one NaN, and a drift too small for any element alone."""
    bench: Bench = bench_of("right")
    call = bench.call((65, 7), TP2)
    out = bench.run(call)
    far, lost = out.clone(), out.clone()
    far[1, 2, 3] += 1
    lost[0, 0, 0] = float("nan")
    assert bench.fault(call, far) == bench.fault(call, lost) == "1 elements differ by more than 0.02; allowed: 0"
    assert bench.fault(call, out.float() * 1.01).startswith("rel-L2 is 0.01")


def test_an_arm_that_raises_fails_as_an_arm(bench_of: Any) -> None:
    """The stage and the words, so that a suite can record them."""
    bench: Bench = bench_of("raises")
    with pytest.raises(ArmFailure, match="launch: RuntimeError: no such geometry"):
        bench.run(bench.call((3,), TP2))


def test_state_is_read_and_reset(bench_of: Any) -> None:
    """A counter that is left is named; the source's own reset clears it, and an arm without one is left alone."""
    bench: Bench = bench_of("counting")
    bench.run(bench.call((3,), TP2))
    assert bench.state_fault() == "state is not zero: {'count': 1}; allowed: all zero"
    bench.reset()
    assert bench.state_fault()
    bench.arm.module = SimpleNamespace(reset_state=bench.arm.count.zero_)
    bench.reset()
    assert bench.state_fault() == ""
    bench.run(bench.call((3,), TP2))
    bench.arm.reset_state = bench.arm.count.zero_
    bench.reset()
    assert bench.state_fault() == ""


def test_a_contract_says_which_launches_may_overlap(bench_of: Any) -> None:
    """The words of the arm's declaration; none for an arm without one."""
    bench: Bench = bench_of("right")
    assert bench.concurrency == ""
    bench.arm = SimpleNamespace(concurrency="one at a time")
    assert bench.concurrency == "one at a time"
    state = SimpleNamespace(concurrency="replays must not overlap")
    bench.arm = SimpleNamespace(declaration=SimpleNamespace(state=state))
    assert bench.concurrency == "replays must not overlap"


def test_what_stands_in_for_a_kernel_is_named(bench_of: Any) -> None:
    """As its arm says for this device; nothing for an arm that runs itself."""
    bench: Bench = bench_of("right")
    assert bench.stand_in == ""
    bench.arm = SimpleNamespace(stand_in=lambda device: f"torch twin on {device}")
    assert bench.stand_in == "torch twin on cpu"


def test_a_gpu_repeats_more_often(bench_of: Any) -> None:
    """The counts of a CPU are for an interpreted kernel."""
    bench: Bench = bench_of("right")
    assert bench.count(1000, 3) == 3
    bench.device = torch.device("cuda")
    assert bench.count(1000, 3) == 1000
