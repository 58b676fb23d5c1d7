"""The baseline's compaction: bit-exact rows in column order, whatever holes there are."""

from __future__ import annotations

import pytest
import torch

from kda_lab import interpreter
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_paged_decode import cases, compact, oracle


@pytest.fixture(autouse=True, scope="module")
def faithful() -> None:
    """The interpreter rounds as a GPU does."""
    interpreter.ensure_faithful()


def compacted(call: Call) -> compact.Packed:
    batch, width = call.inputs["tokens"].shape
    packed = compact.packed_for(call.inputs["k_pool"], batch, width)
    compact.compact(call.inputs, packed)
    return packed


@pytest.mark.parametrize(
    ("counts", "kind"),
    [((6, 0, 72), "draft"), ((0,), "short"), ((2055,), "draft"), ((64, 65), "verify")],
    ids=["holes", "empty", "full", "shared"],
)
def test_rows_are_those_of_the_selection(counts: tuple[int, ...], kind: str) -> None:
    """Packed rows are the pool rows of the valid columns, bit for bit and in order; nothing behind them is written."""
    call = cases.drawn("compact", (12, 1), counts, kind, 2)
    packed, slots = compacted(call), torch.cat(oracle.geometry(call).slots)
    assert packed.cu_seqlens_k.tolist() == [sum(counts[:b]) for b in range(len(counts) + 1)]
    for rows, pool in ((packed.k, call.inputs["k_pool"]), (packed.v, call.inputs["v_pool"])):
        assert torch.equal(rows[: len(slots)].view(torch.int16), pool[slots].view(torch.int16))
        assert torch.count_nonzero(rows[len(slots) :]) == 0


def test_the_scratch_fits_its_calls() -> None:
    """Capacity for every column of every row, and offsets of the queries."""
    packed = compact.packed_for(torch.zeros(64, 2, 256).bfloat16(), 3, 7)
    assert packed.k.shape == packed.v.shape == (21, 2, 256)
    assert packed.cu_seqlens_q.tolist() == [0, 1, 2, 3]
