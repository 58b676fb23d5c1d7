"""Bytes and FLOPs of block scores, by hand."""

from __future__ import annotations

from dataclasses import replace

from kda_lab.ops.qsa_block_scores import cases, work


def test_work_of_a_long_row() -> None:
    """65,536 keys of 256 bytes are 16.8 MB, for 4 heads 67 MFLOP: four FLOPs a byte of keys."""
    row = cases.rows((1024,), (1,))[0]
    done = work.work(cases.synthesise(row, 0))
    assert done.bytes_read == 4 * 128 * 2 + 1024 * 256 + 64 * 4 + 4
    assert done.bytes_written == 1024 * 4
    assert done.flops == 2 * 4 * 128 * 1024 == 4 * 1024 * 256


def test_dead_blocks_cost_their_score_only() -> None:
    """A ragged call reads its live keys and pages, and writes every score."""
    call = cases.synthesise(cases.rows((64,), (3,), ("ragged",))[0], 0)
    done = work.work(call)
    assert call.facts["lengths"] == [64, 0, 33]
    assert done.bytes_read == 3 * 4 * 256 + 97 * 256 + (4 + 3) * 4 + 3 * 4
    assert done.bytes_written == 3 * 64 * 4


def test_without_facts_every_block_counts() -> None:
    """A recorded call without lengths counts its pages as full."""
    call = replace(cases.synthesise(cases.rows((64,), (3,), ("ragged",))[0], 0), facts={})
    assert work.work(call).flops == 2 * 4 * 128 * 3 * 64
