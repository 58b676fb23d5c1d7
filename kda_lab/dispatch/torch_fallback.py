"""A torch function as a member of a fallback chain: what it takes is a declaration, judged on any one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kda_lab.contracts.facts import CallFacts
from kda_lab.contracts.model import Declaration
from kda_lab.contracts.predicate import check
from kda_lab.dispatch.fallback import FallbackFunction
from kda_lab.errors import Reason


def torch_fallback(
    op: str, run: Callable[..., Any], tensors: Mapping[str, Any], scalars: Mapping[str, Any]
) -> FallbackFunction:
    """The function `run` under the name of its op: `qsa.topk_blocks` to `qsa_topk_blocks_torch`.

    Args:
        op: dotted name of the op.
        run: takes the op's arguments; serves CPU tensors as well as CUDA ones.
        tensors: fields of a `TensorGate` by tensor name. Any strides will do where `contiguous` is left out.
        scalars: fields of a `ScalarGate` by scalar name.
    """
    name = f"{op.replace('.', '_')}_torch"
    accepts = Declaration.model_validate(
        {
            "op": op,
            "kernel": name,
            "entry": run.__name__,
            "language": "triton",
            "license": "Apache-2.0",
            "author": "the kda_lab authors",
            "task": "torch function for calls that no exported kernel takes",
            "tensors": {n: {"contiguous": False, **gate} for n, gate in tensors.items()},
            "scalars": scalars,
            "callable": [{"axes": {}, "basis": "torch takes any extents"}],
            "fallback": {"kind": "raise"},
            "state": {"scratch_bytes": 0, "concurrency": "any", "reset": "none"},
            "kernels_per_call": 1,
            "compile_units": [],
        }
    )
    return FallbackFunction(name, run, lambda facts: _reasons(accepts, facts))


def _reasons(accepts: Declaration, facts: CallFacts) -> tuple[Reason, ...]:
    """Every reason against a call; on a CPU the gates' kind of device, which is CUDA, does not count."""
    on_cpu = bool(facts.tensors) and all(tensor.device_type == "cpu" for tensor in facts.tensors.values())
    return check(accepts, replace(facts, interpreted=on_cpu)).reasons
