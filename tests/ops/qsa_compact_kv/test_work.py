"""Work of the compaction: live rows read, packed buffers written whole."""

from __future__ import annotations

from dataclasses import replace

from kda_lab.ops.qsa_compact_kv import cases
from kda_lab.ops.qsa_compact_kv.work import copied_bytes, work


def test_live_rows_are_read_and_all_rows_written() -> None:
    """Two rows of 17 and 54 tokens in 23 columns: 17 + 23 live, 46 packed rows of 512 bytes in K and in V."""
    call = cases.synthesise(cases.make_row("tp2", 2, "target", "short", 23), 1)
    assert call.facts["counts"] == [17, 23]
    found = work(call)
    assert found.bytes_read == 2 * 40 * 512 + 4 * (40 + 46 + 4)
    assert found.bytes_written == 2 * 46 * 512 + 4 * 3
    assert found.flops == 0
    assert copied_bytes(call) == 4 * 40 * 512


def test_without_facts_every_column_counts() -> None:
    """A call without counts on the host counts its shapes."""
    call = replace(cases.synthesise(cases.make_row("tp2", 2, "target", "short", 23), 1), facts={})
    assert work(call).bytes_read == 2 * 46 * 512 + 4 * (46 + 46 + 4)
    assert copied_bytes(call) == 4 * 46 * 512
