"""Wrong ways from columns to slots, for the mutants: each returns the slots of every row, int64, in column order.

None of them leaves the table or the pool, since a mutant that crashes is not rejected by a check: indices that would
are brought back inside.
"""

from __future__ import annotations

import torch

from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_paged_decode.layouts import PAGE, TARGET_WIDTH
from kda_lab.ops.qsa_paged_decode.oracle import geometry, slots_of, valid_columns

Slots = tuple[torch.Tensor, ...]


def right(call: Call) -> Slots:
    """The slots of the valid columns."""
    return geometry(call).slots


def request_ignored(call: Call) -> Slots:
    """Row b looks into row b of the table."""
    requests = torch.arange(call.inputs["q"].shape[0], device=call.device) % call.inputs["req_to_slot"].shape[0]
    return right(call.with_inputs(requests=requests.to(torch.int32)))


def token_as_slot(call: Call) -> Slots:
    """A token's number is its slot."""
    return _rows(call.inputs["tokens"].long() % call.inputs["k_pool"].shape[0], valid_columns(call))


def pages_adjacent(call: Call) -> Slots:
    """Token t lies t slots behind token 0 of its request."""
    tokens = call.inputs["tokens"].long()
    first = call.inputs["req_to_slot"][call.inputs["requests"].long(), 0].long() // PAGE * PAGE
    return _rows((first[:, None] + tokens) % call.inputs["k_pool"].shape[0], valid_columns(call))


def offset_wraps(call: Call) -> Slots:
    """Slots lose the highest bit that any of them has, as an element offset of 32 bits does from 2^31 on."""
    found = right(call)
    highest = max((int(slots.max()) for slots in found if len(slots)), default=0)
    return tuple(slots & ((1 << max(highest.bit_length() - 1, 0)) - 1) for slots in found)


def hole_as_token_zero(call: Call) -> Slots:
    """-1 reads token 0."""
    tokens = call.inputs["tokens"].clamp(min=0)
    return right(call.with_inputs(tokens=torch.where(call.inputs["lengths"][:, None] > 0, tokens, -1)))


def valid_first(call: Call) -> Slots:
    """Only the first `count` columns are read, and of these the valid ones."""
    valid = valid_columns(call)
    at = torch.arange(valid.shape[1], device=valid.device)
    return _rows(slots_of(call, valid), valid & (at < valid.sum(1, keepdim=True)))


def length_ignored(call: Call) -> Slots:
    """Every token from 0 on counts."""
    table = call.inputs["req_to_slot"]
    tokens = call.inputs["tokens"].clamp(max=table.shape[1] - 1)
    return right(call.with_inputs(tokens=tokens, lengths=torch.full_like(call.inputs["lengths"], table.shape[1])))


def target_width_only(call: Call) -> Slots:
    """Columns of the draft form are not read."""
    return right(call.with_inputs(tokens=call.inputs["tokens"][:, :TARGET_WIDTH]))


def last_dropped(call: Call) -> Slots:
    """Each row lacks its last valid column."""
    return tuple(slots[:-1] for slots in right(call))


def padding_as_empty(call: Call) -> Slots:
    """A row of one valid token has none."""
    return tuple(slots if len(slots) != 1 else slots[:0] for slots in right(call))


def _rows(slots: torch.Tensor, valid: torch.Tensor) -> Slots:
    return tuple(slots[b][valid[b]] for b in range(len(slots)))
