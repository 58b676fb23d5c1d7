"""Baselines: what must be beaten is right first, and says why it cannot run where it cannot."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab.ops.protocol import Call, preparation_of
from kda_lab.ops.qsa_paged_decode import baselines, cases, oracle
from kda_lab.verify.metrics import rel_l2

NAMES = ["compact_then_packed", "torch_gather_sdpa", "flashinfer_paged_page1", "flashinfer_paged_page1_planned"]
ON_CPU, FLASHINFER = baselines.ARMS[:2], baselines.ARMS[2:]


def test_the_first_arm_is_the_speed_baseline() -> None:
    """Order and names of the arms, which reports and notebooks rely on."""
    assert [arm.name for arm in baselines.ARMS] == NAMES


@pytest.mark.parametrize("arm", ON_CPU, ids=lambda a: a.name)
def test_baselines_that_run_on_a_cpu_are_right(arm: Any) -> None:
    """Two calls of one bind, with holes and an empty row: every element written, right after each."""
    calls = [cases.drawn("base", (12, 1), (0, 70), "draft", seed) for seed in (0, 1)]
    for call, launch in zip(calls, arm.bind(calls), strict=True):
        call.outputs["out"].fill_(float("nan"))
        launch()
        assert rel_l2(call.outputs["out"], oracle.oracle_fp32(call)["out"]) < 3e-3
        assert torch.count_nonzero(call.outputs["out"][0]) == 0


@pytest.mark.parametrize("arm", FLASHINFER, ids=lambda a: a.name)
def test_flashinfer_is_unavailable_on_a_cpu_with_a_reason(arm: Any) -> None:
    """Unavailable, because …: never a crash."""
    assert arm.unavailable(torch.device("cpu")).startswith("unavailable, because FlashInfer needs a CUDA device")


def test_the_scale_is_the_given_one_or_one_over_root_width() -> None:
    """1/16 for width 256 when none is given."""
    call = cases.drawn("scale", (12, 1), (3,), "short", 0)
    assert baselines.scale_of(call) == 1 / 16
    assert baselines.scale_of(replace(call, scalars={"softmax_scale": 0.25})) == 0.25


class Wrapper:
    """What the arms use of FlashInfer's wrapper, computed by the oracle from the planned pages."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.plans: list[list[int]] = []

    def plan(self, indptr: torch.Tensor, indices: torch.Tensor, last: torch.Tensor, *_: Any, **__: Any) -> None:
        self.plans.append(indptr.tolist())
        self._paged_kv_indices_buf = indices

    def run(self, q: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor], *, out: torch.Tensor) -> None:
        pages = self._paged_kv_indices_buf
        inputs = {"q": q, "k_pool": cache[0][:, 0], "v_pool": cache[1][:, 0]}
        inputs |= {"tokens": torch.arange(len(pages), dtype=torch.int32)[None], "req_to_slot": pages[None]}
        ends = torch.tensor([len(pages)], dtype=torch.int32)
        call = Call("", {**inputs, "lengths": ends, "requests": ends * 0}, {}, {"out": out})
        out.copy_(oracle.oracle_fp32(call)["out"])


def fake(monkeypatch: pytest.MonkeyPatch, wrapper: type = Wrapper) -> None:
    module = SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=wrapper)
    found = SimpleNamespace(module=module, reason="")
    monkeypatch.setattr(baselines.runtime, "import_optional", lambda name: found)


@pytest.mark.parametrize("arm", FLASHINFER, ids=lambda a: a.name)
def test_slots_are_the_pages(arm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of a bind runs on its own slots under a plan of its counts, holes left out."""
    fake(monkeypatch)
    calls = [cases.drawn("pages", (12, 1), (70,), "draft", seed) for seed in (0, 1)]
    launchers = arm.bind(calls)
    for call, launch in zip(calls, launchers, strict=True):
        launch()
        assert rel_l2(call.outputs["out"], oracle.oracle_fp32(call)["out"]) < 3e-3


def test_preparing_again_reads_the_new_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a refill in place `prepare` looks the slots up into the same memory; before it the old ones are used."""
    fake(monkeypatch)
    call = cases.drawn("again", (12, 1), (70,), "draft", 0)
    launch = baselines.ARMS[2].bind([call])[0]
    memory = launch.indices.data_ptr()
    for name, new in cases.changed(call, [70], 5).items():
        call.inputs[name].copy_(new)
    right = oracle.oracle_fp32(call)["out"]
    launch()
    assert not rel_l2(call.outputs["out"], right) < 3e-3
    preparation_of(launch)()
    launch()
    assert launch.indices.data_ptr() == memory
    assert rel_l2(call.outputs["out"], right) < 3e-3


def test_a_flashinfer_without_the_attribute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Swapping the indices of a wrapper that keeps them elsewhere would run on the old ones: refused at bind."""

    class Other(Wrapper):
        def plan(self, *_: Any, **__: Any) -> None:
            """Keeps nothing under the known name."""

    fake(monkeypatch, Other)
    with pytest.raises(
        RuntimeError, match=r"FlashInfer's wrapper has no _paged_kv_indices_buf; allowed: FlashInfer 0\.6"
    ):
        baselines.ARMS[2].bind([cases.drawn("other", (12, 1), (3,), "short", 0)])


def test_planning_inside_a_capture_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arm that plans in its launch says how it can be timed, before it breaks the capture."""
    fake(monkeypatch)
    for question in ("is_available", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, question, lambda: True)
    launch = baselines.ARMS[3].bind([cases.drawn("capture", (12, 1), (3,), "short", 0)])[0]
    with pytest.raises(
        RuntimeError, match=r"plans on the host, which no graph can hold; time this arm in mode 'eager'"
    ):
        launch()


@pytest.mark.gpu
@pytest.mark.parametrize("arm", baselines.ARMS, ids=lambda a: a.name)
@pytest.mark.parametrize("kind", ["mixed", "draft", "verify"])
def test_baselines_are_right_on_the_gpu(arm: Any, kind: str) -> None:
    """Every baseline that this machine offers agrees with the FP32 oracle within BF16 noise, two calls of one bind."""
    device = torch.device("cuda", 0)
    if arm.unavailable(device):
        pytest.skip(arm.unavailable(device))
    calls = [cases.synthesise(cases.rows(("tp1",), (4,), (kind,))[0], seed, device) for seed in (4, 5)]
    for call, launch in zip(calls, arm.bind(calls), strict=True):
        launch()
        assert rel_l2(call.outputs["out"], oracle.oracle_fp32(call)["out"]) < 5e-3
