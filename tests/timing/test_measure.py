"""One row, all arms: order, allocations, the control, refusals, throttling and cheats."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kda_lab.errors import ParameterError, TimingError
from kda_lab.ops.protocol import Call
from kda_lab.timing import measure, statistics
from kda_lab.timing.activity import Activity
from kda_lab.timing.protocol import Protocol

Factory = Callable[..., Any]


def key(record: dict[str, Any]) -> tuple[str, str]:
    return record["arm"], record["role"]


def fail(call: Call) -> None:
    raise ValueError("this geometry is\n not served")


@pytest.fixture
def pair(make_arm: Factory) -> list[tuple[Any, str]]:
    return [(make_arm("slow", 20.0), "baseline"), (make_arm("fast", 10.0), "candidate")]


def test_every_arm_has_every_trial_and_the_control_is_added(
    op: Any, row: Any, pair: Any, make_machine: Factory
) -> None:
    """Five trials of the baseline, the candidate and the baseline again, with the times they have."""
    found = measure.time_row(op, row, pair, machine=make_machine())
    assert sorted((*key(r), r["trial"]) for r in found) == sorted(
        (*arm, trial)
        for arm in [("slow", "baseline"), ("fast", "candidate"), ("slow", "control")]
        for trial in range(5)
    )
    assert {key(r): r["median_us"] for r in found} == {
        ("slow", "baseline"): 20.0,
        ("fast", "candidate"): 10.0,
        ("slow", "control"): 20.0,
    }
    assert {r["baseline"] for r in found} == {"slow"}
    assert {r["state"] for r in found} == {"cold"}
    assert all(r["kernels"] == {"double_kernel": 1} and len(r["samples_us"]) == 5 for r in found)


def test_trials_alternate_forward_and_backward(op: Any, row: Any, pair: Any, make_machine: Factory) -> None:
    """Records come in the order in which the arms ran: A B A', then A' B A."""
    found = measure.time_row(op, row, pair, machine=make_machine(), protocol=Protocol(trials=2))
    assert [(r["trial"], r["order"], *key(r)) for r in found] == [
        (0, 0, "slow", "baseline"),
        (0, 1, "fast", "candidate"),
        (0, 2, "slow", "control"),
        (1, 0, "slow", "control"),
        (1, 1, "fast", "candidate"),
        (1, 2, "slow", "baseline"),
    ]


def test_plan_is_cold_and_in_the_record(op: Any, row: Any, pair: Any, make_machine: Factory) -> None:
    """The cold proof is in each record: 5 L2 of 4096 bytes need 40 sets of 512 bytes; 1 ms of work is there."""
    found = measure.time_row(op, row, pair, machine=make_machine())
    assert {(r["input_sets"], r["bytes_rotated"], r["l2_bytes"]) for r in found} == {(40, 20480, 4096)}
    assert all(r["calls_per_graph"] * r["median_us"] >= 1000 for r in found)


def test_each_trial_has_new_inputs_that_all_arms_share(op: Any, row: Any, pair: Any, make_machine: Factory) -> None:
    """Every (arm, trial) makes its sets anew after memory was released; a trial's values are one seed."""
    released: list[int] = []
    machine = make_machine(release=lambda: released.append(len(op.made)))
    measure.time_row(op, row, pair, machine=machine, protocol=Protocol(trials=2))
    timed = [seed for count, seed in op.made if count == 40]
    assert len(timed) == 6
    assert [timed.count(seed) for seed in dict.fromkeys(timed)] == [3, 3]
    assert len(released) == 6
    assert pair[1][0].bound == [4, 40, 40]


def test_prepare_time_is_apart(op: Any, row: Any, pair: Any, make_machine: Factory) -> None:
    """The wall time of bind is its own field, in microseconds."""
    ticks = iter(range(1000))
    found = measure.time_row(op, row, pair, machine=make_machine(clock=lambda: next(ticks) * 1e-3))
    assert {round(r["prepare_us"], 6) for r in found} == {1000.0}


def test_arm_that_raises_is_refused_and_the_others_go_on(
    op: Any, row: Any, pair: Any, make_arm: Factory, make_machine: Factory
) -> None:
    """An arm's exception becomes its refusal, on one line; the others have all their trials."""
    found = measure.time_row(op, row, [*pair, (make_arm("peer", 1.0, fail), "peer")], machine=make_machine())
    refused = [r for r in found if r["kind"] == "refused"]
    assert [(key(r), r["reason"]) for r in refused] == [(("peer", "peer"), "ValueError: this geometry is not served")]
    assert len(found) == 16


def test_unavailable_arm_is_refused_with_its_reason(
    op: Any, row: Any, pair: Any, make_arm: Factory, make_machine: Factory
) -> None:
    """An arm that says it is unavailable is never bound."""
    peer = make_arm("peer", why_not="unavailable, because it needs another GPU")
    found = measure.time_row(op, row, [*pair, (peer, "peer")], machine=make_machine())
    assert [r["reason"] for r in found if r["kind"] == "refused"] == ["unavailable, because it needs another GPU"]
    assert peer.bound == []


def test_arm_that_fails_at_a_later_trial_loses_all(
    op: Any, row: Any, pair: Any, make_arm: Factory, make_machine: Factory
) -> None:
    """A kernel that fails at its third trial is refused; its first two trials are not kept."""
    launches: list[int] = []

    def flaky(call: Call) -> None:
        launches.append(1)
        if len(launches) > 100:
            raise RuntimeError("late")
        call.outputs["out"].copy_(call.inputs["x"] * 2)

    found = measure.time_row(op, row, [*pair, (make_arm("flaky", 5.0, flaky), "peer")], machine=make_machine())
    assert [r["kind"] for r in found if r["arm"] == "flaky"] == ["refused"]
    assert len(launches) == 101


def test_row_beyond_the_memory_share_is_refused_before_it_runs(
    op: Any, row: Any, pair: Any, make_machine: Factory
) -> None:
    """Sets that do not fit refuse every arm with the bytes; nothing is bound."""
    found = measure.time_row(op, row, pair, machine=make_machine(memory_bytes=1000))
    assert {r["kind"] for r in found} == {"refused"}
    assert "input_sets is 40 sets of 512 bytes, 20480 bytes in all; allowed: at most 400 bytes" in found[0]["reason"]
    assert pair[0][0].bound == []


def test_lost_device_stops_the_row(op: Any, row: Any, pair: Any, make_arm: Factory, make_machine: Factory) -> None:
    """When the device does not answer after an arm's failure, the row ends and names the arm."""
    state = {"dead": False}

    def kill(call: Call) -> None:
        state["dead"] = True
        raise RuntimeError("illegal memory access")

    def synchronise() -> None:
        if state["dead"]:
            raise RuntimeError("context is gone")

    arms = [*pair, (make_arm("killer", 1.0, kill), "peer")]
    with pytest.raises(TimingError) as caught:
        measure.time_row(op, row, arms, machine=make_machine(synchronise=synchronise))
    assert str(caught.value) == (
        "timing: the device is lost after arm 'killer' on row 'W64' (RuntimeError: illegal memory access): "
        "context is gone. Start a new process, without this arm or this row."
    )


def test_throttled_trial_is_dropped_and_made_up(
    op: Any, row: Any, pair: Any, make_machine: Factory, quiet: dict[str, Any]
) -> None:
    """A throttled trial stays in the records as dropped, and one more trial runs for all arms."""
    readings = iter([{**quiet, "throttle": ["hw_thermal_slowdown"]}])
    found = measure.time_row(op, row, pair, machine=make_machine(telemetry=lambda: next(readings, quiet)))
    assert [r["dropped"] for r in found if r["dropped"]] == ["throttled: hw_thermal_slowdown"]
    assert sorted({r["trial"] for r in found}) == [0, 1, 2, 3, 4, 5]
    assert len(found) == 18


def test_a_trial_beside_another_process_is_dropped(
    op: Any, row: Any, pair: Any, make_machine: Factory, quiet: dict[str, Any]
) -> None:
    """What shares the GPU may launch at any moment: such a trial is no measurement of one kernel."""
    found = measure.time_row(op, row, pair, machine=make_machine(telemetry=lambda: {**quiet, "other_processes": 2}))
    assert {r["dropped"] for r in found} == {"shared: 2 other processes on the GPU"}


def test_spare_trials_are_limited(op: Any, row: Any, pair: Any, make_machine: Factory, quiet: dict[str, Any]) -> None:
    """A GPU that always throttles ends after the spare trials, all dropped."""
    hot = {**quiet, "throttle": ["sw_power_cap"]}
    found = measure.time_row(op, row, pair, machine=make_machine(telemetry=lambda: hot))
    assert max(r["trial"] for r in found) == 6
    assert {r["dropped"] for r in found} == {"throttled: sw_power_cap"}


def test_unreadable_telemetry_drops_nothing(op: Any, row: Any, pair: Any, make_machine: Factory) -> None:
    """Without NVML the trials count, and the record carries the reason."""
    blind = dict.fromkeys(
        ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c", "throttle", "other_processes")
    )
    machine = make_machine(telemetry=lambda: {**blind, "reason": "unavailable, because NVML says no"})
    found = measure.time_row(op, row, pair, machine=machine)
    assert {(r["dropped"], r["telemetry"]["reason"]) for r in found} == {("", "unavailable, because NVML says no")}


def test_blind_profiler_is_in_the_record(op: Any, row: Any, pair: Any, make_machine: Factory) -> None:
    """Kernels that could not be seen are None with the reason."""
    machine = make_machine(profile=lambda launch, device: Activity(None, "unavailable, because of CUPTI"))
    found = measure.time_row(op, row, pair, machine=machine)
    assert {(r["kernels"], r["kernels_reason"]) for r in found} == {(None, "unavailable, because of CUPTI")}


def test_bandwidth_above_the_memory_rate_is_not_cold(op: Any, row: Any, pair: Any, make_machine: Factory) -> None:
    """512 bytes in 20 and 10 us are 0.0256 and 0.0512 GB/s: at 0.03 GB/s the latter is warm, at 0.02 invalid."""

    def states(copy_gb_s: float, read_gb_s: float) -> dict[str, str]:
        machine = make_machine(copy_gb_s=copy_gb_s, read_gb_s=read_gb_s)
        return {r["arm"]: r["state"] for r in measure.time_row(op, row, pair, machine=machine)}

    assert states(0.03, 0.01) == {"slow": "cold", "fast": "warm"}
    assert states(0.02, 0.01) == {"slow": "warm", "fast": "invalid"}
    # The faster of both rates counts.
    assert states(0.01, 0.03) == {"slow": "cold", "fast": "warm"}


def test_too_short_a_graph_is_dropped(op: Any, row: Any, pair: Any, make_machine: Factory) -> None:
    """A graph that the cap keeps below 1 ms does not count."""
    machine = make_machine()
    found = measure.time_row(op, row, pair, machine=machine, protocol=Protocol(max_calls_per_graph=40, spare_trials=0))
    reasons = {r["arm"]: r["dropped"] for r in found}
    assert reasons == {
        "slow": "short: one graph holds 800 us of work; allowed: at least 1000",
        "fast": "short: one graph holds 400 us of work; allowed: at least 1000",
    }


def test_warm_times_are_a_row_of_their_own(op: Any, row: Any, pair: Any, make_machine: Factory) -> None:
    """One set, state warm, and a label that no cold row has."""
    found = measure.time_warm(op, row, pair, machine=make_machine(), protocol=Protocol(trials=2))
    assert {(r["row"], r["input_sets"], r["state"]) for r in found} == {("W64 (warm L2)", 1, "warm")}
    assert {r["protocol"] for r in found} == {"v1-warm (trials=2, l2_multiple=0.0, minimum_sets=1)"}


def test_eager_times_are_a_row_of_their_own(
    op: Any, row: Any, pair: Any, make_machine: Factory, make_timer: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager rows use the eager timer and say so in label and timer."""

    class Eager(make_timer):  # type: ignore[misc,valid-type]
        name = "eager, events"

    monkeypatch.setattr(measure, "EagerTimer", lambda device: Eager())
    found = measure.time_eager(op, row, pair, machine=make_machine())
    assert {(r["row"], r["timer"], r["protocol"]) for r in found} == {("W64 (eager)", "eager, events", "v1-eager")}


def test_own_control_is_used(op: Any, row: Any, pair: Any, make_arm: Factory, make_machine: Factory) -> None:
    """A control given by the caller, even before the baseline, replaces the added one."""
    again = make_arm("slow", 21.0)
    found = measure.time_row(op, row, [(again, "control"), *pair], machine=make_machine())
    assert {r["median_us"] for r in found if r["role"] == "control"} == {21.0}
    same = measure.time_row(op, row, [(pair[0][0], "control"), *pair], machine=make_machine())
    assert len(same) == 15


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (["candidate", "peer"], "arms with role baseline is 0; allowed: exactly 1. Give one arm the role 'baseline'"),
        (["baseline", "baseline"], "arms with role baseline is 2; allowed: exactly 1."),
        (["baseline", "hero"], "role is 'hero'; allowed: baseline, candidate, peer, control."),
    ],
)
def test_roles_are_checked(
    op: Any, row: Any, make_arm: Factory, make_machine: Factory, roles: list[str], message: str
) -> None:
    """Wrong roles are refused before anything runs."""
    arms = [(make_arm(f"arm{i}"), role) for i, role in enumerate(roles)]
    with pytest.raises(ParameterError) as caught:
        measure.time_row(op, row, arms, machine=make_machine())
    assert message in str(caught.value)


def test_names_are_distinct(op: Any, row: Any, make_arm: Factory, make_machine: Factory) -> None:
    """Two arms of one name could not be told apart in the records; two controls neither."""
    twins = [(make_arm("a"), "baseline"), (make_arm("a"), "peer")]
    with pytest.raises(ParameterError, match="arm is 'a'; allowed: each name once"):
        measure.time_row(op, row, twins, machine=make_machine())
    controls = [(make_arm("a"), "baseline"), (make_arm("a"), "control"), (make_arm("a"), "control")]
    with pytest.raises(ParameterError, match="arms with role control is 2; allowed: at most 1"):
        measure.time_row(op, row, controls, machine=make_machine())


@pytest.mark.parametrize(("l2_bytes", "state"), [(4096, "warm"), (2048, "warm"), (512, "cold")])
def test_eight_sets_are_a_row_of_their_own(
    op: Any, row: Any, pair: Any, make_machine: Factory, l2_bytes: int, state: str
) -> None:
    """Eight sets of 512 bytes, whatever the L2; the state says whether they fit, and no arm gets a verdict."""
    found = measure.time_eight(op, row, pair, machine=make_machine(l2_bytes=l2_bytes))
    assert {(r["row"], r["input_sets"], r["bytes_rotated"]) for r in found} == {("W64 (eight sets)", 8, 4096)}
    assert {r["state"] for r in found} == {state}
    assert {"which all fit in the L2" in r["state_reason"] for r in found} == {l2_bytes == 4096}
    results = statistics.summarise(found)
    assert {r.verdict for r in results} == {""}
    fast = next(r for r in results if r.arm == "fast")
    assert (fast.ratio, "eight input sets" in fast.reason) == (2.0, state == "cold")


def test_the_op_knows_a_row_by_its_own_label(op: Any, row: Any, pair: Any, make_machine: Factory) -> None:
    """The mode is said in the records' label only: a capture is found by the row's own name."""
    found = measure.time_eight(op, row, pair, machine=make_machine())
    assert ({r["row"] for r in found}, op.labels) == ({"W64 (eight sets)"}, {"W64"})


def test_a_candidate_may_not_prepare(op: Any, row: Any, pair: Any, make_arm: Factory, make_machine: Factory) -> None:
    """A candidate whose launcher has prepare() is refused with the reason; a peer with one is timed."""

    class Preparing(make_arm):  # type: ignore[misc,valid-type]
        def bind(self, calls: Any) -> Any:
            launchers = super().bind(calls)
            for launcher in launchers:
                launcher.prepare = lambda: None
            return launchers

    arms = [*pair, (Preparing("prepared", 5.0), "peer"), (Preparing("hiding", 1.0), "candidate")]
    found = measure.time_row(op, row, arms, machine=make_machine())
    assert [(r["arm"], r["reason"]) for r in found if r["kind"] == "refused"] == [
        (
            "hiding",
            "TimingError: timing: launcher of hiding is 'an object with prepare()'; allowed: a callable alone. "
            "Do the work in the launch: only baselines and peers may prepare.",
        )
    ]
    assert sum(r["arm"] == "prepared" for r in found) == 5


def test_the_limit_of_the_recheck_is_the_rows_own(op: Any, row: Any, pair: Any, make_machine: Factory) -> None:
    """The floor is asked once a row, before any arm is bound, and each record holds the limit that it gives."""
    asked: list[tuple[float, int]] = []

    def limits(kind: str, floor: float) -> SimpleNamespace:
        asked.append((floor, len(pair[0][0].bound)))
        return SimpleNamespace(error=0.0 if floor == 0 else 1.0)

    op.gates.limits = limits
    found = measure.time_row(op, row, pair, machine=make_machine())
    assert asked == [(0.0, 0)]
    assert {(r["recheck"]["limit"], r["recheck"]["passed"]) for r in found} == {(0.0, True)}


def test_the_whole_provenance_stands_in_the_first_trial(op: Any, row: Any, pair: Any, make_machine: Factory) -> None:
    """Later trials of a row name the device alone, which resuming and the rules of a record need."""
    device = {"type": "cuda", "uuid": "test", "interpreter": False}
    machine = make_machine(provenance={"device": device, "git": {"commit": "0123"}})
    found = measure.time_row(op, row, pair, machine=machine, protocol=Protocol(trials=2))
    assert {r["trial"]: r["provenance"] for r in found} == {
        0: {"device": device, "git": {"commit": "0123"}},
        1: {"device": device},
    }
