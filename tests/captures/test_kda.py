"""The committed captures of KDA's ops: whole, small, labelled, drawn from their seed, and what a writer refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kda_lab import kda as door
from kda_lab.captures.format import content_sha256
from kda_lab.captures.kda import SEED, kda_ops, write_kda_sets
from kda_lab.captures.recorder import About, record
from kda_lab.captures.store import CaptureSet
from kda_lab.errors import CaptureError, ParameterError
from kda_lab.ops.registry import load_op

DATA = Path(__file__).parents[2] / "data" / "captures"
MOST_BYTES = 700_000
OPS = kda_ops()


def test_the_family_has_its_eight_ops() -> None:
    """Ops are found by their folders; none is lost."""
    assert len(OPS) == 8 and "kda.packed_decode" in OPS


@pytest.mark.parametrize("op", OPS)
def test_a_committed_set_is_whole_small_and_synthetic(op: str) -> None:
    """Every file is as its manifest says, the set is small, and nothing in it claims to be real."""
    stored = CaptureSet.open(DATA / op)
    assert stored.op == op and stored.verify() == []
    assert 3 <= len(stored.names()) <= 6
    assert {stored.entry(name).kind for name in stored.names()} == {"synthetic"}
    assert sum(entry.bytes for entry in stored.manifest.files.values()) < MOST_BYTES
    assert "No model and no text was involved" in stored.manifest.note


@pytest.mark.parametrize("op", OPS)
def test_a_committed_call_comes_from_its_seed(op: str) -> None:
    """What a capture holds is what the op's cases draw today, in place and strides too; memory to update begins with it."""
    cases, stored = load_op(op).cases, CaptureSet.open(DATA / op)
    rows = cases.capture_rows()
    assert stored.names() == [row.label for row in rows]
    for row in rows:
        call, drawn = stored.load(row.label).call, cases.synthesise(row, SEED, "cpu")
        assert stored.entry(row.label).seed == SEED
        assert call.scalars == drawn.scalars and list(call.outputs) == list(drawn.outputs)
        for name, tensor in drawn.inputs.items():
            # Records of a ring are computed: CPUs with other vector units round an exponential otherwise.
            room = 4 * torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0
            torch.testing.assert_close(call.inputs[name], tensor, rtol=room, atol=0, equal_nan=True, check_stride=True)
        assert all(content_sha256(call.outputs[n]) == content_sha256(call.inputs[n]) for n in call.updated)


def test_a_set_is_not_replaced_unasked_and_an_unknown_op_is_refused(tmp_path: Path) -> None:
    """One op is written where one is named; names outside of the family are refused with the known ones."""
    (written,) = write_kda_sets(tmp_path, ops=["kda.attn_residuals"])
    assert CaptureSet.open(written).manifest.files == CaptureSet.open(DATA / "kda.attn_residuals").manifest.files
    with pytest.raises(CaptureError):
        write_kda_sets(tmp_path, ops=["kda.attn_residuals"])
    with pytest.raises(ParameterError, match=r"ops is \['qsa\.packed_decode'\]; allowed: 'kda\.attn_residuals'"):
        write_kda_sets(tmp_path, ops=["qsa.packed_decode"])


def test_a_tapped_call_keeps_what_it_updates_before_and_after(tmp_path: Path) -> None:
    """Through the door the state is recorded as it was, and pinned as it became, in the strides of its pool."""
    stored = CaptureSet.open(DATA / "kda.packed_decode")
    call = stored.load(stored.names()[0]).call
    pool = torch.stack([call.inputs["state"], call.inputs["state"]], 1)[:, 0]
    before, inputs = pool.clone(), {**call.inputs, "state": pool}
    with record(
        "kda_lab.kda.packed_decode", op="kda.packed_decode", directory=tmp_path / "live", about=About("m")
    ) as tap:
        out = door.packed_decode(*inputs.values(), **call.scalars)
    assert tap.statistics.recorded == 1, tap.statistics
    found = CaptureSet.open(tmp_path / "live")
    capture = found.load(found.names()[0])
    assert torch.equal(capture.call.inputs["state"], before) and not torch.equal(before, pool)
    assert torch.equal(capture.pinned["state"], pool) and torch.equal(capture.pinned["out"], out)
    assert capture.call.updated == ("state",)
    assert capture.call.inputs["state"].stride() == capture.call.outputs["state"].stride() == pool.stride()
