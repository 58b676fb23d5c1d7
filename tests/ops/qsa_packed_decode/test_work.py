"""The work model against hand-computed bytes and FLOPs."""

from __future__ import annotations

import pytest

from kda_lab.ops.qsa_packed_decode import cases
from kda_lab.ops.qsa_packed_decode.work import work


@pytest.mark.parametrize(
    ("topology", "batch", "kind", "mebibytes"),
    [
        ("tp2", 1, "published", 0.850),
        ("tp2", 4, "published", 4.230),
        ("tp2", 12, "published", 7.733),
        ("tp1", 1, "published", 1.699),
    ],
)
def test_bytes_of_published_calls(topology: str, batch: int, kind: str, mebibytes: float) -> None:
    """Bytes moved agree with the hand-made table of the recorded lengths."""
    call = cases.synthesise(cases.rows([topology], [batch], [kind])[0], 0)
    assert work(call).bytes_moved / 2**20 == pytest.approx(mebibytes, abs=1e-3)


def test_each_term_of_a_small_call() -> None:
    """One row of 17 keys, 12 heads on one key head: every term by hand."""
    done = work(cases.synthesise(cases.rows(["tp2"], [1], ["short"])[0], 0))
    assert done.bytes_read == 12 * 256 * 2 + 2 * 17 * 256 * 2 + 2 * 2 * 4
    assert done.bytes_written == 12 * 256 * 2
    assert done.flops == 4 * 12 * 256 * 17


def test_capacity_behind_the_live_end_is_free() -> None:
    """Guard rows and spare capacity add no work."""
    call = cases.synthesise(cases.rows(["tp1"], [2], ["short"])[0], 0)
    assert work(cases.with_guard_rows(call, 100)) == work(call)


def test_without_facts_the_buffer_counts() -> None:
    """A call without host-side lengths counts its whole K and V buffers."""
    call = cases.synthesise(cases.rows(["tp1"], [2], ["short"])[0], 0)
    bare = type(call)(call.op, call.inputs, call.scalars, call.outputs)
    assert work(bare) == work(call)
