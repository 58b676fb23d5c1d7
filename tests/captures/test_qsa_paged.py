"""The paged captures: what is written is the packed capture's rows, shared, labelled, and small."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kda_lab.captures import qsa_paged
from kda_lab.captures.store import CaptureSet
from kda_lab.errors import CaptureError
from kda_lab.ops.qsa_paged_decode import cases, oracle

DATA = Path(__file__).parents[2] / "data" / "captures"
PACKED = CaptureSet.open(DATA / "qsa.packed_decode")
STORED = CaptureSet.open(DATA / "qsa.paged_decode")


def test_the_committed_set_is_whole_and_labelled() -> None:
    """Every file is as its manifest says; real and synthetic calls are told apart, and the set is small."""
    assert STORED.verify() == []
    kinds = {name: STORED.entry(name).kind for name in STORED.names()}
    assert kinds == {
        "tp2r0-q1": "real",
        "tp2r0-q1-draft": "real",
        "tp1-holes": "synthetic",
        "tp2-verify": "synthetic",
        "tp2-mixed": "synthetic",
    }
    assert sum(entry.bytes for entry in STORED.manifest.files.values()) < 3_000_000
    assert "scattered into a pool" in STORED.entry("tp2r0-q1").recorded


@pytest.mark.parametrize("name", ["tp2r0-q1", "tp2r0-q1-draft"])
def test_real_rows_are_those_of_the_packed_capture(name: str) -> None:
    """The slots of a real call hold exactly the packed rows, and its pinned output is the packed capture's."""
    call, packed = STORED.load(name).call, PACKED.load("tp2r0-q1")
    table = call.inputs["req_to_slot"][call.inputs["requests"][0].long(), :858].long()
    for paged, own in (("k_pool", "k"), ("v_pool", "v")):
        assert torch.equal(call.inputs[paged][table], packed.call.inputs[own])
    assert sorted(oracle.geometry(call).slots[0].tolist()) == sorted(table.tolist())
    assert torch.equal(STORED.load(name).pinned["out"], packed.pinned["out"])
    assert STORED.entry(name).source == packed.entry.source


def test_both_forms_keep_one_pool() -> None:
    """Pool and table of the target and the draft form are kept once, in a file of their own."""
    files = {STORED.entry(name).pool_files for name in ("tp2r0-q1", "tp2r0-q1-draft")}
    assert files == {frozenset({"pool.safetensors"})}


@pytest.mark.parametrize("row", qsa_paged.SYNTHETIC, ids=lambda r: r[0])
def test_synthetic_calls_come_from_their_seed(row: tuple) -> None:
    """The selection of a stored call is the one that its seed draws again."""
    name, topology, counts, kind = row
    call = cases.drawn(name, cases.TOPOLOGIES[topology], counts, kind, STORED.entry(name).seed)
    for tensor in ("tokens", "lengths", "requests", "req_to_slot"):
        assert torch.equal(STORED.load(name).call.inputs[tensor], call.inputs[tensor])


def test_the_set_can_be_written_again(tmp_path: Path) -> None:
    """Written from the packed set it is the committed one in its index tensors; an existing set is not replaced unasked."""
    again = CaptureSet.open(qsa_paged.write_paged_set(tmp_path / "set", PACKED))
    assert again.names() == STORED.names()
    assert again.entry("tp2r0-q1").tensors == STORED.entry("tp2r0-q1").tensors
    with pytest.raises(CaptureError):
        qsa_paged.write_paged_set(tmp_path / "set", PACKED)
