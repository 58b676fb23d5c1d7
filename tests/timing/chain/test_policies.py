"""Policy arms call one kernel with fixed hints, and say why where they cannot."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.timing.chain.policies import POLICIES, PolicyArm, policy_arms


@pytest.fixture
def source(chain_op: Any) -> Callable[..., Any]:
    """A stand-in for a candidate's arm; without `gemm_with_policy` on demand."""

    def make(has_policies: bool = True, why_not: str = "") -> Any:
        seen: list[tuple[str, str]] = []

        def gemm_with_policy(
            x: torch.Tensor, w: torch.Tensor, *, out: torch.Tensor, weight_policy: str, scale_policy: str
        ) -> None:
            seen.append((weight_policy, scale_policy))
            torch.mul(x, w, out=out)

        module = SimpleNamespace(**({"gemm_with_policy": gemm_with_policy} if has_policies else {}))
        return SimpleNamespace(
            name="streamed", module=module, spec=chain_op.spec, source_sha256="abc", seen=seen,
            declaration=SimpleNamespace(kernels_per_call=1), unavailable=lambda device: why_not,
        )  # fmt: skip

    return make


def test_there_are_four_policies() -> None:
    """Weights and scales are each streamed or kept; streaming both is the first."""
    assert POLICIES == ("stream/stream", "stream/persist", "persist/stream", "persist/persist")


def test_an_arm_passes_its_hints(source: Callable[..., Any], chain_op: Any, plan: Any) -> None:
    """Each arm hands exactly its own two hints to the kernel, and its output is the kernel's."""
    stand_in = source()
    arms = policy_arms(stand_in, ["stream/stream", "stream/persist"])
    calls = chain_op.make_sets(plan.rows[0], 2, 1, torch.device("cpu"))
    for arm in arms:
        for launch in arm.bind(calls):
            launch()
    assert stand_in.seen == [("stream", "stream")] * 2 + [("stream", "persist")] * 2
    assert torch.equal(calls[1].outputs["out"], chain_op.exact(calls[1])["out"])
    assert [arm.name for arm in arms] == ["streamed stream/stream", "streamed stream/persist"]
    assert (arms[0].source_sha256, arms[0].kernels_per_call) == ("abc", 1)


def test_a_kernel_without_policies_is_unavailable(source: Callable[..., Any]) -> None:
    """The reason names the function that is missing; else the candidate's own reason counts."""
    device = torch.device("cpu")
    missing = PolicyArm(source(has_policies=False), "stream", "stream").unavailable(device)
    assert missing == "unavailable, because streamed has no function gemm_with_policy"
    assert PolicyArm(source(why_not="unavailable, because no GPU"), "stream", "stream").unavailable(device) == (
        "unavailable, because no GPU"
    )
    assert PolicyArm(source(), "stream", "stream").unavailable(device) == ""


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        (["stream/stream", "keep/keep"], "policies is 'keep/keep'; allowed: stream/stream, stream/persist"),
        (["stream/stream", "stream/stream"], "policies is 'stream/stream'; allowed: each once"),
        (
            ["stream/stream"],
            r"policies is \['stream/stream'\]; allowed: at least 2. The first is what others divide by",
        ),
    ],
    ids=["unknown", "twice", "alone"],
)
def test_wrong_policies_are_refused(source: Callable[..., Any], policies: list[str], words: str) -> None:
    """Unknown, repeated and lonely policies are named."""
    with pytest.raises(ParameterError, match=words):
        policy_arms(source(), policies)
