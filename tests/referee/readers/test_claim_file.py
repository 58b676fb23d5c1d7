"""Claims as YAML: units by name, printed numbers, and a written claim reads back equal."""

from __future__ import annotations

import math
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kda_lab.errors import RefereeError
from kda_lab.referee.claim import (
    CacheState,
    Claim,
    Coverage,
    Equality,
    Gate,
    Level,
    Mode,
    Published,
    Run,
    Score,
    Source,
)
from kda_lab.referee.metrics import METRICS
from kda_lab.referee.readers.claim_file import read_claims, write_claims

HEAD = "thread: t\nclaims:\n  - name: n\n"


def put(folder: Path, content: str) -> Path:
    """A claim file."""
    path = folder / "c.yaml"
    path.write_text(content)
    return path


def test_a_run_is_typed_in_the_units_of_its_keys(tmp_path: Path) -> None:
    """Keys with a unit are metrics, defaults fill in, and each run knows its line."""
    text = "thread: t\ndefaults: {hardware: GB10}\nclaims:\n  - name: n\n    runs:\n"
    text += "      - {arm: baseline, round: 1, e2e_mean_s: 161.229, kernels: 114}\n"
    (claim,) = read_claims(put(tmp_path, text + "      - {arm: candidate, hardware: H200, e2e_mean_ms: 157630}\n"))
    first, second = claim.runs
    assert first.metrics == {"e2e_mean_ms": 161229.0, "kernels": 114.0}
    assert (first.hardware, second.hardware, claim.thread) == ("GB10", "H200", "t")
    assert (first.source.line, second.source.line, second.source.file) == (6, 7, f"{tmp_path.name}/c.yaml")


def test_printed_numbers_keep_their_digits(tmp_path: Path) -> None:
    """`printed` holds value, unit and digits of a published number and of a score."""
    text = HEAD + '    published:\n      - {statistic: change, metric: graph_ms, printed: "-1.00%"}\n'
    text += '    scores:\n      - {arm: baseline, name: gsm8k, printed: "95.510%", questions: 1319}\n'
    (claim,) = read_claims(put(tmp_path, text))
    assert (claim.published[0].value, claim.published[0].unit, claim.published[0].digits) == (-1.0, "percent", 2)
    assert (claim.scores[0].value, claim.scores[0].digits) == (95.51, 3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("claims: []\n", r"claims is none; allowed: at least one claim"),
        ("- 1\n", r"c\.yaml:1: file is \[1\]; allowed: a mapping of names to values"),
        ("claim: []\n", r"c\.yaml:1: key is 'claim'; allowed: thread, defaults, claims"),
        ("claims:\n  - 3\n", r"c\.yaml:2: claims\.0 is 3; allowed: a mapping"),
        (HEAD + "    runs: 3\n", r"c\.yaml:4: claims\.0\.runs is 3; allowed: a list"),
        (HEAD + "    speed: 3\n", r"c\.yaml:4: speed is 3; allowed: Extra inputs are not permitted"),
        (HEAD + "    metric: warp\n", r"c\.yaml:4: metric is 'warp'; allowed: accept_length, "),
        (HEAD + "    runs:\n      - {arm: a, ttft: 3}\n", r"c\.yaml:5: column is 'ttft'; allowed: a known column"),
        (HEAD + "    runs:\n      - {arm: a, ttft_mean_ms: fast}\n", r"c\.yaml:5: ttft_mean_ms is 'fast'"),
        (HEAD + "    runs:\n      - {arm: a, e2e_mean_s: 1, e2e_mean_ms: 1}\n", r"one unit a metric"),
        (HEAD + "    runs:\n      - {arm: a, concurrency: 0}\n", r"c\.yaml:5: runs\.0\.concurrency is 0"),
        (HEAD + "    runs:\n      - {kernel_us: 3}\n", r"c\.yaml:5: runs\.0\.arm is .*allowed: Field required"),
        (HEAD + "    runs:\n      - {arm: a, summary: median}\n", r"summary is 'median' and summarises is 1"),
        (HEAD + "    runs:\n      - {arm: a, round: 1}\n      - {arm: a, round: 1}\n",
         r"c\.yaml:6: run is round 1 of 'a', as on line 5; allowed: each round of an arm once"),
        (HEAD + "    published:\n      - {statistic: change, printed: big}\n", r"c\.yaml:5: printed is 'big'"),
        (HEAD + "    scores:\n      - {arm: a, name: s, printed: 3 ms}\n", r"a percentage, such as '95\.814%'"),
        (HEAD + "  - name: n\n", r"c\.yaml:4: name is 'n'; allowed: each name once"),
        (HEAD + "    candidate: baseline\n", r"another arm than the baseline"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_with_its_line(tmp_path: Path, body: str, message: str) -> None:
    """One error, the first; what may stand there is said."""
    with pytest.raises(RefereeError, match=message):
        read_claims(put(tmp_path, body))


def test_nan_is_kept_for_the_judge(tmp_path: Path) -> None:
    """A measurement that failed is no error of the file."""
    (claim,) = read_claims(put(tmp_path, HEAD + "    runs:\n      - {arm: baseline, ttft_mean_ms: .nan}\n"))
    assert math.isnan(claim.runs[0].metrics["ttft_mean_ms"])


def test_nothing_is_written_of_nothing(tmp_path: Path) -> None:
    """No claim, or two of one name, leave the folder empty."""
    claim = Claim(name="n")
    for claims in ([], [claim, claim]):
        with pytest.raises(RefereeError, match="at least one, each name once"):
            write_claims(tmp_path / "x.yaml", claims)
    assert list(tmp_path.iterdir()) == []


# Lone surrogates are no text that a UTF-8 file can hold.
words = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 10**9)
whole = st.none() | st.integers(1, 10**6)
sources = st.builds(Source, file=words, line=counts, note=words)
metrics = st.dictionaries(st.sampled_from(sorted(METRICS)), numbers, max_size=3)
runs = st.builds(
    Run, arm=names, order=st.none() | counts, commit=words, hardware=words, concurrency=whole, input_tokens=whole,
    output_tokens=whole, metrics=metrics, samples=st.just({}) | st.just({"ttft_mean_ms": (1.0, 2.5)}),
    resolved=st.dictionaries(names, st.none() | st.booleans() | st.integers(-9, 9) | numbers | words, max_size=2),
    files=st.dictionaries(names, words, max_size=2), cache_state=st.sampled_from(get_args(CacheState)),
    mode=st.sampled_from(get_args(Mode)), superseded=st.booleans(), source=sources,
)  # fmt: skip
published = st.builds(
    Published, metric=words, statistic=st.sampled_from(("change", "geomean")), value=numbers,
    unit=words, digits=st.integers(0, 6), arm=words, source=sources,
)  # fmt: skip
scores = st.builds(
    Score, arm=names, name=words, value=numbers, questions=whole, superseded=st.booleans(), source=sources
)
equalities = st.builds(
    Equality, left=names, right=names, mode=words, what=words, identical=st.booleans(), compared=whole,
    maximum_difference=st.none() | numbers, first_difference=words, source=sources,
)  # fmt: skip
levels = st.builds(
    Level, name=words, baseline_us=numbers, candidate_us=numbers, overlapped=st.booleans(), source=sources
)
coverages = st.builds(Coverage, name=words, ran_on=words, passed=counts, skipped=counts, source=sources)
gates = st.builds(Gate, name=words, accepts=st.dictionaries(names, st.booleans(), max_size=2), source=sources)
claims = st.builds(
    Claim, name=names, title=words, thread=words, metric=st.sampled_from(sorted(METRICS)), baseline=st.just("a"),
    candidate=st.just("b"), runs=st.lists(runs, max_size=3).map(tuple), published=st.lists(published, max_size=2).map(tuple),
    scores=st.lists(scores, max_size=2).map(tuple), equality=st.lists(equalities, max_size=2).map(tuple),
    levels=st.lists(levels, max_size=2).map(tuple), coverage=st.lists(coverages, max_size=1).map(tuple),
    gates=st.lists(gates, max_size=1).map(tuple), margin_percent=st.floats(0.01, 49), scope=st.just(("a/*",)),
    commit=words, source=sources,
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(claims)
def test_a_written_claim_reads_back_equal(tmp_path: Path, claim: Claim) -> None:
    """Whatever text and numbers a claim holds, the file gives the same claim."""
    write_claims(tmp_path / "c.yaml", [claim])
    assert read_claims(tmp_path / "c.yaml") == [claim]


def test_a_number_of_questions_has_a_bound(tmp_path: Path) -> None:
    """Denominators near it are searched, which a million million would never end."""
    path = tmp_path / "c.yaml"
    path.write_text(
        "claims:\n  - name: n\n    question: score\n    scores:\n"
        "      - {arm: baseline, name: g, value: 90, questions: 1000000000000}\n"
    )
    with pytest.raises(RefereeError, match=r"c\.yaml:5: scores\.0\.questions is 1000000000000; .*equal to 1000000"):
        read_claims(path)
