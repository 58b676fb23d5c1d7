"""Each way in which a manifest or a file can be wrong has its own refusal, which names file and field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kda_lab.captures.format import MANIFEST, manifest_seal
from kda_lab.captures.manifest import read_checked, read_manifest, sealed
from kda_lab.errors import CaptureError

Change = Callable[[dict], None]


def edit(folder: Path, change: Change, seal: bool = True) -> None:
    """Change the manifest's JSON value and seal it again."""
    path = folder / MANIFEST
    value = json.loads(path.read_text())
    change(value)
    if seal:
        value["seal"] = manifest_seal(value)
    path.write_text(json.dumps(value))


def test_a_missing_manifest_is_refused(tmp_path: Path) -> None:
    """The refusal names the path that was looked for."""
    with pytest.raises(CaptureError, match=r"manifest is '.*manifest.json'; allowed: an existing file. Record the set"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("text", [b"{", b"", b"\xff\xfe", b"[" * 100_000], ids=["cut", "empty", "not utf-8", "deep"])
def test_corrupt_json_is_refused(small_set: Path, text: bytes) -> None:
    """Whatever cannot be parsed is named with the parser's words."""
    (small_set / MANIFEST).write_bytes(text)
    with pytest.raises(CaptureError, match="allowed: JSON in UTF-8"):
        read_manifest(small_set)


def test_json_that_is_no_object_is_refused(small_set: Path) -> None:
    """A list is no manifest."""
    (small_set / MANIFEST).write_text("[]")
    with pytest.raises(CaptureError, match="a list; allowed: a JSON object"):
        read_manifest(small_set)


@pytest.mark.parametrize("version", [2, "1", True, None, 1.5])
def test_another_version_is_refused_before_the_schema(small_set: Path, version: object) -> None:
    """A newer format is named as such, not as a list of unknown fields."""

    def change(value: dict) -> None:
        value.update(version=version, something_new=1)

    edit(small_set, change)
    with pytest.raises(CaptureError, match=re.escape(f"version is {version!r}; allowed: 1.")):
        read_manifest(small_set)


def test_a_broken_schema_names_every_field(small_set: Path) -> None:
    """All reasons at once, each with its place, what was found and what is expected."""

    def change(value: dict) -> None:
        value["op"] = "No Op"
        value["captures"][0]["seed"] = "seven"

    edit(small_set, change)
    with pytest.raises(CaptureError, match=r"op is 'No Op'; .*captures.0.seed is 'seven'") as caught:
        read_manifest(small_set)
    assert len(caught.value.reasons) == 2


def test_a_file_name_that_leaves_the_folder_is_refused(small_set: Path) -> None:
    """`../x` never reaches the file system."""
    (small_set.parent / "x.safetensors").write_bytes((small_set / "one.safetensors").read_bytes())

    def change(value: dict) -> None:
        value["captures"][0]["file"] = "../x.safetensors"
        value["files"]["../x.safetensors"] = value["files"].pop("one.safetensors")

    edit(small_set, change)
    with pytest.raises(CaptureError, match=r"captures.0.file is '\.\./x.safetensors'"):
        read_manifest(small_set)


def test_an_edit_without_a_new_seal_is_refused(small_set: Path) -> None:
    """A changed word in the provenance shows, though it fits the schema."""

    def change(value: dict) -> None:
        value["captures"][0]["folded"] = "nothing at all"

    edit(small_set, change, seal=False)
    with pytest.raises(CaptureError, match="seal is "):
        read_manifest(small_set)


def test_sealing_a_wrong_value_is_refused() -> None:
    """What is written passes the same schema as what is read."""
    with pytest.raises(CaptureError, match=r"manifest.json: captures is .*Field required"):
        sealed({"version": 1, "op": "test.op", "files": {}})


def test_a_missing_file_is_refused(small_set: Path) -> None:
    """The refusal names the file."""
    manifest = read_manifest(small_set)
    (small_set / "one.safetensors").unlink()
    with pytest.raises(CaptureError, match=r"file is '.*one.safetensors'; allowed: an existing file"):
        read_checked(small_set, manifest, "one.safetensors")


def test_a_truncated_file_is_refused(small_set: Path) -> None:
    """The size is compared first, so that the message says how much is missing."""
    manifest = read_manifest(small_set)
    path = small_set / "one.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(CaptureError, match=f"size in bytes is {len(data) - 1}; allowed: {len(data)}"):
        read_checked(small_set, manifest, "one.safetensors")


def test_a_changed_file_is_refused(small_set: Path) -> None:
    """One flipped bit changes the hash."""
    manifest = read_manifest(small_set)
    path = small_set / "one.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CaptureError, match=r"one.safetensors: sha256 is '[0-9a-f]{64}'; allowed: '[0-9a-f]{64}'"):
        read_checked(small_set, manifest, "one.safetensors")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_byte_in_the_manifest_is_refused_or_changes_nothing(small_set: Path, data: st.DataObject) -> None:
    """Random damage is either found or leaves the same value (white space)."""
    path = small_set / MANIFEST
    good = path.read_bytes()
    position = data.draw(st.integers(0, len(good) - 1))
    flip = data.draw(st.integers(1, 255))
    expected = read_manifest(small_set)
    path.write_bytes(good[:position] + bytes([good[position] ^ flip]) + good[position + 1 :])
    try:
        assert read_manifest(small_set) == expected
    except CaptureError as error:
        assert "manifest" in str(error)
    finally:
        path.write_bytes(good)
