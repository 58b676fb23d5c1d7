"""The source threads: the verdicts that their own numbers carry, and each printed number computed again."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from kda_lab.errors import RefereeError
from kda_lab.referee.judge import Judgement, judge
from kda_lab.referee.threads import THREADS, Thread, read_threads

FOLDER = Path(__file__).parents[2] / "data" / "claims"


@cache
def threads() -> dict[str, Thread]:
    """All threads by name."""
    return {t.name: t for t in read_threads(FOLDER)}


@cache
def judgement(thread: str, claim: str) -> Judgement:
    """One claim, judged."""
    return judge(threads()[thread].claim(claim))


EXPECTED = {
    ("sglang-32890-kimi-k3", "c1-first-pass"): ("invalid", "cold JIT suspected"),
    ("sglang-32890-kimi-k3", "c1-second-pass"): ("inconclusive", "one run an arm"),
    ("sglang-32890-kimi-k3", "c24-consolidation"): ("inconclusive", "one run an arm"),
    ("sglang-32890-kimi-k3", "c24-throughput-point"): ("not comparable", "-2.2 % at equal occupancy"),
    ("sglang-32890-kimi-k3", "c1-8192"): ("inconclusive", "one run an arm"),
    ("sglang-32890-kimi-k3", "c1-1024"): ("inconclusive", "one run an arm"),
    ("sglang-32890-kimi-k3", "gsm8k-export"): ("inconclusive", "MDE 1.8 points"),
    ("sglang-32890-kimi-k3", "gsm8k-consolidation"): ("inconclusive", "MDE 2.0 points"),
    ("sglang-32890-kimi-k3", "radix-outputs"): ("identical", "kernel mode"),
    ("sglang-32890-kimi-k3", "packed-decode-tolerance"): ("invalid", "vacuous"),
    ("sglang-36206-kda-fusion", "throughput"): ("inconclusive", "separated, p = 0.10, n = 3"),
    ("sglang-36206-kda-fusion", "serving-medians"): ("inconclusive", "runs not printed"),
    ("sglang-36206-kda-fusion", "profile"): ("inconclusive", "one run an arm"),
    ("sglang-36206-kda-fusion", "graph"): ("inconclusive", "one run an arm"),
    ("sglang-36206-kda-fusion", "gsm8k"): ("inconclusive", "MDE 1.3 points"),
    ("sglang-36206-kda-fusion", "equality-normal"): ("invalid", "A/A failed in normal mode"),
    ("sglang-36206-kda-fusion", "equality-deterministic"): ("identical", "deterministic mode"),
    ("sglang-36845-qsa", "one-machine-c1"): ("inconclusive", "runs not printed"),
    ("sglang-36845-qsa", "one-machine-c4"): ("inconclusive", "runs not printed"),
    ("sglang-36845-qsa", "two-machines-c1"): ("inconclusive", "MDE unknown"),
    ("sglang-36845-qsa", "two-machines-c4"): ("inconclusive", "MDE unknown"),
    ("sglang-36845-qsa", "kernel-in-trace"): ("inconclusive", "runs not printed"),
    ("sglang-36845-qsa", "gsm8k-one-machine"): ("inconclusive", "MDE 7.8 points"),
    ("sglang-36845-qsa", "gsm8k-output-limit"): ("inconclusive", "MDE 12.1 points"),
    ("sglang-36845-qsa", "gsm8k-two-machines"): ("inconclusive", "MDE 19.3 points"),
    ("sglang-36845-qsa", "tokens-two-machines"): ("identical", "greedy mode"),
    ("sglang-36865-nvfp4", "qwen38-27b-narrow-policy"): ("inconclusive", "runs not printed"),
} | {
    ("sglang-36865-nvfp4", f"qwen35-{size}-c{concurrency}"): ("inconclusive", "runs not printed")
    for size in ("4b", "9b")
    for concurrency in (1, 2, 4, 8)
}


@pytest.mark.parametrize(("thread", "claim"), sorted(EXPECTED))
def test_a_claim_gets_its_verdict(thread: str, claim: str) -> None:
    """The word, and what stands in its parentheses."""
    word, detail = EXPECTED[thread, claim]
    found = judgement(thread, claim)
    assert found.verdict == word
    assert detail in found.detail


def test_every_claim_has_an_expected_verdict() -> None:
    """A claim that is added is judged here."""
    assert {(t.name, c.name) for t in threads().values() for c in t.claims} == set(EXPECTED)


def test_the_occupancy_of_the_throughput_point() -> None:
    """23.06 requests in flight against 24.0: the printed gain turns into a loss at the same number in flight."""
    (found,) = judgement("sglang-32890-kimi-k3", "c24-throughput-point").of("occupancy")
    assert found.numbers["baseline_in_flight_count"] == pytest.approx(23.06, abs=0.01)
    assert found.numbers["candidate_in_flight_count"] == pytest.approx(24.0, abs=0.02)
    assert found.numbers["rate_change_percent"] == pytest.approx(1.77, abs=0.01)
    assert found.numbers["equal_occupancy_change_percent"] == pytest.approx(-2.2, abs=0.05)


def test_three_runs_an_arm_cannot_decide() -> None:
    """+2.19 %, every run of one arm above every run of the other, and p no smaller than 0.10."""
    numbers = judgement("sglang-36206-kda-fusion", "throughput").numbers
    assert numbers["change_percent"] == pytest.approx(2.19, abs=0.005)
    assert numbers["p"] == pytest.approx(0.10)
    assert numbers["attainable_p"] == pytest.approx(0.10)


def test_the_scores_are_shares_of_another_number_of_questions() -> None:
    """1319 questions are declared; all six scores are whole numbers of 1314, and of no other number near it."""
    found = judgement("sglang-36206-kda-fusion", "gsm8k")
    assert found.numbers["mde_points"] == pytest.approx(1.3, abs=0.05)
    assert any("1314" in f.short and f.severity == "warning" for f in found.of("scores"))


def test_the_verdict_is_the_same_every_time() -> None:
    """The same claim gives the same judgement, to the last bit."""
    claim = threads()["sglang-36206-kda-fusion"].claim("throughput")
    assert judge(claim).model_dump_json() == judge(claim).model_dump_json()


ROUNDING = {
    "sglang-36865-nvfp4": ("Qwen3.8-27B throughput, narrow policy",),
    "sglang-36845-qsa": (
        "one machine, concurrency 1: mean e2e latency",
        "one machine, concurrency 1: mean tpot",
        "one machine, concurrency 1: mean itl",
        "one machine, concurrency 4: mean tpot",
        "one machine, concurrency 4: mean itl",
    ),
    "sglang-32890-kimi-k3": (
        "8192/1024 concurrency 24: TTFT, median of the repeats",
        "total throughput of the baseline from its output",
        "total throughput of repeat 1 from its output",
        "total throughput of repeat 2 from its output",
        "total throughput of repeat 3 from its output",
    ),
    "sglang-36206-kda-fusion": ("graph", "GSM8K difference, of the means of the printed scores"),
}
DISAGREEING = {
    "sglang-36865-nvfp4": (),
    "sglang-36845-qsa": (
        "two machines, concurrency 1: movement between rounds, throughput, at least",
        "two machines, concurrency 1: movement between rounds, time per token, at most",
        "two machines, concurrency 4: movement between rounds, time per token, at most",
    ),
    "sglang-32890-kimi-k3": (
        "8192/1024 concurrency 24: throughput, median of the repeats",
        "agreement of the repeats: TTFT",
        "agreement of the repeats: TTFT, 99th percentile",
        "regressions beside the crash",
    ),
    "sglang-36206-kda-fusion": (),
}


@pytest.mark.parametrize("thread", THREADS)
def test_printed_numbers_that_their_inputs_do_not_give(thread: str) -> None:
    """The list of all numbers whose printed digits do not follow; every other one agrees to the printed digit."""
    assert tuple(d.name for d in threads()[thread].of("rounding")) == ROUNDING[thread]
    assert tuple(d.name for d in threads()[thread].of("disagrees")) == DISAGREEING[thread]
    assert len(threads()[thread].of("agrees")) >= 12


def test_the_difference_of_the_means_in_three_ways() -> None:
    """-0.381 follows from the rounded means and from the right answers; the printed scores alone give -0.380."""
    found = {d.name: d.recomputed for d in threads()["sglang-36206-kda-fusion"].derived}
    assert found["GSM8K difference, of the printed means"] == pytest.approx(-0.381, abs=1e-9)
    assert found["GSM8K difference, of the means of the printed scores"] == pytest.approx(-0.38033, abs=1e-5)
    assert found["GSM8K difference, of right answers out of 3942"] == pytest.approx(-0.38052, abs=1e-5)


def one_step(scale: float, state_scale: float) -> dict[str, torch.Tensor]:
    """Outputs of one packed-decode step, the right one and six wrong ones, at given scales of inputs and state."""
    draw = torch.Generator().manual_seed(20260901)
    B, H, K = 8, 8, 128

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    q, k, v = (scale * normal(B, H, K) for _ in range(3))
    a, b, log_a, bias = 0.5 * normal(B, H, K) - 1, 0.5 * normal(B, H), 0.2 * normal(H), 0.1 * normal(H, K)
    state, rate, x = state_scale * normal(B, H, K, K), log_a.exp()[:, None], a + bias
    soft, safe = -rate * torch.nn.functional.softplus(x), -5 * torch.sigmoid(rate * x)

    def output(g: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        unit = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        query = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt() * K**-0.5
        decayed = state * g.exp()[:, :, None, :]
        delta = beta[..., None] * (v - torch.einsum("bhvk,bhk->bhv", decayed, unit))
        return torch.einsum("bhvk,bhk->bhv", decayed + delta[..., None] * unit[:, :, None, :], query)

    beta = torch.sigmoid(b)
    right = output(soft, k, v, beta)
    return {
        "right": right,
        "all zero": torch.zeros_like(right),
        "no decay": output(torch.zeros_like(soft), k, v, beta),
        "no update": output(soft, k, v, torch.zeros_like(beta)),
        "safe gate instead of softplus": output(safe, k, v, beta),
        "beta is one": output(soft, k, v, torch.ones_like(beta)),
        "k and v swapped": output(soft, v, k, beta),
    }


def accepted(outputs: dict[str, torch.Tensor]) -> dict[str, bool]:
    """What the upstream output check says of each wrong output."""
    right = outputs["right"]
    limit = max(2e-2, 1e-2 * float(right.abs().max()))
    return {n: float((o - right).abs().max()) <= limit for n, o in outputs.items() if n != "right"}


def test_the_vacuous_tolerance_is_computed_again() -> None:
    """At the upstream scales the check accepts every wrong output on file; at scale 1 it rejects them all."""
    (gate,) = threads()["sglang-32890-kimi-k3"].claim("packed-decode-tolerance").gates
    assert accepted(one_step(0.1, 0.01)) == gate.accepts
    assert not any(accepted(one_step(1.0, 1.0)).values())


def test_unknown_names_are_refused() -> None:
    """Threads and claims that are there are listed."""
    with pytest.raises(RefereeError, match=r"thread is 'x'; allowed: sglang-36865-nvfp4, "):
        read_threads(FOLDER, ["x"])
    with pytest.raises(RefereeError, match=r"claim is 'x'; allowed: .*throughput"):
        threads()["sglang-36206-kda-fusion"].claim("x")
