"""The work model against hand-computed bytes and FLOPs."""

from __future__ import annotations

from dataclasses import replace

from kda_lab.ops.qsa_paged_decode import cases
from kda_lab.ops.qsa_paged_decode.work import work


def test_each_term_of_a_small_call() -> None:
    """One row of 17 tokens, 12 heads on one key head: q, K and V rows, all tokens, one table entry a token."""
    done = work(cases.synthesise(cases.rows(["tp2"], [1], ["short"])[0], 0))
    assert done.bytes_read == 12 * 256 * 2 + 2 * 17 * 256 * 2 + 4 * (2051 + 1 + 1 + 17)
    assert done.bytes_written == 12 * 256 * 2
    assert done.flops == 4 * 12 * 256 * 17


def test_rows_of_one_request_share_what_they_read() -> None:
    """Four verify rows name 67 distinct tokens: these are read once, and computed with 262 times."""
    call = cases.drawn("shared", (12, 1), (64, 65, 66, 67), "verify", 1)
    done = work(call)
    assert done.bytes_read == 4 * 12 * 256 * 2 + 2 * 67 * 256 * 2 + 4 * (4 * 2051 + 4 + 4 + 67)
    assert done.flops == 4 * 12 * 256 * (64 + 65 + 66 + 67)


def test_a_larger_pool_is_free() -> None:
    """Slots that no row names add no work."""
    call = cases.synthesise(cases.rows(["tp1"], [2], ["short"])[0], 0)
    assert work(cases.with_guard_rows(call, 100)) == work(call)


def test_without_facts_every_column_counts() -> None:
    """A call that says nothing of its selection is taken for a full one."""
    call = cases.synthesise(cases.rows(["tp2"], [1], ["short"])[0], 0)
    full = work(replace(call, facts={}))
    assert full.flops == 4 * 12 * 256 * 2051
    assert full.bytes_read == 12 * 256 * 2 + 2 * 2051 * 256 * 2 + 4 * (2051 + 1 + 1 + 2051)
