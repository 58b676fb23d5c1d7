"""The numbers of a contract against its evidence: each edit of a claim, or of what it rests on, is one finding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.audit.exported_claims import check_claims, headline_faults, same
from kda_lab.contracts.model import BenchRow, Headline


def row(ratio: float, baseline: str = "slow") -> BenchRow:
    """A timed row of this ratio."""
    return BenchRow(
        capability=(9, 0), row="r", axes={}, baseline=baseline, baseline_us=ratio, kernel_us=1.0, ratio=ratio,
        low=ratio, high=ratio, noise=0.0, verdict="faster", trials=5,
    )  # fmt: skip


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=9))
def test_a_headline_of_its_own_rows_has_no_fault(ratios: list[float]) -> None:
    """Geomean, minimum and count of any rows are accepted, and a geomean of 1 % more is not."""
    geomean = math.prod(ratios) ** (1 / len(ratios))
    rows = [row(ratio) for ratio in ratios]
    right = Headline(baseline="slow", geomean=geomean, minimum=min(ratios), count=len(ratios))
    assert list(headline_faults([right], rows)) == []
    wrong = right.model_copy(update={"geomean": geomean * 1.01})
    assert len(list(headline_faults([wrong], rows))) == 1


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "2", True])
def test_what_is_no_finite_number_equals_nothing(value: Any) -> None:
    """A missing, broken or boolean number never confirms a claim, not even itself."""
    assert not same(value, 2.0)
    assert not same(value, value)
    assert same(2.0, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["headline"][0].update(geomean=2.5), "the geomean over slow is 2.5; its rows give 2"),
        (lambda c: c["headline"][1].update(minimum=1.5), "the minimum over peer is 1.5; its rows give 2"),
        (lambda c: c["headline"][1].update(count=3), "the headline over peer counts 3 rows; there are 1"),
        (lambda c: c["headline"].pop(), "1 rows over peer have no headline"),
        (lambda c: c["benchmarks"][1].update(baseline_us=30.0), "tp2-B1 over peer: ratio 2; its times give 3"),
        (lambda c: c["benchmarks"][1].update(kernel_us=0.0), "tp2-B1 over peer: ratio 2; its times give nan"),
        (lambda c: c["benchmarks"][0].update(noise=0.0), "tp2-B1 over slow differs from the evidence in noise"),
        (lambda c: c["benchmarks"][0].update(verdict="same"), "tp2-B1 over slow differs from the evidence in verdict"),
        (lambda c: c["benchmarks"][0].update(row="other"), "other over slow is not in the evidence"),
        (lambda c: c["gate_power"].update(killed=2, total=2), "gate power is 2 of 2; the evidence has 1 of 1"),
    ],
)
def test_an_edited_claim_is_found(toy: Any, change: Callable[[dict[str, Any]], Any], words: str) -> None:
    """One edited number is told with what it should be."""
    toy.edit_contract(change)
    assert words in [finding.lost for finding in check_claims(toy.kernel).findings]


def test_a_measured_row_that_is_left_out_is_found(toy: Any) -> None:
    """A slow row may not be dropped from the contract; one without an interval never was in it."""
    slow = {"row": "tp2-B9", "baseline": "slow", "verdict": "slower", "low": 0.4, "high": 0.6, "noise": 0.01}
    toy.edit_evidence(lambda e: e["rows"].extend([slow, {**slow, "row": "tp2-B8", "low": None}]))
    assert [finding.lost for finding in check_claims(toy.kernel).findings] == [
        "tp2-B9 over slow is measured (slower) and left out of the contract"
    ]


def test_an_arm_may_be_baseline_of_one_row_and_peer_of_another(toy: Any) -> None:
    """A row over an arm that is the baseline elsewhere only adds up, and its kernel's time is that of the evidence."""
    toy.edit_evidence(lambda e: e["rows"].append({**e["rows"][0], "row": "tp2-B2", "baseline": "peer", "verdict": ""}))
    outcome = check_claims(toy.kernel)
    assert (list(outcome.findings), "1 rows over peers only add up" in outcome.words) == ([], True)
    toy.edit_contract(lambda c: c["benchmarks"][1].update(kernel_us=9.0, baseline_us=18.0))
    found = [finding.lost for finding in check_claims(toy.kernel).findings]
    assert found == ["tp2-B1 over peer differs from the evidence in kernel_us"]


def test_a_mutant_that_one_capture_let_live_is_not_killed(toy: Any) -> None:
    """The gate power counts a mutant as killed when every capture on which it applies killed it."""
    lives = {"capture": "d", "mutants": [{"name": "all_zero", "applies": True, "killed": False}]}
    absent = {"capture": "e", "mutants": [{"name": "head_map", "applies": False, "killed": False}]}
    toy.edit_evidence(lambda e: e["power"].extend([lives, absent]))
    assert check_claims(toy.kernel).words == "gate power is 1 of 1; the evidence has 0 of 1"


@pytest.mark.parametrize("rows", [None, 3, ["x"], {"a": 1}], ids=repr)
def test_senseless_evidence_confirms_nothing(toy: Any, rows: Any) -> None:
    """Evidence without rows and power confirms neither: two findings, no traceback."""
    toy.edit_evidence(lambda e: e.update(rows=rows, power=rows))
    assert [finding.lost for finding in check_claims(toy.kernel).findings] == [
        "no row of the contract stands in reports/evidence/toy_decode/v1/sm90.json",
        "gate power is 1 of 1; the evidence has 0 of 0",
    ]


def test_the_words_tell_what_only_adds_up(toy: Any) -> None:
    """Rows over peers stand in no evidence file, which the outcome says."""
    words = "1 rows and the gate power are those of the evidence; 1 rows over peers only add up; 2 headlines"
    assert check_claims(toy.kernel).words == words


def test_without_evidence_no_claim_is_confirmed(toy: Any) -> None:
    """Nothing to compare with is not run, never passed."""
    toy.evidence.unlink()
    assert check_claims(toy.kernel).status == "not run"
