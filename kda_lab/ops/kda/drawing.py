"""What the cases of the KDA ops share: generators from labels, slots without order, memory with gaps."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

import torch

from kda_lab.ops.protocol import Call

ROW_GAP = 64
"""Elements between the operand rows of a guarded call: a multiple of any alignment."""
SLOT_GAP = 4 * 73
"""Elements between the slots of a guarded call, as the source thread has them."""
PADDING_EVERY = 4
"""Requests from one of padding to the next, the first included, where a call has padding."""
SPARE_SLOTS = 1
"""Slots of a pool beyond those that the requests need: one is there to keep its bits."""


def generator_of(op: str, label: str, seed: int, device: torch.device | str) -> torch.Generator:
    """A generator that (op, label, seed) alone decide, for one type of device."""
    digest = hashlib.sha256(f"{op} {label} {seed}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))


def slot_indices(batch: int, padding: bool, generator: torch.Generator) -> torch.Tensor:
    """[batch] int32: distinct slots of a pool of `batch` + 1 in an order of their own; some -1 where there is padding."""
    order = torch.randperm(batch + SPARE_SLOTS, generator=generator)[:batch]
    if padding:
        order[::PADDING_EVERY] = -1
    return order.int()


def live_count(batch: int, padding: bool) -> int:
    """How many of `slot_indices` are not padding."""
    return batch - len(range(0, batch, PADDING_EVERY)) * padding


def on_lines(sets: torch.Tensor) -> torch.Tensor:
    """[count, …]: the same, each set on memory that starts on a multiple of 16 bytes; contiguous within a set."""
    line, size = 16 // sets.element_size(), sets[0].numel()
    if size % line == 0:
        return sets
    padded = torch.zeros(sets.shape[0], -(-size // line) * line, dtype=sets.dtype, device=sets.device)
    padded[:, :size] = sets.flatten(1)
    return padded[:, :size].unflatten(1, sets.shape[1:])


def spaced_rows(rows: torch.Tensor, gap: int = ROW_GAP) -> torch.Tensor:
    """[B, …] as a view of rows that are `gap` elements further apart, with NaN between them."""
    flat = rows.flatten(1)
    wide = torch.full((flat.shape[0], flat.shape[1] + gap), float("nan"), dtype=rows.dtype, device=rows.device)
    wide[:, : flat.shape[1]] = flat
    return wide[:, : flat.shape[1]].unflatten(1, rows.shape[1:])


def grown_pool(pool: torch.Tensor) -> torch.Tensor:
    """[slots + 1, …]: the pool with a slot more, which holds numbers too, and gaps of NaN between slots."""
    return spaced_rows(torch.cat([pool, pool[:1].flip(-1)]), SLOT_GAP)


def moved(indices: torch.Tensor, turn: int, slots: int) -> torch.Tensor:
    """Indices of the same requests in other slots, and padding at other requests."""
    turned = indices.roll(1)
    found = torch.where(turned < 0, turned, (turned + turn) % slots)
    # Two requests whose slots lie `turn` apart would only change places and be back where they were.
    stuck = slots > 1 and bool((indices >= 0).any()) and torch.equal(found, indices)
    return moved(indices, turn + 1, slots) if stuck else found


def passed_on(indices: Sequence[int], slots: int) -> list[int]:
    """Each request with the slot behind that of the next one, and padding at other requests: of indices on the host."""
    return [-1 if i < 0 else (i + 1) % slots for i in (*indices[1:], *indices[:1])]


def replaced(
    call: Call,
    names: Iterable[str],
    turn: int,
    source: Call | None,
    generator: Callable[[], torch.Generator],
    redrawn: Callable[[torch.Tensor, str, torch.Generator], torch.Tensor],
) -> dict[str, torch.Tensor]:
    """New contents of some inputs.

    Args:
        source: a call of the same extents whose contents go to other rows, channels turned by `turn`; None draws new ones.
        generator: makes the one that the inputs are drawn from, in the order of `names`.
        redrawn: new contents of an input, by its old ones and its name.
    """
    if source is not None:
        return {n: source.inputs[n].flip(0).roll(turn, -1) for n in names}
    fresh = generator()
    return {n: redrawn(call.inputs[n], n, fresh) for n in names}
