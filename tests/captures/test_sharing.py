"""Memory that calls have in common is kept once, comes back as it was, and cannot be mistaken for another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from kda_lab.captures.format import MANIFEST, Source, manifest_seal
from kda_lab.captures.layout import pack
from kda_lab.captures.sharing import shared_storages, storage_key, with_shared
from kda_lab.captures.store import CaptureDraft, CaptureSet, SetWriter, write_set
from kda_lab.errors import CaptureError
from kda_lab.export.exporter import _capture_hashes
from kda_lab.ops.protocol import Call

POOL = "weights.safetensors"
WEIGHT = torch.arange(40, dtype=torch.uint8).view(8, 5)


def shared_draft(name: str, weight: torch.Tensor = WEIGHT) -> CaptureDraft:
    """A call with a transposed weight that is to be shared, an FP32 scalar tensor and a plain input."""
    inputs = {"x": torch.full((2,), float(len(name))), "weight": weight.t(), "alpha": torch.tensor([0.5])}
    return CaptureDraft(
        name=name,
        kind="synthetic",
        call=Call("test.op", inputs, {"out_dtype": "bfloat16"}, {}, label=name),
        source=Source(),
        licence="CC0-1.0",
        recorded="drawn",
        folded="nothing",
        seed=1,
        shared={"weight": POOL},
    )


@pytest.fixture
def shared_set(tmp_path: Path) -> Path:
    """Two calls with one weight and a third with another."""
    drafts = [shared_draft("one"), shared_draft("three"), shared_draft("other", WEIGHT + 1)]
    return write_set(tmp_path / "set", "test.op", drafts)


def test_a_shared_weight_is_kept_once_and_comes_back_with_its_strides(shared_set: Path) -> None:
    """Two weights for three calls; codes, strides, [1] FP32 and string scalars survive."""
    captures = CaptureSet.open(shared_set)
    assert captures.verify() == []
    assert len(safetensors.torch.load_file(shared_set / POOL)) == 2
    for name, wanted in (("one", WEIGHT), ("three", WEIGHT), ("other", WEIGHT + 1)):
        call = captures.load(name).call
        assert torch.equal(call.inputs["weight"], wanted.t()) and call.inputs["weight"].stride() == (1, 5)
        assert call.inputs["alpha"].shape == (1,) and call.inputs["alpha"].dtype == torch.float32
        assert call.scalars == {"out_dtype": "bfloat16"}


@pytest.mark.parametrize("change", ["weight", "scalar", "place"])
def test_a_call_with_another_shared_weight_is_another_capture(tmp_path: Path, change: str) -> None:
    """Equal own files, and another hash: with another weight, another scalar, or two shared inputs swapped."""
    one = shared_draft("one")
    inputs = {**one.call.inputs, "second": WEIGHT + 9}
    one = replace(one, call=replace(one.call, inputs=inputs), shared={"weight": POOL, "second": POOL})
    call = {
        "weight": one.call.with_inputs(weight=(WEIGHT + 1).t()),
        "scalar": replace(one.call, scalars={"out_dtype": "float32"}),
        "place": one.call.with_inputs(weight=(WEIGHT + 9).t(), second=WEIGHT),
    }[change]
    sets = [
        CaptureSet.open(write_set(tmp_path / name, "test.op", [draft]))
        for name, draft in (("a", one), ("b", replace(one, call=call)), ("c", one))
    ]
    own = {captures.manifest.files["one.safetensors"].sha256 for captures in sets}
    first, second, again = (captures.load("one").sha256 for captures in sets)
    assert len(own) == 1 and first == again != second
    assert [captures.sha256_of("one") for captures in sets] == [first, second, again]
    # What an export compares replay records with.
    known = [_capture_hashes([captures.path], "test.op") for captures in sets]
    assert known == [{"one": first}, {"one": second}, {"one": again}]


def test_a_changed_pool_is_refused(shared_set: Path) -> None:
    """Another weight under the old hash never reaches a replay."""
    data = bytearray((shared_set / POOL).read_bytes())
    data[-1] ^= 1
    (shared_set / POOL).write_bytes(data)
    with pytest.raises(CaptureError, match=POOL):
        CaptureSet.open(shared_set).load("one")


def test_a_write_into_one_load_reaches_no_other(shared_set: Path) -> None:
    """The pool stays in memory, the calls get copies."""
    captures = CaptureSet.open(shared_set)
    captures.load("one").call.inputs["weight"].zero_()
    assert torch.equal(captures.load("three").call.inputs["weight"], WEIGHT.t())


def test_a_manifest_that_names_the_wrong_storage_is_refused(shared_set: Path) -> None:
    """The weight of another call has the right size and the wrong contents; an absent key is named with its file."""
    value = json.loads((shared_set / MANIFEST).read_text())
    first, other = value["captures"][0], value["captures"][2]
    key = next(k for k in other["storages"] if k.startswith("shared."))
    own = next(k for k in first["storages"] if k.startswith("shared."))
    for wrong, words in ((key, r"weight.sha256 is"), ("shared.none", rf"shared.none is absent; allowed: .*{POOL}")):
        changed = json.loads(json.dumps(value))
        entry = changed["captures"][0]
        entry["storages"][wrong] = entry["storages"].pop(own)
        entry["tensors"]["weight"]["strided"]["storage"] = wrong
        changed["seal"] = manifest_seal(changed)
        (shared_set / MANIFEST).write_text(json.dumps(changed))
        with pytest.raises(CaptureError, match=words):
            CaptureSet.open(shared_set).load("one")


def test_a_pool_that_the_set_does_not_list_is_refused(shared_set: Path) -> None:
    """The manifest must name every file, so that each has a hash."""
    value = json.loads((shared_set / MANIFEST).read_text())
    del value["files"][POOL]
    value["seal"] = manifest_seal(value)
    (shared_set / MANIFEST).write_text(json.dumps(value))
    with pytest.raises(CaptureError, match=f"files lacks {POOL}"):
        CaptureSet.open(shared_set)


def test_an_input_that_is_not_there_cannot_be_shared(tmp_path: Path) -> None:
    """The refusal lists the inputs, and nothing is written."""
    draft = replace(shared_draft("one"), shared={"w": POOL})
    with pytest.raises(CaptureError, match=r"shared is \['w'\]; allowed: x, weight, alpha"):
        write_set(tmp_path / "set", "test.op", [draft])
    assert not (tmp_path / "set").exists()


def test_a_tensor_that_aliases_another_cannot_be_shared(tmp_path: Path) -> None:
    """Sharing would tear the two apart."""
    draft = shared_draft("one")
    aliased = replace(draft, call=draft.call.with_inputs(x=draft.call.inputs["weight"][0]))
    with pytest.raises(CaptureError, match=r"one: weight is in one memory with x; allowed: memory of its own"):
        write_set(tmp_path / "set", "test.op", [aliased])


def test_a_writer_that_adds_call_by_call_has_no_pool(tmp_path: Path) -> None:
    """It says what to use instead."""
    with pytest.raises(CaptureError, match=r"weight is not in weights.safetensors; .* Write the set with write_set"):
        SetWriter(tmp_path / "set", "test.op").add(shared_draft("one"))


def test_a_key_depends_on_contents_only() -> None:
    """Strides of the view and the call's name do not count; one changed byte does."""
    (first,) = shared_storages({"weight": WEIGHT.t()}, {"weight": POOL})[POOL]
    (second,) = shared_storages({"w": WEIGHT.clone()}, {"w": POOL})[POOL]
    assert first == second == storage_key(WEIGHT.flatten())
    assert storage_key(WEIGHT.flatten() + 1) != first


def test_nothing_to_share_changes_nothing() -> None:
    """The call's own file keeps everything."""
    packed = pack({"weight": WEIGHT})
    assert with_shared(packed, {}, {}, "one") is packed
