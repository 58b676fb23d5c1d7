"""Facts of a call that exists only as numbers: to ask what dispatch would do without tensors or a GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from kda_lab.contracts.dimensions import extent_of
from kda_lab.contracts.facts import CallFacts, TensorFacts
from kda_lab.contracts.gates import TensorGate
from kda_lab.contracts.model import Declaration
from kda_lab.errors import ParameterError, Reason


def imagined_call(
    contract: Declaration,
    axes: Mapping[str, int],
    scalars: Mapping[str, Any],
    capability: tuple[int, int] | None,
    float_dtype: str = "",
) -> CallFacts:
    """Facts of a call whose tensors are laid out as the contract wants them, all on one GPU, aligned.

    A scalar `out_dtype` is the dtype of the tensor `out`, and so for any other name.

    Args:
        contract: gives the shapes and layouts, and the first dtype of each tensor.
        axes: extent of every axis of the contract.
        scalars: by name; one that the contract calls a dtype may be given by its name, `bfloat16`.
        capability: of the GPU to ask for.
        float_dtype: dtype of the tensors whose first allowed one is a float; the contract's when empty.

    Raises:
        ParameterError: an axis is missing, or is no multiple of what a shape divides it by.
    """
    kinds = {name: gate.kind for name, gate in contract.scalars.items()}
    values = {name: _dtype(value) if kinds.get(name) == "dtype" else value for name, value in scalars.items()}
    tensors = {name: _imagined_tensor(name, gate, axes, float_dtype) for name, gate in contract.tensors.items()}
    for name in tensors:
        asked = values.get(f"{name}_dtype")
        if isinstance(asked, torch.dtype):
            tensors[name] = replace(tensors[name], dtype=str(asked).removeprefix("torch."))
    return CallFacts(tensors, values, capability)


def _imagined_tensor(name: str, gate: TensorGate, axes: Mapping[str, int], float_dtype: str) -> TensorFacts:
    try:
        shape = tuple(extent_of(dimension, axes) for dimension in gate.shape)
    # A dimension names an axis that is not given, or divides one that leaves a rest.
    except (KeyError, ValueError) as error:
        given = f"{dict(axes)}"
        raise ParameterError(
            "contracts", [Reason("axes", given, f"extents for {name} {gate.shape}", str(error))]
        ) from None
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    if gate.transposed:
        rows, columns = shape[-2:]
        strides = [math.prod((*shape[i + 1 : -2], columns, rows)) for i in range(len(shape) - 2)] + [1, rows]
    dtype = float_dtype if float_dtype and "float" in gate.dtypes[0] else gate.dtypes[0]
    return TensorFacts(dtype, shape, tuple(strides), gate.device, 0)


def _dtype(value: object) -> object:
    """The torch dtype of a name; anything else stays, so that the predicate refuses it by its own words."""
    found = getattr(torch, value, None) if isinstance(value, str) else None
    return found if isinstance(found, torch.dtype) else value
