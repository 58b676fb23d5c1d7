"""The thread's schedule: its thresholds, its splits as the device counts them, right values and clean counters."""

from __future__ import annotations

import pytest
import torch

from kda_lab import interpreter
from kda_lab.ops.registry import load_op
from kda_lab.verify.metrics import rel_l2

OP = load_op("qsa.packed_decode")
interpreter.ensure_faithful()
from kda_lab.ops.qsa_packed_decode import upstream  # noqa: E402

# Batches and KV heads, tile, and (first length, splits) of each step.
GOLDEN = [
    ([(1, 1), (1, 2)], 32, [(0, 1), (225, 2), (481, 4), (993, 8)]),
    ([(2, 1), (3, 1), (4, 1), (2, 2)], 32, [(0, 1), (481, 4), (1505, 2)]),
    ([(5, 1), (11, 1), (3, 2)], 32, [(0, 1), (1505, 2)]),
    ([(12, 1), (128, 1), (4, 2), (128, 2)], 64, [(0, 1), (1473, 2)]),
]


@pytest.mark.parametrize(("launches", "block_k", "steps"), GOLDEN, ids=["one", "few", "some", "many"])
def test_splits_change_at_the_known_lengths(launches: list, block_k: int, steps: list) -> None:
    """At each golden threshold the count is the new one, and one key before it still the old."""
    for batch, kv_heads in launches:
        assert upstream.tiles_for(batch, kv_heads).block_k == block_k
        changes = [
            (length, upstream.split_count(length, batch, kv_heads))
            for length in range(2056)
            if length == 0
            or upstream.split_count(length, batch, kv_heads) != upstream.split_count(length - 1, batch, kv_heads)
        ]
        assert changes == steps


def run(call, workspace) -> torch.Tensor:
    """One launch into a poisoned output."""
    i, out = call.inputs, torch.full_like(call.outputs["out"], float("nan"))
    upstream.packed_decode(i["q"], i["k"], i["v"], i["cu_seqlens_k"], 1 / 16, out, workspace)
    return out


@pytest.mark.parametrize(
    ("lengths", "heads"),
    [
        ((224,), (12, 1)),
        ((225,), (24, 2)),
        ((2051,), (12, 1)),
        ((480, 481), (12, 1)),
        ((1504, 1505), (12, 1)),
        ((1, 0, 1472, 1473), (24, 2)),
    ],
)
def test_the_device_splits_as_the_host_says(lengths: tuple, heads: tuple) -> None:
    """The partial results that a launch leaves behind count its splits; values are right, counters zero."""
    workspace = upstream.Workspace.of(torch.device("cpu"), 256)
    call = OP.cases.with_guard_rows(OP.cases.call_of(lengths, heads, 5), 3)
    out = run(call, workspace)
    assert rel_l2(out, OP.oracle.oracle_fp32(call)["out"]) < 3e-3
    counted = (workspace.total.view(-1, upstream.MOST_SPLITS, upstream.BLOCK_M)[:, :, 0] > 0).sum(1)
    wanted = [upstream.split_count(n, len(lengths), heads[1]) for n in lengths for _ in range(heads[1])]
    # A row that is not split writes no partial result.
    assert counted[: len(wanted)].tolist() == [0 if n == 1 else n for n in wanted]
    assert not workspace.count.any()


def test_launches_again_give_the_same_bits() -> None:
    """Splits are merged in their order; a counter that an aborted launch left behind stays wrong, so it shows."""
    workspace = upstream.Workspace.of(torch.device("cpu"), 256)
    call = OP.cases.call_of((500, 7), (12, 1), 6)
    first = run(call, workspace)
    assert torch.equal(first, run(call, workspace))
    workspace.count[0] = 1
    run(call, workspace)
    assert workspace.count[0] == 1


def test_the_workspace_is_as_large_as_the_thread_says() -> None:
    """32.25 MiB and 1 KiB of counters for 128 rows of two KV heads."""
    w = upstream.Workspace.of(torch.device("cpu"), 256)
    sizes = [t.numel() * t.element_size() for t in (w.acc, w.maximum, w.total, w.count)]
    assert sizes == [32 * 2**20, 128 * 2**10, 128 * 2**10, 2**10]


def test_the_arm_shows_its_counters() -> None:
    """The arm's state is the counters of the device it was bound on."""
    arm = OP.baselines.UpstreamArm()
    assert arm.state_tensors() == {}
    arm.bind([OP.cases.call_of((3,), (12, 1), 1)])
    (counters,) = arm.state_tensors().values()
    assert list(arm.state_tensors()) == ["count[cpu]"] and counters.numel() == 256
    counters.fill_(1)
    arm.reset_state()
    assert not counters.any() and "must not overlap" in arm.concurrency
    assert len(arm.source_sha256) == 64
