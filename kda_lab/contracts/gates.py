"""Gates: what one tensor and one scalar of a call must be."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, Field, model_validator
from typing_extensions import Self

from kda_lab.contracts.dimensions import Dimension
from kda_lab.contracts.fields import Data


def _power_of_two(alignment_bytes: int) -> int:
    if alignment_bytes not in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        raise ValueError(f"alignment_bytes is {alignment_bytes}; allowed: a power of two from 1 to 256")
    return alignment_bytes


def _known_dtype(name: str) -> str:
    found = getattr(torch, name, None)
    # Under its own name: `half` is float16, which is how a tensor of it is told.
    if not isinstance(found, torch.dtype) or str(found) != f"torch.{name}":
        raise ValueError(f"a dtype is {name!r}; allowed: torch's own name of one, such as 'bfloat16'")
    return name


DtypeName = Annotated[str, AfterValidator(_known_dtype)]
"""Name of a torch dtype without the `torch.` prefix, as torch writes it: `float16`, not `half`."""


class TensorGate(Data):
    """What one tensor must be."""

    dtypes: tuple[DtypeName, ...] = Field(min_length=1)
    """Allowed dtypes without the `torch.` prefix: `bfloat16`."""
    shape: tuple[Dimension, ...]
    """One entry a dimension; the same axis name must mean the same extent in every tensor."""
    contiguous: bool = True
    """Row-major without gaps. False allows any strides."""
    transposed: bool = False
    """Row-major without gaps once its last two dimensions are swapped: strides (1, rows) where it has two."""
    free_leading: int = Field(default=0, ge=0)
    """Leading dimensions with any stride, where the others are row-major without gaps: 1 for rows of a wider tensor, or
    for slots of a pool that several layers share."""
    alignment_bytes: Annotated[int, AfterValidator(_power_of_two)] = 1
    """The data pointer must be a multiple of this: a power of two, at most 256."""
    optional: bool = False
    """May be None: an output buffer that the kernel then allocates."""
    device: Literal["cuda"] = "cuda"

    @model_validator(mode="after")
    def _transposed_has_a_layout(self) -> Self:
        if self.transposed and (not self.contiguous or len(self.shape) < 2):
            raise ValueError(
                f"transposed is True with contiguous {self.contiguous} and {len(self.shape)} dimensions; "
                "allowed: contiguous True and two dimensions or more"
            )
        return self

    @model_validator(mode="after")
    def _free_strides_leave_a_layout(self) -> Self:
        if self.free_leading and (not self.contiguous or self.transposed or self.free_leading >= len(self.shape)):
            raise ValueError(
                f"free_leading is {self.free_leading} with contiguous {self.contiguous}, transposed {self.transposed} "
                f"and {len(self.shape)} dimensions; allowed: contiguous True, transposed False and more dimensions"
            )
        return self


class ScalarGate(Data):
    """What one scalar must be. A bound of None does not bind."""

    kind: Literal["int", "float", "bool", "dtype"]
    minimum: float | None = None
    maximum: float | None = None
    allowed: tuple[int | float | bool | str, ...] | None = None
    """Values; for a dtype their names without the `torch.` prefix."""
    optional: bool = False
    remedy: str = ""
    """Sentence appended to the refusal."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum:g} is above maximum {self.maximum:g}")
        return self

    @model_validator(mode="after")
    def _values_are_of_the_kind(self) -> Self:
        names = [isinstance(value, str) for value in self.allowed or ()]
        if self.kind != "dtype" and any(names):
            raise ValueError(f"allowed is {self.allowed!r} for kind {self.kind!r}; names are for kind 'dtype'")
        if self.kind == "dtype" and (not names or not all(names) or (self.minimum, self.maximum) != (None, None)):
            raise ValueError(
                f"allowed is {self.allowed!r} with bounds {self.minimum!r} and {self.maximum!r} for kind 'dtype'; "
                "allowed: names of dtypes such as 'bfloat16', and no bounds"
            )
        for value in self.allowed or () if self.kind == "dtype" else ():
            _known_dtype(str(value))
        return self
