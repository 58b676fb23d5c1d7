"""The protocol as data: the cold proof, the graph's length, the memory limit and the order of arms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.errors import ParameterError, TimingError
from kda_lab.timing.protocol import (
    COLD_L2_MULTIPLE,
    SUFFIXES,
    CallSize,
    Protocol,
    mode_of,
    order_of,
    plain_label,
    plan_sets,
)

H200_L2 = 62_914_560
H200_MEMORY = 150_000_000_000


def size(bytes_per_call: int, **changes: int) -> CallSize:
    parts = {"footprint_bytes": bytes_per_call, "l2_bytes": H200_L2, "memory_bytes": H200_MEMORY}
    return CallSize(bytes_per_call, **{**parts, **changes})


@given(st.integers(1, 2_000_000_000), st.floats(0.01, 100_000.0))
def test_plan_is_cold_and_long_enough(bytes_per_call: int, estimate_us: float) -> None:
    """Any plan rotates whole rounds; it moves 5 L2 and lasts 1 ms unless capped."""
    protocol = Protocol()
    plan = plan_sets(size(bytes_per_call), estimate_us, protocol)
    assert plan.bytes_rotated == plan.input_sets * bytes_per_call
    assert plan.calls_per_graph % plan.input_sets == 0
    assert plan.input_sets >= 2
    assert plan.calls_per_graph <= protocol.max_calls_per_graph
    assert plan.input_sets == protocol.max_calls_per_graph or plan.bytes_rotated >= COLD_L2_MULTIPLE * H200_L2
    capped = plan.calls_per_graph + plan.input_sets > protocol.max_calls_per_graph
    assert capped or plan.calls_per_graph * estimate_us >= protocol.min_graph_us * (1 - 1e-9)


def test_plan_of_a_measured_row() -> None:
    """16.9 MB a call on a 60 MB L2 needs 19 sets; 1 ms at 18 us needs 56 calls, so three rounds."""
    plan = plan_sets(size(16_896_000), 18.0, Protocol())
    assert (plan.input_sets, plan.calls_per_graph, plan.bytes_rotated) == (19, 57, 321_024_000)


def test_call_above_five_l2_still_alternates_two_sets() -> None:
    """A call that streams more than 5 L2 by itself still gets two sets, so that nothing is reused at once."""
    assert plan_sets(size(1_000_000_000), 250.0, Protocol()).input_sets == 2


def test_sets_are_capped_by_the_calls_of_a_graph() -> None:
    """Where the sets for a cold time are too many to launch, the plan takes what a graph can hold."""
    plan = plan_sets(size(64), 1.0, Protocol())
    assert (plan.input_sets, plan.calls_per_graph, plan.bytes_rotated) == (16384, 16384, 1_048_576)


def test_sets_are_capped_by_the_time_of_a_graph() -> None:
    """A slow call that moves little gets as many sets as the graph may last, never fewer than two."""
    protocol = Protocol(max_graph_us=20_000.0)
    plan = plan_sets(size(64), 200.0, protocol)
    assert (plan.input_sets, plan.calls_per_graph) == (100, 100)
    assert plan_sets(size(64), 50_000.0, protocol).input_sets == 2
    assert plan_sets(size(16_896_000), 18.0, protocol) == plan_sets(size(16_896_000), 18.0, Protocol())


@given(st.integers(1, 2_000_000_000), st.floats(0.01, 100_000.0))
def test_the_mode_eight_takes_exactly_eight_sets(bytes_per_call: int, estimate_us: float) -> None:
    """Eight sets whatever a call moves, in a graph of whole rounds and at least 1 ms unless capped."""
    protocol = Protocol().eight()
    plan = plan_sets(size(bytes_per_call), estimate_us, protocol)
    assert (plan.input_sets, plan.calls_per_graph % 8) == (8, 0)
    assert plan.calls_per_graph + 8 > protocol.max_calls_per_graph or plan.calls_per_graph * estimate_us >= 1000 * (
        1 - 1e-9
    )


def test_modes_are_read_from_labels() -> None:
    """A row's label tells its mode, and what is left names the case."""
    for mode, suffix in SUFFIXES.items():
        assert (mode_of(f"4b_down-M1{suffix}"), plain_label(f"4b_down-M1{suffix}")) == (mode, "4b_down-M1")
        assert Protocol().in_mode(mode).mode == mode
    with pytest.raises(ParameterError, match="mode is 'hot'; allowed: cold, warm, eager, eight"):
        Protocol().in_mode("hot")  # type: ignore[arg-type]


def test_sets_that_do_not_fit_are_refused() -> None:
    """Sets beyond the protocol's share of memory are refused with the bytes asked and allowed."""
    with pytest.raises(
        TimingError, match=r"input_sets is 2 sets of 1000 bytes, 2000 bytes in all; allowed: at most 1999 b"
    ):
        plan_sets(CallSize(500_000_000, 1000, H200_L2, 4999), 1.0, Protocol())


def test_work_model_without_bytes_is_refused() -> None:
    """A work model of zero bytes cannot prove coldness."""
    with pytest.raises(TimingError, match=r"bytes_per_call is 0; allowed: more than 0\. Correct the op's work model\."):
        plan_sets(size(0), 1.0, Protocol())


def test_order_alternates_forward_and_backward() -> None:
    """Arms run A B C, then C B A, so that a linear drift favours none."""
    assert [order_of(t, 3) for t in range(3)] == [[0, 1, 2], [2, 1, 0], [0, 1, 2]]


@pytest.mark.parametrize("arms", [2, 3, 7])
def test_linear_drift_cancels_over_two_trials(arms: int) -> None:
    """Over a forward and a backward trial each arm has the same mean position."""
    both = order_of(0, arms) + order_of(1, arms)
    assert {sum(i for i, arm in enumerate(both) if arm == a) for a in range(arms)} == {2 * arms - 1}


def test_label_shows_what_differs_from_v1() -> None:
    """A changed number cannot hide behind the name v1."""
    assert Protocol().label == "v1"
    assert Protocol(trials=3, replays=2).label == "v1 (trials=3, replays=2)"


def test_warm_and_eager_variants_say_so() -> None:
    """The variants carry their mode in the label."""
    assert Protocol().warm().label == "v1-warm (l2_multiple=0.0, minimum_sets=1)"
    assert Protocol().eager().label == "v1-eager"
    assert Protocol().eight().label == "thread-eight (l2_multiple=0.0, minimum_sets=8)"
    assert plan_sets(size(1_000_000), 10.0, Protocol().warm()).input_sets == 1


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("trials", 0, "trials is 0; allowed: at least 1."),
        ("replays", 0, "replays is 0; allowed: at least 1."),
        ("resamples", 10, "resamples is 10; allowed: at least 100."),
        ("l2_multiple", float("nan"), "l2_multiple is nan; allowed: at least 0.0."),
        ("memory_share", 1.0, "memory_share is 1.0; allowed: more than 0 and less than 1."),
        ("confidence", 0.0, "confidence is 0.0; allowed: more than 0 and less than 1."),
        ("mode", "hot", "mode is 'hot'; allowed: cold, warm, eager, eight."),
    ],
)
def test_protocol_refuses_senseless_numbers(field: str, value: object, message: str) -> None:
    """Each field is refused by name, with the value given and what is allowed."""
    with pytest.raises(ParameterError) as caught:
        Protocol(**{field: value})
    assert str(caught.value) == f"timing: {message}"
