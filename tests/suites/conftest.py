"""Arms of `qsa.packed_decode` for the suites: a right one in torch, and wrong ones, on a bench that needs no kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from kda_lab.captures.generated import GeneratedCaptures
from kda_lab.ops.protocol import Arm, Call, FunctionArm
from kda_lab.ops.registry import load_op
from kda_lab.suites.bench import Bench

OP = load_op("qsa.packed_decode")
MUTANTS = {mutant.name: mutant for mutant in OP.mutants.MUTANTS}
ROWS = OP.cases.rows(("tp2",), (1,), ("short",))


def decode(call: Call) -> None:
    """The right answer with a kernel's rounding."""
    call.outputs["out"].copy_(OP.oracle.emulate(call)["out"])


def sink(call: Call) -> None:
    """As if each row had one more key with a score of zero and a value of zero: no longer invariant to shifts."""
    i = call.inputs
    out = OP.oracle.oracle_fp32(call)["out"]
    for b, (start, end) in enumerate(zip(i["cu_seqlens_k"][:-1], i["cu_seqlens_k"][1:], strict=True)):
        k = i["k"][start:end].float().repeat_interleave(i["q"].shape[1] // i["k"].shape[1], 1)
        scores = torch.einsum("hd,nhd->hn", i["q"][b].float(), k) / 16
        out[b] *= (scores.logsumexp(1) - torch.nn.functional.softplus(scores.logsumexp(1))).exp()[:, None]
    call.outputs["out"].copy_(out)


@dataclass
class CountingArm:
    """A right arm whose counter is left at one by every launch."""

    name: str = "counting"
    source_sha256: str = ""
    reads_live_lengths: bool = True
    count: torch.Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.int32))

    def unavailable(self, device: torch.device) -> str:
        return ""

    def bind(self, calls: Any) -> list[Callable[[], None]]:
        return [lambda call=call: self._launch(call) for call in calls]

    def state_tensors(self) -> dict[str, torch.Tensor]:
        return {"count": self.count}

    def _launch(self, call: Call) -> None:
        decode(call)
        self.count.fill_(1)


@dataclass
class DriftingArm(CountingArm):
    """An arm whose second and later launches give other bits."""

    name: str = "drifting"

    def state_tensors(self) -> dict[str, torch.Tensor]:
        return {}

    def _launch(self, call: Call) -> None:
        decode(call)
        call.outputs["out"].mul_(1 + 2**-7 * int(self.count))
        self.count.fill_(1)


def raises(call: Call) -> None:
    """An arm that cannot run a call."""
    raise RuntimeError("no such geometry")


ARMS: dict[str, Callable[[], Arm]] = {
    "right": lambda: FunctionArm("right", decode),
    "sink": lambda: FunctionArm("sink", sink),
    "raises": lambda: FunctionArm("raises", raises),
    "counting": CountingArm,
    "drifting": DriftingArm,
    **{name: mutant.make for name, mutant in MUTANTS.items()},
}


@pytest.fixture
def bench_of() -> Callable[[str], Bench]:
    """A bench for an arm by name, on the CPU."""
    captures = GeneratedCaptures("qsa.packed_decode", ROWS, 5)
    return lambda name: Bench(OP, ARMS[name](), torch.device("cpu"), captures)
