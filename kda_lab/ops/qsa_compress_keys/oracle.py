"""What `qsa.compress_keys` must compute: the bookkeeping token by token, the arithmetic in FP32 or FP64.

The ring is followed as a serving process fills it: each token in turn is put into its place, and one that completes a
group reads all places of its request. A kernel, which sees all tokens at once, has to find the same members.
Axes: T tokens, R requests, r places, D = 128 width. All functions read the indices on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa.rmsnorm import EPS, rms_norm
from kda_lab.ops.qsa.rope import rotate

ROOM = "qsa.compress_keys"
ALLOWED_ULPS = 1.0
"""Of a BF16 entry: half a one is its own rounding."""
ALLOWED_OF_ROW = 1e-5
"""Of an entry's error to the root mean square of its row: rotation cancels, FP32 sums do not."""


@dataclass(frozen=True)
class Token:
    """One live token's indices."""

    at: int
    request: int
    position: int
    slot: int


def eps_of(call: Call) -> float:
    """The epsilon of a call: the one given, else 1e-6."""
    given = call.scalars.get("eps")
    return float(given) if isinstance(given, (int, float)) else EPS


def tokens_of(call: Call) -> list[Token]:
    """The live tokens of a call in order; padding (slot 0) is left out.

    Raises:
        ParameterError: a request outside the ring, a negative position or slot, a group's first position outside the
            table, or tokens of one request that do not ascend by one.
    """
    names = ("requests", "positions", "slots")
    rows = zip(*(call.inputs[name].tolist() for name in names), strict=True)
    live = [Token(at, *row) for at, row in enumerate(rows) if row[2] != 0]
    last: dict[int, int] = {}
    reasons: list[Reason] = []
    count, table = call.inputs["ring"].shape[0], call.inputs["cos_sin"].shape[0]
    for token in live:
        if not 0 <= token.request < count:
            reasons.append(Reason(f"requests[{token.at}]", repr(token.request), f"0 to {count - 1}, rows of ring"))
        if not 0 <= token.position < table + call.inputs["ring"].shape[1] - 1 or token.slot < 0:
            given = f"position {token.position}, slot {token.slot}"
            reasons.append(Reason(f"token {token.at}", given, f"positions within the {table} of cos_sin, slots from 0"))
        before = last.get(token.request, token.position - 1)
        if token.position != before + 1:
            reasons.append(Reason(f"positions[{token.at}]", repr(token.position), f"{before + 1}, the request's next"))
        last[token.request] = token.position
    if reasons:
        raise ParameterError(ROOM, reasons)
    return live


def oracle_fp32(call: Call) -> dict[str, torch.Tensor]:
    """The op in FP32, entries unrounded but for the mean's rounding to BF16, which is part of the definition."""
    return _compress(call, torch.float32)


def oracle_fp64(call: Call) -> dict[str, torch.Tensor]:
    """The same in FP64, the arbiter; the mean is still rounded to BF16."""
    return _compress(call, torch.float64)


def emulate(call: Call) -> dict[str, torch.Tensor]:
    """What a correct kernel returns: FP32 inside, BF16 means, one rounding to BF16 at the store."""
    found = _compress(call, torch.float32)
    return {**found, "entries": found["entries"].to(call.outputs["entries"].dtype)}


def allowance(call: Call, exact: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Most error of each element: of an entry one BF16 ulp and 1e-5 of its row's size; none of slots and ring."""
    entries = exact["entries"]
    size = entries.square().mean(1, keepdim=True).sqrt()
    ulp = torch.exp2(torch.frexp(entries).exponent.double() - 8)
    allowed = torch.where(entries == 0, 0.0, ALLOWED_ULPS * ulp) + ALLOWED_OF_ROW * size
    return {"entries": allowed, **{n: torch.zeros_like(exact[n].double()) for n in ("entry_slots", "new_ring")}}


def _compress(call: Call, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    k_raw, ring = call.inputs["k_raw"], call.inputs["ring"].clone()
    ratio = ring.shape[1]
    groups, done = [], []
    for token in tokens_of(call):
        ring[token.request, token.position % ratio] = k_raw[token.at]
        if (token.position + 1) % ratio == 0:
            groups.append(ring[token.request].clone())
            done.append(token)
    entries = torch.zeros(k_raw.shape, dtype=dtype, device=k_raw.device)
    places = torch.zeros(k_raw.shape[0], dtype=torch.int64, device=k_raw.device)
    if done:
        at = torch.tensor([token.at for token in done], device=k_raw.device)
        first = torch.tensor([token.position - (ratio - 1) for token in done], device=k_raw.device)
        mean = torch.stack(groups).to(dtype).mean(1).to(k_raw.dtype).to(dtype)
        normed = rms_norm(mean, call.inputs["weight"], eps_of(call))
        entries[at] = rotate(normed, call.inputs["cos_sin"][first])
        # A group's slots are consecutive, so the first token's lies r - 1 below the last one's.
        slots = [(token.slot - (ratio - 1)) // ratio for token in done]
        places[at] = torch.tensor(slots, device=k_raw.device)
    return {"entries": entries, "entry_slots": places, "new_ring": ring}
