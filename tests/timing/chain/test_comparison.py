"""Isolated and in-chain times are compared by one rule, and a win that vanishes is said to vanish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kda_lab.timing.chain.comparison import CHAIN, COLD, compare, findings, gain_percent, recorded_protocol
from kda_lab.timing.protocol import Protocol
from kda_lab.timing.statistics import RowResult

PROTOCOL = replace(Protocol(), trials=5)
JITTER = (0.0, 0.001, -0.001, 0.0005, -0.0005)
REF, POLICY, BASE = "k stream/stream", "k stream/persist", "cublas"
Times = dict[tuple[str, str], float]


def chain_lines(make: Callable[..., dict[str, Any]], times: Times, jitter: Sequence[float] = JITTER) -> list[Any]:
    """Chain records of arms with these times; the control moves a little against the reference."""
    lines = []
    for (arm, role), us in times.items():
        for trial, share in enumerate(jitter):
            median = us * (1 + share + (0.001 * (trial % 2) if role == "control" else 0))
            lines.append(make(arm=arm, role=role, trial=trial, median_us=median, samples_us=[median]))
    return lines


def isolated_lines(times: Times, rows: Sequence[str] = ("a", "b"), suffix: str = "") -> list[dict[str, Any]]:
    """Timing records of two products, the second three times as long."""
    return [
        {"kind": "timing", "row": row + suffix, "arm": arm, "role": role, "trial": trial, "dropped": "",
         "median_us": us * (1 + 2 * number) * (1 + share + (0.001 * (trial % 2) if role == "control" else 0))}
        for number, row in enumerate(rows) for (arm, role), us in times.items() for trial, share in enumerate(JITTER)
    ]  # fmt: skip


CHAIN_TIMES: Times = {
    (REF, "reference"): 100.0,
    (POLICY, "policy"): 103.0,
    (BASE, "baseline"): 250.0,
    (REF, "control"): 100.0,
}
ALONE: Times = {(REF, "baseline"): 10.0, (POLICY, "candidate"): 9.5, (BASE, "peer"): 30.0, (REF, "control"): 10.0}


def by_place(results: Sequence[RowResult]) -> dict[tuple[str, str, str], RowResult]:
    """Results by place, arm and role."""
    return {(r.row, r.arm, r.role): r for r in results}


def test_a_win_that_turns_into_a_loss(chain_record: Callable[..., dict[str, Any]]) -> None:
    """Faster in both isolated loops, slower in the chain: exactly what the chain is for."""
    isolated = isolated_lines(ALONE) + isolated_lines(ALONE, suffix=" (eight sets)")
    found = by_place(compare(chain_lines(chain_record, CHAIN_TIMES), isolated, protocol=PROTOCOL))
    cold, chained = found[COLD, POLICY, "policy"], found[CHAIN, POLICY, "policy"]
    assert (cold.baseline_us, cold.arm_us) == (pytest.approx(40.0), pytest.approx(38.0))
    assert (cold.verdict, chained.verdict) == ("faster", "slower")
    assert chained.ratio == pytest.approx(100 / 103)
    assert cold.op == "fake.scale"
    said = findings(list(found.values()))
    assert said == [
        f"{POLICY}: isolated, cold +5.26 %, in the chain -2.91 %: the isolated win turns into a loss",
        f"{POLICY}: isolated (eight sets) +5.26 %, in the chain -2.91 %: the isolated win turns into a loss",
    ]


@pytest.mark.parametrize(
    ("alone", "within", "words"),
    [
        (9.5, 100.0, "the isolated win vanishes"),
        (9.5, 95.0, "faster in both places"),
        (10.0, 100.0, "no difference beyond noise in either place"),
        (10.0, 95.0, "faster only in the chain"),
        (10.0, 105.0, "slower only in the chain"),
        (10.5, 100.0, "the isolated loss vanishes"),
        (10.5, 95.0, "the isolated loss turns into a win"),
        (10.5, 105.0, "slower in both places"),
    ],
)
def test_each_outcome_has_its_words(
    chain_record: Callable[..., dict[str, Any]], alone: float, within: float, words: str
) -> None:
    """All pairs of isolated and in-chain verdicts are told apart."""
    chain = chain_lines(chain_record, {**CHAIN_TIMES, (POLICY, "policy"): within})
    found = compare(chain, isolated_lines({**ALONE, (POLICY, "candidate"): alone}), protocol=PROTOCOL)
    (said,) = findings(found)
    assert said.endswith(f": {words}")


def test_a_win_of_one_product_that_the_layer_hides(chain_record: Callable[..., dict[str, Any]]) -> None:
    """A product that wins while its layer loses has a place of its own, for the policies, and its win is told."""
    isolated = isolated_lines(ALONE, rows=("up-M8-x", "down-M8-x"), suffix=" (eight sets)")
    for line in isolated:
        if line["arm"] == POLICY and line["row"].startswith("up-"):
            line["median_us"] *= 1.3
    lines = chain_lines(chain_record, CHAIN_TIMES)
    for line in lines:
        line["axes"] = {**line["axes"], "rows": ["up-M8-x", "down-M8-x"]}
    results = compare(lines, isolated, protocol=PROTOCOL)
    found = by_place(results)
    won = found["down alone (eight sets)", POLICY, "policy"]
    assert (won.verdict, found["up alone (eight sets)", POLICY, "policy"].verdict) == ("faster", "slower")
    assert won.baseline_us == pytest.approx(30.0)
    assert won.noise and won.ratio == pytest.approx(10 / 9.5)
    assert {role for place, _, role in found if " alone" in place} == {"policy"}
    assert findings(results) == [
        f"{POLICY}: isolated (eight sets) -2.08 %, in the chain -2.91 %: slower in both places",
        f"{POLICY}: down alone (eight sets) +5.26 %, in the chain -2.91 %: the isolated win turns into a loss",
    ]


@pytest.mark.parametrize(
    ("rows", "places"),
    [
        (["up-M8", "down-M8"], {"up alone, cold", "down alone, cold"}),
        (["up-M8", "up-M1"], {"up-M8 alone, cold", "up-M1 alone, cold"}),
        (["up-M8"], set()),
    ],
)
def test_products_are_named_by_their_shapes(
    chain_record: Callable[..., dict[str, Any]], rows: list[str], places: set[str]
) -> None:
    """By the whole label where shapes repeat; a single product is the layer itself and has no place beside it."""
    lines = chain_lines(chain_record, CHAIN_TIMES)
    for line in lines:
        line["axes"] = {**line["axes"], "rows": rows}
    found = compare(lines, isolated_lines(ALONE, rows=rows), protocol=PROTOCOL)
    assert {r.row for r in found} - {COLD, CHAIN} == places


@pytest.mark.parametrize(
    ("labels", "trials"),
    [(["chain v1 (trials=2)"], 2), (["chain v1"], 5), (["chain v1 (trials=2)", "chain v1"], 5),
     (["chain v1 (trials=0)"], 5), (["chain v1 (replays=3, trials=7)"], 7), ([], 5)],
)  # fmt: skip
def test_trials_are_read_off_the_labels(
    chain_record: Callable[..., dict[str, Any]], labels: list[str], trials: int
) -> None:
    """Records are judged by the trials that they were made with; the most of several, v1's where none is named."""
    assert recorded_protocol([*(chain_record(protocol=label) for label in labels), {"kind": "check"}]).trials == trials


def test_another_reference_divides_all(chain_record: Callable[..., dict[str, Any]]) -> None:
    """Against the baseline every arm has another ratio, and the noise band stays that of the control."""
    lines = chain_lines(chain_record, CHAIN_TIMES)
    own = by_place(compare(lines, [], protocol=PROTOCOL))
    found = by_place(compare(lines, [], reference=BASE, protocol=PROTOCOL))
    assert found[CHAIN, POLICY, "policy"].ratio == pytest.approx(250 / 103)
    assert found[CHAIN, REF, "reference"].ratio == pytest.approx(2.5)
    assert found[CHAIN, BASE, "baseline"].reason == "the reference: every ratio divides by it"
    assert found[CHAIN, REF, "reference"].noise == own[CHAIN, REF, "reference"].noise > 0


def test_a_trial_counts_where_all_products_are_good(chain_record: Callable[..., dict[str, Any]]) -> None:
    """A dropped trial of one product drops the trial of the layer, and too few trials decide nothing."""
    isolated = isolated_lines(ALONE)
    for line in isolated:
        if (line["row"], line["arm"], line["trial"]) == ("b", POLICY, 3):
            line["dropped"] = "throttled: sw_power_cap"
    found = by_place(compare(chain_lines(chain_record, CHAIN_TIMES), isolated, protocol=PROTOCOL))
    cold = found[COLD, POLICY, "policy"]
    assert (cold.trials, cold.dropped_trials, cold.verdict) == (4, 1, "ambiguous")
    assert cold.reason == "4 good trials; needed: 5 (dropped: throttled: sw_power_cap)"
    assert findings([*found.values()])[0].endswith("undecided (ambiguous isolated, cold, slower in the chain)")


def test_a_loop_that_stays_in_the_l2_says_so(chain_record: Callable[..., dict[str, Any]]) -> None:
    """A warm isolated time keeps its verdict, which is what its protocol concludes, with the reason beside it."""
    isolated = [{**line, "state_reason": "warm: 8 sets"} for line in isolated_lines(ALONE, suffix=" (eight sets)")]
    found = by_place(compare(chain_lines(chain_record, CHAIN_TIMES), isolated, protocol=PROTOCOL))
    eight = found["isolated (eight sets)", POLICY, "policy"]
    assert (eight.verdict, eight.reason) == ("faster", "warm: 8 sets")


def test_a_chain_that_stays_in_the_l2_says_so(chain_record: Callable[..., dict[str, Any]]) -> None:
    """Too few or too small layers leave weights in the L2 from pass to pass, and the reason says how many bytes are missing."""
    lines = [{**line, "cold_products": False, "product_bytes": 100} for line in chain_lines(chain_record, CHAIN_TIMES)]
    found = by_place(compare(lines, [], protocol=PROTOCOL))[CHAIN, POLICY, "policy"]
    assert found.verdict == "slower"
    assert found.reason == "warm: the products of a pass move 300 bytes; a cold pass needs 20480 (5 x L2)"


def test_other_rows_of_the_run_are_left_out(chain_record: Callable[..., dict[str, Any]]) -> None:
    """Only loops over the chain's own products are compared with it."""
    isolated = isolated_lines(ALONE, rows=("ab", "b2"))
    assert {r.row for r in compare(chain_lines(chain_record, CHAIN_TIMES), isolated, protocol=PROTOCOL)} == {CHAIN}


def test_without_a_control_nothing_is_decided(chain_record: Callable[..., dict[str, Any]]) -> None:
    """A ratio without a noise band gets no verdict but ambiguous."""
    times = {key: us for key, us in CHAIN_TIMES.items() if key[1] != "control"}
    found = by_place(compare(chain_lines(chain_record, times), [], protocol=PROTOCOL))
    result = found[CHAIN, POLICY, "policy"]
    assert (result.verdict, result.noise) == ("ambiguous", None)
    assert result.reason == "no noise band: the A/A control has fewer than 5 good trials"


def test_refused_arms_stay_in(chain_record: Callable[..., dict[str, Any]]) -> None:
    """An arm that could not run is shown with its reason, and so are state and control."""
    lines = chain_lines(chain_record, {**CHAIN_TIMES, ("state only", "state"): 20.0})
    shared = {k: lines[0][k] for k in ("op", "axes", "layers", "state_bytes", "provenance")}
    refused = {**shared, "kind": "refused", "arm": "k persist/persist", "role": "policy", "reason": "no such hint"}
    found = by_place(compare([*lines, refused], isolated_lines(ALONE), protocol=PROTOCOL))
    gone = found[CHAIN, "k persist/persist", "policy"]
    assert (gone.state, gone.reason, gone.verdict, gone.arm_us) == ("refused", "no such hint", "", None)
    assert found[CHAIN, "state only", "state"].reason == "the chain without its products: what the state alone costs"
    assert found[CHAIN, REF, "control"].reason == "A/A control: its interval is the noise band"


def test_a_reference_that_was_not_timed(chain_record: Callable[..., dict[str, Any]]) -> None:
    """Nothing is compared, and the words say why."""
    lines = chain_lines(chain_record, {(POLICY, "policy"): 103.0})
    found = compare(lines, [], protocol=PROTOCOL)
    assert [(r.verdict, r.reason) for r in found] == [("", "no reference was timed in this place")]
    assert findings(found) == [f"{POLICY}: in the chain — (no reference was timed in this place)"]


def test_no_records_no_results() -> None:
    """Checks alone are no times."""
    assert compare([{"kind": "check"}], []) == []


@pytest.mark.parametrize(("ratio", "words"), [(1.012, "+1.20 %"), (0.9924, "-0.76 %"), (1.0, "+0.00 %"), (None, "—")])
def test_gains_are_signed(ratio: float | None, words: str) -> None:
    """Above 1 is a gain."""
    assert gain_percent(ratio) == words
