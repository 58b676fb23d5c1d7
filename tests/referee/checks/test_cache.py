"""Cache policy and the fingerprint of a cold compile."""

from __future__ import annotations

import pytest

from kda_lab.referee.checks import cache
from kda_lab.referee.claim import CacheState, Claim, Run
from kda_lab.referee.finding import Finding

WARM = {"ttft_mean_ms": 266.0, "ttft_median_ms": 261.01, "ttft_p99_ms": 305.0, "tpot_mean_ms": 8.47}
COLD = {"ttft_mean_ms": 438.0, "ttft_p99_ms": 1679.0, "tpot_mean_ms": 8.47}


def checked(
    base: dict[str, float], cand: dict[str, float], states: tuple[CacheState, CacheState]
) -> dict[str, Finding]:
    """Findings by severity, of two single runs."""
    runs = (
        Run(arm="baseline", metrics={"throughput_tok_s": 105.42, **base}, cache_state=states[0]),
        Run(arm="candidate", metrics={"throughput_tok_s": 98.7, **cand}, cache_state=states[1]),
    )
    return {f.severity: f for f in cache.check(Claim(name="x", runs=runs))}


def test_a_tail_without_a_step_is_a_cold_compile() -> None:
    """The kernel thread's first pass, whose cold median was not printed: mean and p99 rise, TPOT stays."""
    found = checked(WARM, COLD, ("", ""))["cold cache"]
    assert found.short == "cold JIT suspected: re-run"
    assert "candidate: TTFT p99 1679 ms / mean 438 ms = 3.83" in found.arithmetic
    assert "candidate: TTFT mean 438 ms / the other arm's mean 266 ms = 1.65" in found.arithmetic


def test_with_a_median_the_rule_is_the_stated_one() -> None:
    """p99 at least three times and mean at least 1.3 times the arm's own median."""
    found = checked(WARM, {**COLD, "ttft_median_ms": 239.31}, ("", ""))["cold cache"]
    assert "candidate: TTFT p99 1679 ms / median 239.31 ms = 7.02" in found.arithmetic
    assert "cold cache" not in checked(WARM, {**COLD, "ttft_median_ms": 400.0}, ("", ""))


@pytest.mark.parametrize(
    ("base", "cand"),
    [
        (WARM, WARM),
        ({**COLD, "ttft_median_ms": 239.31}, {**COLD, "ttft_median_ms": 239.31}),
        (WARM, {**COLD, "tpot_mean_ms": 9.0}),
        (WARM, {"tpot_mean_ms": 8.47}),
        (WARM, {"ttft_mean_ms": 438.0}),
    ],
    ids=["both warm", "both cold", "steps differ too", "no first token", "no step"],
)
def test_no_fingerprint_no_finding(base: dict[str, float], cand: dict[str, float]) -> None:
    """Both arms alike, a slower step, or missing numbers: nothing is suspected."""
    assert "cold cache" not in checked(base, cand, ("warm", "warm"))


def test_different_policies_are_two_experiments() -> None:
    """One arm on cleared caches and one on warm ones do not compare."""
    found = checked(WARM, WARM, ("warm", "cleared"))["cold cache"]
    assert (found.short, "warm for baseline and cleared for candidate" in found.sentence) == (
        "cache policy differs",
        True,
    )
    assert "Both arms ran with caches warm" in checked(WARM, WARM, ("warm", "warm"))["passed"].sentence


def test_an_unstated_policy_is_remarked() -> None:
    """Not stated is a note, and decides only where the claim requires it."""
    assert "State it for both arms" in checked(WARM, WARM, ("warm", ""))["note"].sentence
    runs = tuple(Run(arm=a, metrics={"throughput_tok_s": 1.0}) for a in ("baseline", "candidate"))
    (found,) = cache.check(Claim(name="x", runs=runs, requires=("cache_state",)))
    assert found.severity == "inconclusive"


def test_artifacts_built_in_one_arm_are_evidence() -> None:
    """Compiled files that appear while one arm is timed need no ratio rule."""
    found = checked({**WARM, "artifacts_built": 0.0}, {**WARM, "artifacts_built": 10.0}, ("", ""))["cold cache"]
    assert "10 compiled artifacts appeared during the runs of the candidate" in found.sentence


def test_slow_first_samples_of_one_arm_are_a_cold_start() -> None:
    """Twenty request times, the first two of the candidate tenfold: cold; of both arms: alike."""
    steady = tuple(10.0 + 0.1 * (i % 3) for i in range(20))
    cold = (100.0, 100.0, *steady[2:])

    def found(base: tuple[float, ...], cand: tuple[float, ...]) -> list[str]:
        pairs = (("baseline", base), ("candidate", cand))
        runs = tuple(Run(arm=a, metrics={"kernel_us": 10.0}, samples={"kernel_us": s}) for a, s in pairs)
        told = cache.check(Claim(name="x", metric="kernel_us", runs=runs))
        return [line for f in told if f.severity == "cold cache" for line in f.arithmetic]

    assert found(steady, cold) == ["candidate: kernel_us: first 2 100 / others 10.1 = 9.90"]
    assert found(cold, cold) == found(steady, steady) == found(steady[:5], cold[:5]) == []


def mixed(states: dict[str, tuple[CacheState, CacheState]], rounds: bool) -> list[Finding]:
    """Two runs an arm with their states, in two rounds or in none."""
    runs = tuple(
        Run(arm=arm, metrics={"throughput_tok_s": 1.0}, cache_state=state, round=n if rounds else None)
        for arm, pair in states.items()
        for n, state in enumerate(pair)
    )
    return list(cache.check(Claim(name="x", runs=runs)))


def test_states_are_compared_run_by_run() -> None:
    """Both arms saw cold and warm caches; only where each round saw one state are they the same experiment."""
    crossed, aligned = ("warm", "cold"), ("cold", "warm")
    (found,) = mixed({"baseline": aligned, "candidate": crossed}, True)
    assert (found.severity, "stand together in round 0" in found.sentence) == ("cold cache", True)
    (found,) = mixed({"baseline": aligned, "candidate": crossed}, False)
    assert (found.severity, "stand together in one arm" in found.sentence) == ("cold cache", True)
    (found,) = mixed({"baseline": aligned, "candidate": aligned}, True)
    assert found.severity == "passed"


def test_artifacts_that_nobody_counted_are_not_called_none() -> None:
    """The baseline's were not counted, which is not the same as none."""
    for base, told in (({}, "were not counted"), ({"artifacts_built": 0.0}, "none during the other arm's")):
        assert told in checked(base, {"artifacts_built": 3.0}, ("", ""))["cold cache"].sentence
