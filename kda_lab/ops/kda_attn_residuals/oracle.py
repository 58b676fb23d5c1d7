"""What `kda.attn_residuals` must compute: FP32 and FP64 by the definition, and the roundings of a right kernel.

The sum of prefix and delta is rounded to BF16 by definition, since the rounded stream is what the next layer reads. It
is exact in FP64, and rounded over FP32 it is the same number: 24 bits are more than twice 8 and two.
Axes: T tokens, NB snapshots of a token, D width. No function writes anything or reads device memory on the host.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Call

ROOM = "kda.attn_residuals"
EPSILON = 1e-6
CHUNK_TOKENS = 1024
"""Tokens computed at a time: rows of a long prefill in FP64 would take many gigabytes."""
ALLOWED_ULPS = 1.5
"""Of a BF16 element of `out`: half of one is its own rounding, up to one that of a mix that is stored in BF16 between."""
ALLOWED_OF_ROW = 1e-4
"""Of the row's root mean square: scores are FP32 sums of up to 7168 products, and an exponential takes their error."""

Tensors = dict[str, torch.Tensor]


def valid_of(call: Call) -> int:
    """How many snapshots of each token count.

    Raises:
        ParameterError: outside 0 to NB, or no room is left for the snapshot that is to be written.
    """
    valid, slots = call.scalars["valid"], call.inputs["bank"].shape[1]
    most = slots - bool(call.scalars["write_prefix"])
    if not isinstance(valid, int) or not 0 <= valid <= most:
        raise ParameterError(ROOM, [Reason("valid", repr(valid), f"0 to {most}, for a bank of {slots} snapshots")])
    return valid


def epsilon_of(call: Call) -> float:
    """The epsilon of a call: the one given, else 1e-6."""
    given = call.scalars.get("epsilon")
    return float(given) if isinstance(given, (int, float)) else EPSILON


def stream(call: Call) -> torch.Tensor:
    """[T, D] bf16: the prefix that is mixed and stays, after the pending addition."""
    prefix = call.inputs["prefix"]
    return (prefix.float() + call.inputs["delta"].float()).to(prefix.dtype) if call.scalars["add_delta"] else prefix


def oracle_fp32(call: Call) -> Tensors:
    """The op in FP32, `out` unrounded; bank and prefix in BF16, since their bits are the definition."""
    return _outputs(call, torch.float32)


def oracle_fp64(call: Call) -> Tensors:
    """The same in FP64 throughout, the arbiter."""
    return _outputs(call, torch.float64)


def emulate(call: Call) -> Tensors:
    """What a correct kernel returns: FP32 inside, one rounding to BF16 at the store."""
    found = _outputs(call, torch.float32)
    return {**found, "out": found["out"].to(call.outputs["out"].dtype)}


def allowance(call: Call, exact: Tensors) -> Tensors:
    """Most error of each element: of `out` 1.5 BF16 ulps and 1e-4 of its row's size; none of bank and prefix."""
    out = exact["out"]
    size = out.square().mean(1, keepdim=True).sqrt()
    ulp = torch.exp2(torch.frexp(out).exponent.double() - 8)
    allowed = torch.where(out == 0, 0.0, ALLOWED_ULPS * ulp) + ALLOWED_OF_ROW * size
    return {"out": allowed, **{n: torch.zeros_like(exact[n], dtype=torch.float64) for n in ("bank", "prefix")}}


def rms_norm(values: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """values / sqrt(mean of their squares + epsilon) · weight, over the last axis, in the dtype of `values`."""
    return values * torch.rsqrt(values.square().mean(-1, keepdim=True) + epsilon) * weight.to(values.dtype)


def mixed(rows: torch.Tensor, score_weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """[T, D] softmax mix of [T, R, D] rows, in their dtype."""
    scores = rms_norm(rows, score_weight, epsilon).sum(-1)
    return (torch.softmax(scores, -1)[..., None] * rows).sum(1)


def rows_of(bank: torch.Tensor, prefix: torch.Tensor, valid: int) -> torch.Tensor:
    """[T, valid + 1, D]: the valid snapshots, then the prefix."""
    return torch.cat([bank[:, :valid], prefix[:, None]], 1)


def in_chunks(compute: Callable[[slice], torch.Tensor], tokens: int, empty: torch.Tensor) -> torch.Tensor:
    """`compute` over slices of `CHUNK_TOKENS` tokens, joined; `empty` where there is no token."""
    parts = [compute(slice(at, at + CHUNK_TOKENS)) for at in range(0, tokens, CHUNK_TOKENS)]
    return torch.cat(parts) if parts else empty


def _outputs(call: Call, dtype: torch.dtype) -> Tensors:
    bank, prefix, valid, epsilon = call.inputs["bank"], stream(call), valid_of(call), epsilon_of(call)
    score_weight, out_weight = (call.inputs[name].to(dtype) for name in ("score_weight", "out_weight"))

    def compute(part: slice) -> torch.Tensor:
        mix = mixed(rows_of(bank[part], prefix[part], valid).to(dtype), score_weight, epsilon)
        return rms_norm(mix, out_weight, epsilon)

    after = bank.clone()
    if call.scalars["write_prefix"]:
        after[:, valid] = prefix
    return {
        "out": in_chunks(compute, bank.shape[0], prefix.to(dtype)),
        "bank": after,
        "prefix": prefix.clone(),
    }
