"""Whether an arm changed the code that judges it: functions of the judging modules, compared with their first state.

An arm runs in the process that judges it, so this finds patches, not every trick: an arm that hunts for the
oracle's tensors in memory is not found. A candidate is read before it is exported, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch

from kda_lab.errors import VerificationError
from kda_lab.ops import infinities
from kda_lab.verify import checks, guarded, launching, metrics, observation, reference

JUDGES: tuple[ModuleType, ...] = (checks, guarded, infinities, launching, metrics, observation, reference)
TORCH_NAMES = ("isfinite", "isinf", "count_nonzero", "equal", "stack", "zeros_like", "full_like")
TENSOR_NAMES = ("double", "to", "copy_", "clone", "view", "fill_", "all", "any", "__eq__", "__ne__")


def _judging_code() -> Iterator[tuple[str, Any]]:
    """Name and identity of everything that decides: functions with their code, methods, the torch calls used."""
    for module in JUDGES:
        for name, value in sorted(vars(module).items()):
            if isinstance(value, FunctionType):
                yield f"{module.__name__}.{name}", (value, value.__code__)
            elif isinstance(value, type) and value.__module__ == module.__name__:
                for method, function in sorted(vars(value).items()):
                    if isinstance(function, FunctionType):
                        yield f"{module.__name__}.{name}.{method}", (function, function.__code__)
    yield from ((f"kda_lab.verify.checks.{name}", getattr(checks, name)) for name in ("CHECKS", "_BEFORE", "_AFTER"))
    yield "torch.linalg.vector_norm", torch.linalg.vector_norm
    yield from ((f"torch.{name}", getattr(torch, name)) for name in TORCH_NAMES)
    yield from ((f"torch.Tensor.{name}", getattr(torch.Tensor, name)) for name in TENSOR_NAMES)


_FIRST = dict(_judging_code())


def require_untouched(arm: str) -> None:
    """Refuse to judge when the judging code is not what it was when it was imported.

    Raises:
        VerificationError: names the arm and every function that is another one now.
    """
    now = dict(_judging_code())
    changed = sorted(name for name in _FIRST.keys() | now.keys() if _FIRST.get(name) != now.get(name))
    if changed:
        raise VerificationError(
            "verify",
            f"the code that judges was changed before arm {arm} was judged: {', '.join(changed)}."
            " Nothing in this process can be judged any more; read the arm's source.",
        )
