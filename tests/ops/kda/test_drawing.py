"""What the cases of the KDA ops draw from: generators, slots, memory with gaps."""

from __future__ import annotations

import pytest
import torch

from kda_lab.ops.kda import drawing


def test_a_generator_is_its_op_label_and_seed() -> None:
    """The same three give the same numbers; any other one does not."""
    first, again, *others = (
        torch.rand(3, generator=drawing.generator_of(*key, "cpu"))
        for key in (("op", "row", 0), ("op", "row", 0), ("op2", "row", 0), ("op", "row2", 0), ("op", "row", 1))
    )
    assert torch.equal(first, again)
    assert not any(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("batch", [1, 5, 8])
def test_slots_are_distinct_and_leave_one_free(batch: int) -> None:
    """Without padding every request has a slot of a pool of one more; with it every fourth has none."""
    slots = drawing.slot_indices(batch, False, torch.Generator().manual_seed(0))
    assert slots.dtype == torch.int32
    assert len(set(slots.tolist())) == batch == drawing.live_count(batch, False)
    assert set(slots.tolist()) < set(range(batch + 1))
    padded = drawing.slot_indices(batch, True, torch.Generator().manual_seed(0))
    assert (padded[::4] == -1).all()
    assert int((padded >= 0).sum()) == drawing.live_count(batch, True)


def test_sets_begin_on_lines() -> None:
    """Odd sizes are padded between sets, never within one; others stay as they are."""
    odd, even = torch.randn(3, 2, 5).bfloat16(), torch.randn(3, 4)
    found = drawing.on_lines(odd)
    assert torch.equal(found, odd)
    assert all(found[i].data_ptr() % 16 == 0 and found[i].is_contiguous() for i in range(3))
    assert drawing.on_lines(even) is even


def test_spaced_rows_hold_nan_between() -> None:
    """Shape and values stay, rows are contiguous, what lies between is NaN."""
    rows = torch.randn(3, 2, 4)
    found = drawing.spaced_rows(rows, 5)
    assert torch.equal(found, rows)
    assert found.stride() == (13, 4, 1)
    assert found.as_strided((2, 5), (13, 1), found.storage_offset() + 8).isnan().all()


def test_a_grown_pool_has_a_slot_of_numbers_more() -> None:
    """The old slots keep their values; the new one is no copy of any."""
    pool = torch.randn(3, 2, 4)
    found = drawing.grown_pool(pool)
    assert torch.equal(found[:3], pool)
    assert found.shape[0] == 4
    assert torch.isfinite(found).all()
    assert not any(torch.equal(found[3], pool[i]) for i in range(3))
    assert found.stride(0) == 8 + drawing.SLOT_GAP


def test_moved_requests_have_other_slots() -> None:
    """Still distinct and in the pool; padding moves to the next request."""
    indices = torch.tensor([-1, 3, 0, 2], dtype=torch.int32)
    found = drawing.moved(indices, 1, 5)
    assert found.tolist() == [3, -1, 4, 1]
    assert found.dtype == torch.int32


@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("slots", [[0, 2], [2, 0], [1], [3, 1, -1, 0]])
def test_no_requests_come_back_to_where_they_were(slots: list[int], turn: int) -> None:
    """Two of them `turn` slots apart would: then a kernel that reads old indices would be right."""
    indices = torch.tensor(slots, dtype=torch.int32)
    found = drawing.moved(indices, turn, 4)
    assert not torch.equal(found, indices)
    assert sorted(found[found >= 0].tolist()) == sorted(set(found[found >= 0].tolist()))
