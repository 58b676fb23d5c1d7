"""Bytes and FLOPs of attention residuals, by hand."""

from __future__ import annotations

import pytest

from kda_lab.ops.kda_attn_residuals import cases, work


@pytest.mark.parametrize(
    ("kind", "read", "written"), [("mix", 6, 1), ("add", 7, 2), ("write", 6, 2), ("add_write", 7, 3)]
)
def test_work_of_a_call(kind: str, read: int, written: int) -> None:
    """Five snapshots and the prefix are read; a delta is one line more to read and to write, a snapshot one to write."""
    done = work.work(cases.synthesise(cases.rows((3,), (5,), (kind,), 256)[0], 0))
    line = 3 * 256 * 2
    assert done.bytes_read == read * line + 2 * 256 * 4
    assert done.bytes_written == written * line
    assert done.flops == 3 * 256 * (6 * 6 + 5 + (read - 6))


def test_a_full_prefill_takes_273_microseconds_at_the_copy_rate() -> None:
    """Ten lines of 7168 elements for each of 8192 tokens, counted from one token."""
    done = work.work(cases.synthesise(cases.rows((1,), (8,))[0], 0))
    weights = 2 * 7168 * 4
    assert 8192 * (done.bytes_moved - weights) / 4.3e6 == pytest.approx(273, rel=0.01)
