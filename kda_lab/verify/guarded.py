"""Output buffers with poison inside and guard bands around, and bit-exact comparison of tensors.

Poison is a quiet NaN with a recognisable mantissa, so that an element nobody wrote can be told from
a NaN that a kernel computed. Two patterns alternate between launches: an integer output may hold
one of them by chance, but not both.
"""

from __future__ import annotations

import torch

from kda_lab.errors import Reason, VerificationError

GUARD_BYTES = 65_536
"""Bytes of guard on each side of an output: several rows of any op, and a multiple of any alignment."""

_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

POISON: dict[torch.dtype, tuple[int, int]] = {
    torch.bfloat16: (0x7FD5, 0x7FEA),
    torch.float16: (0x7F55, 0x7EAA),
    torch.float32: (0x7FD5A5A5, 0x7FEA5A5A),
    torch.float64: (0x7FFD5A5A5A5AA5A5, 0x7FFEA5A5A5A55A5A),
    torch.uint8: (0xA5, 0x5A),
    torch.int8: (0x55, 0x2A),
    torch.int16: (0x55A5, 0x2A5A),
    torch.int32: (0x55A5A5A5, 0x2A5A5A5A),
    torch.int64: (0x55A5A5A5A5A5A5A5, 0x2A5A5A5A5A5A5A5A),
}
"""Two bit patterns a dtype; those of floats are quiet NaNs that no hardware produces by itself."""


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bits as integers of the same width and shape: a copy when it is not contiguous."""
    return tensor.contiguous().view(_CARRIERS[tensor.element_size()])


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether dtype, shape and every bit agree; equal NaN patterns are equal, 0.0 and -0.0 are not."""
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(bits(left), bits(right))


def copy_strided(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in its own memory with the same shape and strides."""
    copied = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copied.copy_(tensor)


class GuardedBuffer:
    """An output's memory with a guard band on each side; gaps between strides are guarded too.

    Args:
        like: tensor whose shape, strides, dtype and device the output has.

    Raises:
        VerificationError: the dtype has no poison pattern.
    """

    def __init__(self, like: torch.Tensor) -> None:
        if like.dtype not in POISON:
            allowed = ", ".join(str(d) for d in POISON)
            raise VerificationError(
                "verify", [Reason("output.dtype", repr(like.dtype), allowed, "Add its poison pattern.")]
            )
        self._shape, self._strides = like.shape, like.stride()
        self._patterns = POISON[like.dtype]
        self._pattern = self._patterns[0]
        self._band = GUARD_BYTES // like.element_size()
        extents = zip(self._shape, self._strides, strict=True)
        span = 1 + sum((size - 1) * stride for size, stride in extents) if like.numel() else 0
        self._flat = torch.zeros(2 * self._band + span, dtype=like.dtype, device=like.device)
        owned = torch.zeros(self._flat.shape, dtype=torch.bool, device=like.device)
        owned.as_strided(self._shape, self._strides, self._band).fill_(True)
        self._foreign = ~owned

    def view(self) -> torch.Tensor:
        """The output inside the guards; a new tensor object each time, so that no resize reaches us."""
        return self._flat.as_strided(self._shape, self._strides, self._band)

    def poison(self, turn: int) -> None:
        """Fill everything, guards included, with pattern `turn % 2`."""
        self._pattern = self._patterns[turn % 2]
        bits(self._flat).fill_(self._pattern)

    def unwritten(self) -> torch.Tensor:
        """Boolean tensor of the output's shape: True where the poison still stands."""
        return bits(self.view()) == self._pattern

    def broken_guards(self) -> int:
        """How many elements outside the output no longer hold the poison."""
        return int(torch.count_nonzero((bits(self._flat) != self._pattern) & self._foreign))
