"""Error metrics in FP64: relative L2 over a whole output and its worst row, and the worst element; all fail on NaN."""

from __future__ import annotations

import math

import torch

from kda_lab.errors import VerificationError
from kda_lab.ops.infinities import without_shared_infinities

CHUNK = 1 << 26
"""Elements compared at a time by `element_max`: 512 MB of FP64."""


def rel_l2(value: torch.Tensor, reference: torch.Tensor) -> float:
    """‖value − reference‖₂ / ‖reference‖₂ over all elements, accumulated in FP64; dimensionless.

    0 when both are zero everywhere, infinity when only the reference is, NaN when `value` holds NaN. An infinity of
    the reference that the value has too counts as an exact zero of both; one that it has not gives NaN.

    Raises:
        VerificationError: the shapes differ.
    """
    _same_shape(value, reference)
    value64, reference64 = without_shared_infinities(value.double(), reference.double())
    difference = float(torch.linalg.vector_norm(value64 - reference64))
    return _ratio(difference, float(torch.linalg.vector_norm(reference64)))


def row_errors(value: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Relative L2 of each row: a row is one index of all axes but the last. FP64, shape `value.shape[:-1]`.

    A zero reference row gives 0 when the value's row is zero too, else infinity.
    """
    _same_shape(value, reference)
    if value.dim() == 0:
        value, reference = value[None], reference[None]
    value64, reference64 = without_shared_infinities(value.double(), reference.double())
    difference = torch.linalg.vector_norm(value64 - reference64, dim=-1)
    norm = torch.linalg.vector_norm(reference64, dim=-1)
    ratio = difference / norm
    return torch.where((norm == 0) & (difference == 0), torch.zeros_like(ratio), ratio)


def row_max(value: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest of `row_errors`: NaN when any row is NaN, 0 without rows."""
    errors = row_errors(value, reference)
    if errors.numel() == 0:
        return 0.0
    # torch.max hands a NaN on, so one NaN row cannot hide behind a finite one.
    return float(errors.max())


def element_max(value: torch.Tensor, reference: torch.Tensor, allowance: torch.Tensor) -> float:
    """The largest |value - reference| / allowance of any element: NaN when any is NaN, 0 without elements.

    An element that is equal to its reference counts 0 whatever its allowance; another with an allowance of 0 is
    infinite.

    Raises:
        VerificationError: the shapes differ.
    """
    _same_shape(value, reference)
    _same_shape(allowance, reference)
    ratios = []
    for given, right, allowed in zip(*(t.flatten().split(CHUNK) for t in (value, reference, allowance)), strict=True):
        given64, right64 = without_shared_infinities(given.double(), right.double())
        error = (given64 - right64).abs_()
        if error.numel():
            ratios.append(torch.where(error == 0, error, error / allowed).max())
    # torch.max hands a NaN on, of a chunk and of all chunks.
    return float(torch.stack(ratios).max()) if ratios else 0.0


def worst(values: list[float]) -> float:
    """The largest value; NaN when any is NaN, so that it fails every limit. An empty list gives NaN."""
    if not values or any(math.isnan(v) for v in values):
        return math.nan
    return max(values)


def within(value: float, limit: float) -> bool:
    """Whether `value <= limit`, with both finite: NaN and infinity never pass, on either side."""
    return math.isfinite(value) and math.isfinite(limit) and value <= limit


def _same_shape(value: torch.Tensor, reference: torch.Tensor) -> None:
    if value.shape != reference.shape:
        raise VerificationError(
            "verify",
            f"output shape is {tuple(value.shape)!r}; allowed: {tuple(reference.shape)!r}, that of the reference."
            " The oracle and the call disagree: mend the op.",
        )


def _ratio(difference: float, norm: float) -> float:
    if norm == 0.0:
        return 0.0 if difference == 0.0 else (math.nan if math.isnan(difference) else math.inf)
    return difference / norm
