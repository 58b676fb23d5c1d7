"""A pipeline session checks, times, compares and judges a chain, and says why nothing was timed on a CPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.notebook import Session, chain_run, pipeline_session
from kda_lab.notebook.pipeline_session import PipelineSession, chain_words, isolated_arms
from kda_lab.ops.protocol import Launcher
from kda_lab.timing import rows
from kda_lab.timing.activity import Activity
from kda_lab.timing.chain.assembly import Chain
from kda_lab.timing.machine import Machine

ROOT = Path(__file__).parents[2]
NOT_TIMED = "not timed (interpreter)"
TWO = ["stream/stream", "stream/persist"]
HINTED = '''
from kda_lab.ops.nvfp4_gemm import oracle
from kda_lab.ops.protocol import Call


def gemm_with_policy(x_fp4, weight, x_sf, weight_sf, alpha, *, out_dtype, out, weight_policy, scale_policy):
    """The right product whatever the hints, in torch, since the interpreter is slow."""
    inputs = {"x_fp4": x_fp4, "weight": weight, "x_sf": x_sf, "weight_sf": weight_sf, "alpha": alpha}
    call = Call("nvfp4.gemm", inputs, {"out_dtype": str(out_dtype).removeprefix("torch.")}, {"out": out})
    return out.copy_(oracle.oracle_fp32(call)["out"])
'''


@pytest.fixture
def make_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PipelineSession]:
    """A session over the smallest chain, whose candidate is the portable kernel with hints that do nothing."""

    def make(extra: str = HINTED) -> PipelineSession:
        folder = tmp_path / "candidates" / "nvfp4.gemm"
        folder.mkdir(parents=True)
        source = (ROOT / "notebooks/candidates/nvfp4.gemm/portable.py").read_text()
        (folder / "portable.py").write_text(source)
        (folder / "hinted.py").write_text(source + extra)
        monkeypatch.setattr(pipeline_session, "CANDIDATES", str(folder.parent))
        session = Session.open("test", str(tmp_path / "run"), "cpu")
        return PipelineSession.open(session, "nvfp4.gemm", model="tiny", batch=1, layers=2, state_mb=0.02, seed=1)

    return make


class Timer:
    """Reports 1 ms a launch; what it is asked to replay runs once."""

    name = "cuda graph, events"

    def prepare(self, launchers: Sequence[Any], calls: int) -> Launcher:
        steps = len(launchers[0].steps) if isinstance(launchers[0], Chain) else 1
        self.us = 1000.0 * calls * steps
        passes = calls if isinstance(launchers[0], Chain) else 1
        return lambda: [launch() for _ in range(passes) for launch in launchers] and None

    def sample_us(self, replay: Launcher, replays: int, warmup: int, while_busy: Callable[[], None]) -> list[float]:
        while_busy()
        return [self.us] * replays


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a CPU stand for a GPU: a fake timer, a tiny L2, a provenance without an interpreter."""
    quiet = {"sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "power_w": 300.0, "temperature_c": 40, "throttle": [],
             "other_processes": 0, "reason": ""}  # fmt: skip
    machine = Machine(
        device=torch.device("cpu"), l2_bytes=1000, memory_bytes=1 << 30, copy_gb_s=4300.0, read_gb_s=4200.0, timer=Timer(),
        telemetry=lambda: dict(quiet), profile=lambda launch, device: Activity(None, "unavailable, because it is a test"),
        provenance={"device": {"type": "cuda", "name": "Toy GPU", "uuid": "test", "interpreter": False}},
        synchronise=lambda: None, release=lambda: None,
    )  # fmt: skip
    for module in (chain_run, pipeline_session, rows):
        monkeypatch.setattr(module, "why_not_timed", lambda device: "")
    for module in (chain_run, rows):
        monkeypatch.setattr(module, "machine_for", lambda device: machine)


def test_a_cpu_run_is_checked_and_not_timed(make_session: Callable[..., PipelineSession]) -> None:
    """Every chain is judged, nothing is timed, the words say so, and the verdict stands on the checks."""
    chain = make_session()
    assert "tiny_a-M1-random" in chain.geometry().to_html()
    assert "hinted stream/persist" in chain.choose_arms("hinted", TWO, "cublas_bf16", ["portable"]).to_html()
    shown = chain.check().to_html()
    assert shown.count("right") == 5
    assert {chain.time_isolated(5), chain.time_chain(5), chain.figure(), chain.table(), chain.findings()} == {NOT_TIMED}
    verdict = chain.verdict()
    assert verdict.passed, verdict.failures
    assert verdict.sentence == f"pass: 5 of 5 chains right; {NOT_TIMED}"
    lines = (chain.session.run.path / "chain.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["check"] * 5
    assert json.loads(chain.session.run.verdict.read_text())["passed"] is True


def test_a_policy_that_changes_a_bit_fails(make_session: Callable[..., PipelineSession]) -> None:
    """A hint that changes the result is another kernel, and the run fails with the arms named."""
    factor = ".mul_(1 + 2**-7 * (scale_policy == 'persist'))"
    chain = make_session(HINTED.rstrip() + factor)
    chain.choose_arms("hinted", TWO, "cublas_bf16", [])
    chain.check()
    verdict = chain.verdict()
    assert not verdict.passed
    assert (
        "outputs differ between policies in the check: hinted stream/stream | hinted stream/persist" in verdict.failures
    )


def test_a_kernel_without_policies_fails(make_session: Callable[..., PipelineSession]) -> None:
    """It is refused with the function that it lacks, and a run without policies is no evidence."""
    chain = make_session()
    chain.choose_arms("portable", TWO, "cublas_bf16", [])
    assert "has no function gemm_with_policy" in chain.check().to_html()
    verdict = chain.verdict()
    assert not verdict.passed
    assert any(text.startswith("portable stream/stream was refused: ") for text in verdict.failures)


def test_unchecked_chains_prove_nothing(make_session: Callable[..., PipelineSession]) -> None:
    """A verdict before the check fails."""
    verdict = make_session().verdict()
    assert verdict.failures == ("0 policies were checked; needed: at least 2",)


@pytest.mark.usefixtures("on_a_gpu")
def test_a_timed_run_compares_both_places(make_session: Callable[..., PipelineSession]) -> None:
    """Isolated in two modes, in the chain, a figure in the folder, tables, findings, and a verdict of no speed."""
    chain = make_session()
    chain.choose_arms("hinted", TWO, "cublas_bf16", [])
    chain.check()
    chain.time_isolated(2)
    chain.time_chain(2)
    places = {r.row for r in chain.results()}
    alone = {f"{shape} alone{mode}" for shape in ("tiny_a", "tiny_c") for mode in (", cold", " (eight sets)")}
    assert places == {"isolated, cold", "isolated (eight sets)", "in the chain"} | alone
    assert {r.arm_us for r in chain.results() if r.role == "policy"} == {1000.0, 2000.0, 4000.0}
    chain.figure()
    assert (chain.session.run.path / "pipeline.svg").is_file()
    table = chain.table()
    assert not isinstance(table, str)
    assert "state only" in table.to_html()
    against = chain.table(against="cublas_bf16")
    assert not isinstance(against, str)
    assert "against cublas_bf16" in against.to_html()
    found = chain.findings()
    assert not isinstance(found, str)
    assert found.to_html().count("no difference beyond noise in either place") == 2
    verdict = chain.verdict()
    assert verdict.passed, verdict.failures
    assert verdict.sentence == "pass: 4 of 4 chains right; 1 policies timed in the chain: 1 same"


def test_roles_of_isolated_loops(make_session: Callable[..., PipelineSession]) -> None:
    """The reference is what ratios divide; the state has no loop; other kernels join the cold loop alone."""
    chain = make_session()
    chain.choose_arms("hinted", TWO, "cublas_bf16", ["portable"])
    assert [a.role for a in chain.arms] == ["reference", "policy", "baseline", "peer", "state"]
    assert [(arm.name, role) for arm, role in isolated_arms(chain.arms, with_others=True)] == [
        ("hinted stream/stream", "baseline"),
        ("hinted stream/persist", "candidate"),
        ("cublas_bf16", "peer"),
        ("portable", "peer"),
    ]
    assert [role for _, role in isolated_arms(chain.arms, with_others=False)] == ["baseline", "candidate"]


def test_wrong_names_are_refused(make_session: Callable[..., PipelineSession]) -> None:
    """Kernels, baselines and policies are checked before anything runs."""
    chain = make_session()
    with pytest.raises(ParameterError, match="kernels is 'sprinted'; allowed: hinted, portable"):
        chain.choose_arms("sprinted", TWO, "cublas_bf16", [])
    with pytest.raises(ParameterError, match=r"arm of nvfp4\.gemm is 'mkl'"):
        chain.choose_arms("hinted", TWO, "mkl", [])
    with pytest.raises(ParameterError, match="policies is 'keep/all'; allowed: stream/stream"):
        chain.choose_arms("hinted", ["stream/stream", "keep/all"], "cublas_bf16", [])


def test_no_policy_no_words() -> None:
    """Nothing timed has no verdict."""
    assert chain_words([]) == "0 policies timed in the chain: no verdict"
