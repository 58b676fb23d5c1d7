"""How far two recordings of the same NVFP4 products agree: weights, activations, alpha and pinned outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kda_lab.captures import nvfp4_operands
from kda_lab.captures.agreement import relative_l2, shared_names
from kda_lab.captures.store import Capture, CaptureSet
from kda_lab.errors import CaptureError, Reason

VALUE_LIMIT = 5e-2
"""Most relative L2 of activations and outputs.

Two CPUs differ in low bits of FP32 sums; after BF16 some values move by one unit (2^-9), and a few of them, or of the
block maxima, cross the border of a code or a scale. That stays well below what the quantisation itself costs (about
9.5 %), while another layer, position or text gives errors near 1."""
ALPHA_LIMIT = 1e-2
"""Most relative difference of alpha: the calibrated amax is one BF16 value, so one unit is up to 2^-8."""


@dataclass(frozen=True)
class GemmAgreement:
    """One capture of two sets. Errors are relative; 0 means the same values."""

    name: str
    same_weight: bool
    """Whether codes and scales of the weight are the same, byte for byte: no sum is involved in making them."""
    x: float
    """Relative L2 of the dequantised activations, the global scale included."""
    alpha: float
    out: float
    """Relative L2 of the pinned outputs; NaN where one side has none."""
    same_bits: bool
    """Whether both sets give the call the same hash (`CaptureSet.sha256_of`)."""

    @property
    def disagreement(self) -> str:
        """Why the two do not agree; empty when they do."""
        # Each compared on its own: max() of a tuple with NaN may hide the NaN.
        if self.same_weight and self.alpha <= ALPHA_LIMIT and all(e <= VALUE_LIMIT for e in (self.x, self.out)):
            return ""
        return (
            f"{self.name}: weight {'the same' if self.same_weight else 'other bytes'}, relative errors x {self.x:.2e}, "
            f"pinned output {self.out:.2e} (at most {VALUE_LIMIT}), alpha {self.alpha:.2e} (at most {ALPHA_LIMIT})"
        )


def gemm_agreement(left: CaptureSet, right: CaptureSet) -> list[GemmAgreement]:
    """Compare the captures that both sets hold; `right` is what errors are relative to.

    Raises:
        CaptureError: the sets are of different ops, share no name, or a shared capture has other shapes.
    """
    return [_compare(left.load(name), right.load(name)) for name in shared_names(left, right)]


def _compare(a: Capture, b: Capture) -> GemmAgreement:
    shapes = [{name: tuple(t.shape) for name, t in side.call.inputs.items()} for side in (a, b)]
    if shapes[0] != shapes[1]:
        raise CaptureError("captures", [Reason(f"{a.name}: shapes", repr(shapes[0]), repr(shapes[1]))])
    same_weight = all(torch.equal(a.call.inputs[n], b.call.inputs[n]) for n in ("weight", "weight_sf"))
    # weight_scale_2 is a factor of both alphas, so times alpha both activations are in one unit.
    x, reference = (nvfp4_operands.activation(s.call).values.double() * float(s.call.inputs["alpha"]) for s in (a, b))
    return GemmAgreement(
        name=a.name,
        same_weight=same_weight,
        x=relative_l2(x, reference),
        alpha=relative_l2(a.call.inputs["alpha"], b.call.inputs["alpha"]),
        out=relative_l2(a.pinned["out"], b.pinned["out"]) if a.pinned and b.pinned else float("nan"),
        same_bits=a.sha256 == b.sha256,
    )
