"""Facts of a call: what the predicate may know of it, read from host-side properties alone.

Reading a fact never touches device memory, never synchronises and never allocates on a device, so
it is safe inside a CUDA-graph capture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from kda_lab import runtime
from kda_lab.ops.protocol import OpSpec

ALIGNMENT_LIMIT_BYTES = 256
"""Alignment is recorded up to this; CUDA allocations start at multiples of at least 256 bytes."""


@dataclass(frozen=True)
class TensorFacts:
    """Static properties of one tensor."""

    dtype: str
    """Without the `torch.` prefix: `bfloat16`."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    device_type: str
    device_index: int | None
    alignment: int = ALIGNMENT_LIMIT_BYTES
    """Largest power of two that divides the data pointer, in bytes, at most 256."""

    @property
    def device(self) -> str:
        """`cuda:0`, or `cpu`."""
        return self.device_type if self.device_index is None else f"{self.device_type}:{self.device_index}"

    @property
    def contiguous(self) -> bool:
        """Row-major without gaps; the stride of an axis of extent 1 does not matter."""
        return _dense(self.shape, self.strides)

    def contiguous_behind(self, leading: int) -> bool:
        """Row-major without gaps once the first `leading` dimensions are taken away, whatever their strides."""
        return len(self.strides) == len(self.shape) and (
            0 in self.shape or _dense(self.shape[leading:], self.strides[leading:])
        )

    @property
    def transposed(self) -> bool:
        """Row-major without gaps once the last two dimensions are swapped; false below two dimensions."""
        if len(self.strides) != len(self.shape) or len(self.shape) < 2:
            return False
        (*outer, rows, columns), (*steps, row_step, column_step) = self.shape, self.strides
        return _dense((*outer, columns, rows), (*steps, column_step, row_step))


def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether strides are row-major without gaps; that of an axis of extent 1 does not matter."""
    if len(strides) != len(shape):
        return False
    if 0 in shape:
        return True
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


@dataclass(frozen=True)
class CallFacts:
    """Everything the predicate may know of one call."""

    tensors: Mapping[str, TensorFacts]
    """Inputs and given outputs by name; an argument that is None is absent."""
    scalars: Mapping[str, Any]
    """Scalars by name as given; None means not given."""
    capability: tuple[int, int] | None
    """Exact (major, minor) of the device; None for a CPU."""
    foreign: Mapping[str, str] = field(default_factory=dict)
    """Arguments given for a tensor that are no strided tensors: name to a word for what they are."""
    interpreted: bool = False
    """All tensors on a CPU, in a process whose Triton interpreter was mended and proved."""
    same_start: Mapping[str, str] = field(default_factory=dict)
    """Tensors with elements that begin at the address of one before them: name to the name of the first that does."""


def alignment_of(address: int) -> int:
    """Largest power of two, at most 256, that divides an address in bytes."""
    capped = address | ALIGNMENT_LIMIT_BYTES
    return capped & -capped


def tensor_facts(tensor: torch.Tensor) -> TensorFacts:
    """Facts of one strided tensor."""
    return TensorFacts(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        device_type=tensor.device.type,
        device_index=tensor.device.index,
        alignment=alignment_of(tensor.data_ptr()),
    )


def call_facts(
    spec: OpSpec,
    tensors: Mapping[str, Any],
    scalars: Mapping[str, Any],
    outputs: Mapping[str, Any] | None = None,
) -> CallFacts:
    """Facts of one call.

    Args:
        spec: the op; its first tensor on a CUDA device decides the capability.
        tensors: inputs by name.
        scalars: scalars by name.
        outputs: output buffers by name; None, or a value of None, where the kernel allocates.
    """
    facts: dict[str, TensorFacts] = {}
    foreign: dict[str, str] = {}
    device = None
    starts: dict[int, str] = {}
    same_start: dict[str, str] = {}
    for name, value in {**tensors, **(outputs or {})}.items():
        if value is None:
            continue
        if not isinstance(value, torch.Tensor):
            foreign[name] = f"a {type(value).__name__}"
        elif value.is_nested:
            foreign[name] = "a nested tensor"
        elif value.layout is not torch.strided:
            foreign[name] = f"a tensor of layout {value.layout}"
        else:
            facts[name] = tensor_facts(value)
            first = starts.setdefault(value.data_ptr(), name)
            # Address 0 is that of tensors without elements, and of those without memory.
            if first != name and value.data_ptr():
                same_start[name] = first
            if device is None and value.device.type == "cuda" and name in spec.tensors:
                device = value.device
    capability = None if device is None else runtime.capability(device)
    interpreted = runtime.interpreter_faithful() and all(f.device_type == "cpu" for f in facts.values())
    return CallFacts(facts, dict(scalars), capability, foreign, interpreted, same_start)
