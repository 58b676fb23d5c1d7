"""Bytes and FLOPs of compressed keys, by hand."""

from __future__ import annotations

from dataclasses import replace

from kda_lab.ops.qsa_compress_keys import cases, work

CALL = cases.synthesise(cases.rows((), (), (8,))[0], 0)
"""Two requests of four draft tokens, a ring of three requests."""


def test_work_of_a_step() -> None:
    """Keys, three indices, the ring twice, the weight and one row of the table a complete group."""
    done, groups = work.work(CALL), CALL.facts["complete"]
    ring = 3 * 4 * 256
    assert done.bytes_read == 8 * 256 + ring + 8 * (4 + 4 + 8) + 256 + groups * 256
    assert done.bytes_written == 8 * 256 + 8 * 8 + ring
    assert done.flops == groups * 128 * 14
    assert groups == 2


def test_without_facts_every_fourth_token_completes() -> None:
    """A recorded call is counted as if a quarter of its tokens completed a group."""
    assert work.work(replace(CALL, facts={})).flops == 2 * 128 * 14
