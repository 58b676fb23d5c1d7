"""The manifest's models refuse what would be dishonest or unbuildable; hashes see content only."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kda_lab.captures.format import (
    DTYPES,
    CaptureEntry,
    FileEntry,
    Gather,
    Manifest,
    OutputEntry,
    StorageEntry,
    Strided,
    TensorEntry,
    content_sha256,
    dtype_name,
    manifest_seal,
)

ZEROS = "0" * 64


def entry(**changes: object) -> dict[str, object]:
    """A valid synthetic capture entry with some fields changed."""
    base: dict[str, object] = {
        "name": "a",
        "kind": "synthetic",
        "seed": 1,
        "file": "a.safetensors",
        "storages": {},
        "tensors": {},
        "scalars": {},
        "outputs": {},
        "pinned": {},
        "source": {},
        "licence": "CC0-1.0",
        "recorded": "drawn",
        "folded": "nothing",
    }
    return {**base, **changes}


def manifest(**changes: object) -> dict[str, object]:
    """A valid manifest value with some fields changed."""
    files = {"a.safetensors": {"bytes": 1, "sha256": ZEROS}}
    base = {"version": 1, "op": "test.op", "files": files, "captures": [entry()], "seal": ZEROS}
    return {**base, **changes}


def test_a_tensor_is_strided_or_gathered_and_never_both() -> None:
    """An entry needs exactly one way to be built."""
    strided = Strided(storage="s", stride=(1,), offset=0)
    gather = Gather(file="p.safetensors", tensor="k", index="i")
    for both in ({}, {"strided": strided, "gather": gather}):
        with pytest.raises(ValidationError, match="exactly one of strided and gather"):
            TensorEntry(dtype="float32", shape=(3,), sha256=ZEROS, **both)


def test_strides_must_match_the_dimensions() -> None:
    """One stride a dimension."""
    with pytest.raises(ValidationError, match="1 strides for 2 dimensions"):
        TensorEntry(dtype="float32", shape=(3, 2), sha256=ZEROS, strided=Strided(storage="s", stride=(1,), offset=0))


@pytest.mark.parametrize(
    "make", [lambda d: OutputEntry(dtype=d, shape=(1,)), lambda d: StorageEntry(dtype=d, elements=1)]
)
def test_an_unknown_dtype_is_refused_with_the_known_ones(make: object) -> None:
    """The refusal lists what is allowed."""
    with pytest.raises(ValidationError, match="'complex64' is none of bool, uint8"):
        make("complex64")  # type: ignore[operator]


def test_fp8_needs_an_encoding() -> None:
    """Data that travels as uint8 must say how it is to be read."""
    with pytest.raises(ValidationError, match="travels as uint8 and needs an encoding"):
        TensorEntry(
            dtype="float8_e4m3fn", shape=(3,), sha256=ZEROS, strided=Strided(storage="s", stride=(1,), offset=0)
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": None}, "synthetic capture needs its seed"),
        ({"kind": "real", "seed": None}, "real capture needs source.model"),
        ({"kind": "real", "source": {"model": "m"}}, "real capture needs source.model and has no seed"),
        ({"producer": {"name": "p"}}, "pinned outputs and their producer come together"),
        ({"file": "../a.safetensors"}, "string_pattern_mismatch"),
        ({"name": "a/b"}, "string_pattern_mismatch"),
        ({"scalars": {"x": float("inf")}}, "finite_number"),
        ({"extra": 1}, "extra_forbidden"),
    ],
)
def test_a_dishonest_or_unsafe_entry_is_refused(changes: dict[str, object], words: str) -> None:
    """Each rule of a capture entry has its own refusal."""
    with pytest.raises(ValidationError, match=words):
        CaptureEntry.model_validate(entry(**changes))


def test_a_huge_tensor_is_refused_before_it_is_built() -> None:
    """A stride of 0 cannot ask for terabytes."""
    with pytest.raises(ValidationError, match="more than 17179869184 bytes"):
        TensorEntry(
            dtype="float32",
            shape=(1 << 40,),
            sha256=ZEROS,
            strided=Strided(storage="s", stride=(0,), offset=0),
        )
    with pytest.raises(ValidationError, match="more than 17179869184 bytes"):
        OutputEntry(dtype="float32", shape=(1 << 40,))


def test_a_manifest_names_each_capture_once_and_each_file_it_uses() -> None:
    """Two captures of one name, or a file without hash, are refused."""
    Manifest.model_validate(manifest())
    with pytest.raises(ValidationError, match="two captures share a name"):
        Manifest.model_validate(manifest(captures=[entry(), entry()]))
    with pytest.raises(ValidationError, match="files lacks"):
        Manifest.model_validate(manifest(files={}))


def test_scalars_keep_their_types_through_json() -> None:
    """1, 1.0, True, None and text come back as what they were."""
    scalars = {"i": 1, "f": 1.0, "b": True, "n": None, "s": "x"}
    again = CaptureEntry.model_validate_json(CaptureEntry.model_validate(entry(scalars=scalars)).model_dump_json())
    assert {n: (type(v), v) for n, v in again.scalars.items()} == {n: (type(v), v) for n, v in scalars.items()}


def test_models_are_frozen() -> None:
    """A read manifest cannot be changed in place."""
    with pytest.raises(ValidationError, match="frozen"):
        FileEntry(bytes=1, sha256=ZEROS).bytes = 2  # type: ignore[misc]


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=4))
def test_the_seal_ignores_itself_and_key_order_and_sees_the_rest(value: dict[str, object]) -> None:
    """The seal is a function of everything but the seal."""
    turned = dict(reversed(list(value.items())))
    assert manifest_seal(value) == manifest_seal({**turned, "seal": "anything"})
    assert manifest_seal(value) != manifest_seal({**value, "another key": 0})


def test_the_content_hash_ignores_strides_and_sees_dtype_shape_and_bits() -> None:
    """A transposed view and its contiguous copy are the same content; a reshaped one is not."""
    x = torch.arange(6, dtype=torch.int32).view(2, 3)
    assert content_sha256(x.t()) == content_sha256(x.t().contiguous())
    assert len({content_sha256(t) for t in (x, x.view(3, 2), x.view(torch.float32), x + 1)}) == 4


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_can_be_hashed(name: str) -> None:
    """Each dtype of the format has bytes, empty and 0-dimensional tensors included."""
    data = torch.zeros(32, dtype=torch.uint8).view(DTYPES[name])
    assert dtype_name(data.dtype) == name
    assert content_sha256(data) != content_sha256(data[:0])
    assert content_sha256(data[0]) != content_sha256(data[:1])
