"""QSA's index stages in torch: compressed keys of complete groups, and the scores of blocks.

They run where no exported kernel may: on any device, without reading device memory on the host, so that a call can be
captured in a graph. Several launches each, with temporaries of the size of their inputs.
"""

from __future__ import annotations

import torch

from kda_lab.dispatch.torch_fallback import torch_fallback

PAGE_ENTRIES = 16
EPS = 1e-6


def block_scores(
    q_index: torch.Tensor,
    keys: torch.Tensor,
    pages: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scores: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scores of each row's compressed keys: D^-0.5 · sum over heads of max(0, q · k); -inf behind its length.

    Args:
        q_index: [B, HI, D] bf16.
        keys: [S, D] bf16, the pool of compressed keys, 16 entries a page.
        pages: [B, N/16] int32, page ids, -1 where unused.
        lengths: [B] int32, compressed keys of each row.
        scores: [B, N] fp32, written; allocated when None.

    Returns:
        scores.
    """
    rows, _, width = q_index.shape
    columns = pages.shape[1] * PAGE_ENTRIES
    if scores is None:
        scores = torch.empty(rows, columns, dtype=torch.float32, device=keys.device)
    own = keys.view(-1, PAGE_ENTRIES, width)[pages.clamp(min=0).long()].view(rows, columns, width)
    transposed = own.transpose(1, 2)  # [B, D, N]
    if q_index.is_cuda:
        products = torch.bmm(q_index, transposed, out_dtype=torch.float32)
    else:
        products = torch.bmm(q_index.float(), transposed.float())
    total = products.relu_().sum(1).mul_(width**-0.5)
    dead = torch.arange(columns, device=keys.device) >= lengths[:, None]
    return scores.copy_(total.masked_fill_(dead, float("-inf")))


def compress_keys(
    k_raw: torch.Tensor,
    requests: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    ring: torch.Tensor,
    weight: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    eps: float | None = None,
    entries: torch.Tensor | None = None,
    entry_slots: torch.Tensor | None = None,
    new_ring: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The compressed key of every group that a token of this step completes, and the ring of pending raw keys after it.

    Args:
        k_raw: [T, D] bf16, raw index keys; a request's tokens are adjacent, at ascending consecutive positions.
        requests: [T] int32, the row of the ring that belongs to the token's request.
        positions: [T] int32.
        slots: [T] int64, raw KV slots; 0 marks padding, which changes nothing.
        ring: [R, r, D] bf16, pending raw keys: position p of a request in place p % r. Not written.
        weight: [D] bf16, the norm's weight less one.
        cos_sin: [P, W] fp32, cosines and sines of each position.
        eps: of the norm; 1e-6 when None.
        entries: [T, D] bf16, written; allocated when None.
        entry_slots: [T] int64, written; allocated when None.
        new_ring: [R, r, D] bf16, written; allocated when None.

    Returns:
        entries (zero where a token completes nothing), entry_slots (0 there, the trash entry) and new_ring.
    """
    ratio, width = ring.shape[1:]
    live = slots > 0
    complete = live & ((positions + 1) % ratio == 0)
    token = torch.arange(k_raw.shape[0], device=k_raw.device)
    total = torch.zeros(k_raw.shape, dtype=torch.float32, device=k_raw.device)
    for back in reversed(range(ratio)):
        here = _same_request(token - back, -back, requests, positions, live)
        old = ring[requests.long(), ((positions - back) % ratio).long()]
        total += torch.where(here[:, None], k_raw[(token - back).clamp(min=0)], old).float()
    mean = (total / ratio).to(k_raw.dtype).float()
    normed = (
        mean * torch.rsqrt(mean.square().mean(1, keepdim=True) + (EPS if eps is None else eps)) * (weight.float() + 1.0)
    )
    turned = _rotated(normed, cos_sin[(positions - (ratio - 1)).clamp(min=0).long()])
    kept = torch.where(complete[:, None], turned, 0.0).to(k_raw.dtype)
    places = torch.where(complete, (slots - (ratio - 1)) // ratio, 0)
    # Of the tokens that share a place of the ring the last one stays; all others go to a row behind the ring.
    last = live & ~_same_request(token + ratio, ratio, requests, positions, live)
    at = torch.where(last, requests.long() * ratio + positions.long() % ratio, ring.shape[0] * ratio)
    after = torch.cat([ring.reshape(-1, width), k_raw.new_zeros(1, width)])
    after[at] = k_raw
    return _written(entries, kept), _written(entry_slots, places), _written(new_ring, after[:-1].view(ring.shape))


def _same_request(
    at: torch.Tensor, step: int, requests: torch.Tensor, positions: torch.Tensor, live: torch.Tensor
) -> torch.Tensor:
    """[T] bool: whether token `at` is the one `step` positions further on of the same request."""
    count = requests.shape[0]
    clamped = at.clamp(0, count - 1)
    inside = (at >= 0) & (at < count) & live[clamped]
    return inside & (requests[clamped] == requests) & (positions[clamped] == positions + step)


def _rotated(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    cos, sin = cos_sin.chunk(2, dim=1)
    half = cos.shape[1]
    first, second, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], 1)


def _written(out: torch.Tensor | None, value: torch.Tensor) -> torch.Tensor:
    return value if out is None else out.copy_(value)


def _gate(dtype: str, *shape: int | str, optional: bool = False) -> dict[str, object]:
    return {"dtypes": (dtype,), "shape": shape, "optional": optional}


BLOCK_SCORES = torch_fallback(
    "qsa.block_scores",
    block_scores,
    {
        "q_index": _gate("bfloat16", "B", "HI", 128),
        "keys": {**_gate("bfloat16", "S", 128), "contiguous": True},
        "pages": _gate("int32", "B", "N/16"),
        "lengths": _gate("int32", "B"),
        "scores": _gate("float32", "B", "N", optional=True),
    },
    {},
)
COMPRESS_KEYS = torch_fallback(
    "qsa.compress_keys",
    compress_keys,
    {
        "k_raw": _gate("bfloat16", "T", 128),
        "requests": _gate("int32", "T"),
        "positions": _gate("int32", "T"),
        "slots": _gate("int64", "T"),
        "ring": _gate("bfloat16", "R", 4, 128),
        "weight": _gate("bfloat16", 128),
        "cos_sin": _gate("float32", "P", "W"),
        "entries": _gate("bfloat16", "T", 128, optional=True),
        "entry_slots": _gate("int64", "T", optional=True),
        "new_ring": _gate("bfloat16", "R", 4, 128, optional=True),
    },
    {"eps": {"kind": "float", "minimum": 0.0, "optional": True}},
)
