"""Work of top-k: scores of rows that are longer than k, lengths, ids."""

from __future__ import annotations

import torch

from kda_lab.ops.qsa_topk_blocks import cases
from kda_lab.ops.qsa_topk_blocks.work import work


def test_rows_that_are_chosen_whole_need_no_scores() -> None:
    """Three rows of 10, 8 and 3 columns and k = 8: only the first is read."""
    found = work(cases.make_call(torch.zeros(3, 10), (10, 8, 3), 8))
    assert (found.bytes_read, found.bytes_written, found.flops) == (10 * 4 + 3 * 4, 3 * 8 * 4, 0)


def test_without_facts_every_column_counts() -> None:
    """A call that was given without lengths on the host counts its shapes."""
    call = cases.make_call(torch.zeros(2, 10), (10, 8), 8)
    assert work(type(call)(call.op, call.inputs, call.scalars, call.outputs)).bytes_read == 2 * 10 * 4 + 2 * 4
