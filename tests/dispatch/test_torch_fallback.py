"""A torch function in a fallback chain: its name, what it takes on a CPU and on a GPU, and its reasons."""

from __future__ import annotations

from dataclasses import replace

import torch

from kda_lab.contracts.facts import CallFacts, call_facts
from kda_lab.dispatch.torch_fallback import torch_fallback
from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec("toy.scale", ("x", "y"), ("factor",), ("out",))
MATRIX = {"dtypes": ["float32"], "shape": ["M", "N"]}


def scale(x: torch.Tensor, y: torch.Tensor, *, factor: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """A function of the op's signature."""
    return x * factor


FALLBACK = torch_fallback(
    "toy.scale",
    scale,
    {"x": MATRIX, "y": MATRIX, "out": {**MATRIX, "optional": True}},
    {"factor": {"kind": "int", "minimum": 1}},
)


def facts(x: torch.Tensor, y: torch.Tensor, factor: int = 2) -> CallFacts:
    return call_facts(SPEC, {"x": x, "y": y}, {"factor": factor}, {"out": None})


def on_cuda(given: CallFacts, *names: str) -> CallFacts:
    """The same facts with some tensors on the first GPU."""
    moved = {n: replace(t, device_type="cuda", device_index=0) if n in names else t for n, t in given.tensors.items()}
    return replace(given, tensors=moved, capability=(9, 0))


def test_its_name_is_that_of_the_op() -> None:
    """Dots become underscores, `_torch` stands behind; the function is the one given."""
    assert FALLBACK.name == "toy_scale_torch"
    assert FALLBACK.run is scale


def test_it_takes_cpu_tensors_without_the_interpreter_and_any_strides() -> None:
    """No device is asked of a CPU call; a transposed view will do."""
    given = facts(torch.zeros(2, 3), torch.zeros(3, 2).t())
    assert FALLBACK.unavailable(replace(given, interpreted=False)) == ()


def test_it_takes_any_capability() -> None:
    """A GPU of any architecture will do."""
    given = on_cuda(facts(torch.zeros(2, 3), torch.zeros(2, 3)), "x", "y")
    assert FALLBACK.unavailable(replace(given, capability=(7, 5))) == ()


def test_tensors_on_two_devices_are_refused() -> None:
    """A CPU tensor beside a CUDA one is named."""
    found = FALLBACK.unavailable(on_cuda(facts(torch.zeros(2, 3), torch.zeros(2, 3)), "x"))
    assert [str(reason) for reason in found] == ["y.device is 'cpu'; allowed: a cuda device. Move y."]


def test_dtype_shape_and_scalar_are_judged() -> None:
    """Each wrong field has its reason, all at once."""
    found = FALLBACK.unavailable(facts(torch.zeros(2, 3), torch.zeros(2, 4).half(), 0))
    assert [reason.field for reason in found] == ["y.dtype", "y.shape[1]", "factor"]
