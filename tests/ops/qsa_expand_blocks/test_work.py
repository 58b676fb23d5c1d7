"""Work of the expansion: its buffers once."""

from __future__ import annotations

from kda_lab.ops.qsa_expand_blocks import cases
from kda_lab.ops.qsa_expand_blocks.work import work


def test_every_buffer_counts_once() -> None:
    """Two rows of 512 blocks: 4 bytes an id, 2051 tokens a row."""
    found = work(cases.synthesise(cases.make_row(2), 1))
    assert (found.bytes_read, found.bytes_written, found.flops) == (2 * 4 * (512 + 2), 2 * 4 * 2051, 0)
