"""A set gives back what was written, and refuses everything else before it builds a tensor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kda_lab.captures.format import MANIFEST, manifest_seal
from kda_lab.captures.store import CaptureDraft, CaptureSet, write_set
from kda_lab.errors import CaptureError


def rewrite(folder: Path, name: str, data: bytes, change: Callable[[dict], None] = lambda value: None) -> None:
    """Put other bytes into a file and make the manifest agree with them, as a hostile writer would."""
    (folder / name).write_bytes(data)
    value = json.loads((folder / MANIFEST).read_text())
    value["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    change(value)
    value["seal"] = manifest_seal(value)
    (folder / MANIFEST).write_text(json.dumps(value))


def resealed(folder: Path, change: Callable[[dict], None]) -> CaptureSet:
    """The set with a changed but validly sealed manifest."""
    name = "one.safetensors"
    rewrite(folder, name, (folder / name).read_bytes(), change)
    return CaptureSet.open(folder)


def test_a_capture_comes_back_as_it_was(small_set: Path, draft: Callable[..., CaptureDraft]) -> None:
    """Inputs, strides, offsets, scalars, pinned output and label survive; outputs are allocated."""
    wanted, found = draft("one", 3), CaptureSet.open(small_set).load("one")
    for name, tensor in wanted.call.inputs.items():
        again = found.call.inputs[name]
        assert again.dtype == tensor.dtype and torch.equal(again, tensor), name
        assert again.stride() == tensor.stride() and again.storage_offset() == tensor.storage_offset(), name
    assert found.call.scalars == wanted.call.scalars
    assert torch.equal(found.pinned["out"], torch.arange(4.0))
    assert found.call.outputs["out"].shape == (4,) and found.call.outputs["out"].dtype == torch.float32
    assert (found.call.label, found.kind, found.entry.seed) == ("one", "synthetic", 3)
    assert found.sha256 == hashlib.sha256((small_set / "one.safetensors").read_bytes()).hexdigest()


def test_loaded_aliases_share_memory_with_each_other_and_with_no_later_load(small_set: Path) -> None:
    """A write into one load reaches its alias and no other load."""
    captures = CaptureSet.open(small_set)
    first, second = captures.load("one"), captures.load("one")
    first.call.inputs["alias"].zero_()
    first.call.inputs["rows"].zero_()
    assert first.call.inputs["x"][:, 2].abs().sum() == 0
    assert second.call.inputs["x"][:, 2].abs().sum() > 0
    assert captures.load("one").call.inputs["rows"].abs().sum() > 0


def test_names_keep_the_order_of_writing_and_an_unknown_one_is_refused(small_set: Path) -> None:
    """The refusal lists the names there are."""
    captures = CaptureSet.open(small_set)
    assert (captures.op, captures.names()) == ("test.op", ["one", "two"])
    with pytest.raises(CaptureError, match="name is 'three'; allowed: one, two"):
        captures.load("three")


def test_a_gathered_input_tells_its_pool_rows_and_others_do_not(small_set: Path) -> None:
    """`gather_index` is the index as written, None for a plain input, and refuses unknown inputs."""
    captures = CaptureSet.open(small_set)
    index = captures.gather_index("one", "rows")
    assert index is not None and index.tolist() == [[1, 2], [3, 3], [0, 9]]
    assert captures.gather_index("one", "x") is None
    with pytest.raises(CaptureError, match="one: tensor is 'q'; allowed: x, alias, rows"):
        captures.gather_index("one", "q")


def test_verify_is_silent_on_a_whole_set_and_names_every_broken_file(small_set: Path) -> None:
    """All files are looked at, not only the first broken one."""
    assert CaptureSet.open(small_set).verify() == []
    (small_set / "one.safetensors").unlink()
    (small_set / "two.safetensors").write_bytes(b"short")
    reasons = [str(reason) for reason in CaptureSet.open(small_set).verify()]
    assert len(reasons) == 2
    assert "one.safetensors" in reasons[0] and "two.safetensors: size in bytes is 5" in reasons[1]


def test_a_file_that_is_no_safetensors_is_refused_though_its_hash_agrees(small_set: Path) -> None:
    """A truncated safetensors file whose manifest was made from it is still refused."""
    rewrite(small_set, "one.safetensors", (small_set / "one.safetensors").read_bytes()[:-3])
    with pytest.raises(CaptureError, match=r"one.safetensors is .*; allowed: a whole safetensors file"):
        CaptureSet.open(small_set).load("one")


def test_a_storage_that_the_file_lacks_is_refused(small_set: Path) -> None:
    """File and tensor are named."""
    rewrite(small_set, "one.safetensors", safetensors.torch.save({"other": torch.zeros(1)}))
    with pytest.raises(CaptureError, match=r"one.safetensors: storage.x is absent; allowed: a tensor of the file"):
        CaptureSet.open(small_set).load("one")


def test_a_storage_of_another_dtype_or_length_is_refused(small_set: Path) -> None:
    """What the file holds is compared with what the manifest says."""
    tensors = safetensors.torch.load((small_set / "one.safetensors").read_bytes())
    tensors["storage.x"] = tensors["storage.x"].float()[:-1]
    rewrite(small_set, "one.safetensors", safetensors.torch.save(tensors))
    with pytest.raises(CaptureError, match=r"storage.x is \('float32', \[\d+\]\); allowed: \('bfloat16', \[\d+\]\)"):
        CaptureSet.open(small_set).load("one")


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        (("x", "strided", "offset"), 1 << 40, r"x.bounds is .*; allowed: within the \d+ bytes"),
        (("x", "strided", "stride"), [1 << 30, 1 << 30], r"x.bounds is "),
        (("x", "strided", "storage"), "storage.q", r"x.storage is 'storage.q'; allowed: storage.x"),
        (("x", "sha256"), "1" * 64, r"x.sha256 is '[0-9a-f]{64}'; allowed: '1{64}'"),
        (("rows", "gather", "tensor"), "keys", r"rows.gather.tensor is 'keys'; allowed: rows"),
        (("rows", "gather", "index"), "where", r"rows.gather.index is 'where'; allowed: "),
        (("rows", "shape"), [3, 2, 5], r"rows.shape is \(3, 2, 5\); allowed: \(3, 2, 4\)"),
    ],
    ids=["offset", "stride", "storage", "content", "pool tensor", "index name", "shape"],
)
def test_an_entry_that_disagrees_with_the_files_is_refused(
    small_set: Path, where: tuple[str, ...], value: object, words: str
) -> None:
    """Every field that steers how a tensor is built is checked, also under a valid seal."""

    def change(manifest: dict) -> None:
        place = manifest["captures"][0]["tensors"]
        for key in where[:-1]:
            place = place[key]
        place[where[-1]] = value

    captures = resealed(small_set, change)
    with pytest.raises(CaptureError, match=words):
        captures.load("one")
    captures.load("two")


def test_a_gather_behind_the_pool_is_refused(small_set: Path) -> None:
    """An index beyond the pool's rows is found before the gather."""
    tensors = safetensors.torch.load((small_set / "one.safetensors").read_bytes())
    tensors["index"][0, 0] = 10
    rewrite(small_set, "one.safetensors", safetensors.torch.save(tensors))
    with pytest.raises(CaptureError, match=r"rows.gather.index is 2..10|rows.gather.index is 0..10; allowed: 0..9"):
        CaptureSet.open(small_set).load("one")


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_byte_in_any_file_is_refused(small_set: Path, data: st.DataObject) -> None:
    """Random damage to tensor files, headers included, is always found."""
    name = data.draw(st.sampled_from(["one.safetensors", "pool.safetensors"]))
    path = small_set / name
    good = path.read_bytes()
    position, flip = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(1, 255))
    path.write_bytes(good[:position] + bytes([good[position] ^ flip]) + good[position + 1 :])
    try:
        with pytest.raises(CaptureError, match=f"{name}: sha256"):
            CaptureSet.open(small_set).load("one")
    finally:
        path.write_bytes(good)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_under_a_valid_hash_is_refused_or_gives_the_recorded_content(
    small_set: Path, data: st.DataObject
) -> None:
    """Even with agreeing hashes nothing but CaptureError is raised, and no other content is handed out."""
    path = small_set / "one.safetensors"
    good, manifest = path.read_bytes(), (small_set / MANIFEST).read_bytes()
    wanted = CaptureSet.open(small_set).load("one")
    position, flip = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(1, 255))
    rewrite(small_set, path.name, good[:position] + bytes([good[position] ^ flip]) + good[position + 1 :])
    try:
        found = CaptureSet.open(small_set).load("one")
        assert all(torch.equal(found.call.inputs[n], t) for n, t in wanted.call.inputs.items())
    except CaptureError as error:
        assert str(path) in str(error)
    finally:
        path.write_bytes(good)
        (small_set / MANIFEST).write_bytes(manifest)


@pytest.mark.gpu
def test_a_capture_loads_onto_a_gpu_with_its_aliases(small_set: Path) -> None:
    """Strides and aliasing are those of the record on a device too."""
    found = CaptureSet.open(small_set).load("one", "cuda")
    assert {t.device.type for t in (*found.call.inputs.values(), *found.call.outputs.values())} == {"cuda"}
    found.call.inputs["alias"].zero_()
    assert found.call.inputs["x"][:, 2].abs().sum() == 0


def test_a_call_s_hash_is_its_file_s_where_that_tells_of_all(
    tmp_path: Path, small_set: Path, draft: Callable[..., CaptureDraft]
) -> None:
    """Also with gathered inputs whose pinned output the file holds; without one, the pool's rows count."""
    captures = CaptureSet.open(small_set)
    assert captures.sha256_of("one") == captures.manifest.files["one.safetensors"].sha256
    with pytest.raises(CaptureError, match="name is 'none'; allowed: one, two"):
        captures.sha256_of("none")
    found = []
    for number in range(2):
        pool = torch.full((10, 4), float(number))
        one = replace(draft("one"), pinned={}, producer=None)
        one = replace(one, call=one.call.with_inputs(rows=pool[one.gathers["rows"].index.long()]))
        path = write_set(tmp_path / str(number), "test.op", [one], pools={"pool.safetensors": {"rows": pool}})
        found.append(CaptureSet.open(path))
    assert len({c.manifest.files["one.safetensors"].sha256 for c in found}) == 1
    assert found[0].load("one").sha256 != found[1].load("one").sha256


def test_the_committed_calls_with_pools_keep_their_hashes() -> None:
    """Replay records of the committed QSA calls name the hash of each call's own file."""
    captures = CaptureSet.open(Path(__file__).parents[2] / "data" / "captures" / "qsa.packed_decode")
    own = [captures.manifest.files[captures.entry(name).file].sha256 for name in captures.names()]
    assert [captures.sha256_of(name) for name in captures.names()] == own
