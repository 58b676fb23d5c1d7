"""The dispatcher on a real GPU: real facts, no synchronisation, safe inside a CUDA-graph capture."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from kda_lab import runtime
from kda_lab.dispatch.dispatcher import Dispatcher
from kda_lab.errors import ContractError
from kda_lab.ops.protocol import OpSpec

pytestmark = pytest.mark.gpu
SOURCE = "import torch\n\n\ndef scale(x, w, *, factor, out):\n    return torch.mul(x, w, out=out)\n"


@pytest.fixture
def served(write_kernel: Callable[..., Path]) -> Dispatcher:
    """A dispatcher that asks the real device, with a kernel qualified for exactly its capability."""
    major, minor = runtime.capability("cuda") or (0, 0)
    evidence = {"path": f"reports/evidence/alpha/v1/sm{major}{minor}.json", "sha256": "0" * 64}
    architecture = {"capability": (major, minor), "status": "qualified", "evidence": evidence}
    folder = write_kernel("alpha", source=SOURCE, architectures=[architecture])
    return Dispatcher(folder.parent)


@pytest.fixture
def no_synchronisation() -> Iterator[None]:
    """Any call that waits for the device raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls this mode a prototype
        torch.cuda.set_sync_debug_mode("error")
        yield
        torch.cuda.set_sync_debug_mode("default")


def arguments() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x of ones, w of twos and an output of NaN on the GPU."""
    x = torch.ones(4, 8, dtype=torch.bfloat16, device="cuda")
    return x, torch.full((8,), 2.0, device="cuda"), torch.full_like(x, float("nan"))


def test_selection_inside_a_capture_is_safe(served: Dispatcher, spec: OpSpec, no_synchronisation: None) -> None:
    """A first selection and a cached one inside a capture neither synchronise nor break it, and the replay computes anew."""
    x, w, out = arguments()
    served.prepare(spec)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2):
            served.call(spec, (x, w), {"factor": 2}, {"out": out})
    x.fill_(3.0)
    graph.replay()
    torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(out, torch.full_like(out, 6.0))
    assert served.statistics().hits == {"toy.scale: alpha": 2}


def test_tensors_on_cpu_and_gpu_are_told_apart(served: Dispatcher, spec: OpSpec) -> None:
    """With real facts the tensor that was left on the CPU is named, and nothing is written."""
    x, w, out = arguments()
    with pytest.raises(ContractError, match=r"w\.device is 'cpu'; allowed: a cuda device\. Move w\."):
        served.call(spec, (x, w.cpu()), {"factor": 2}, {"out": out})
    assert out.isnan().all()
