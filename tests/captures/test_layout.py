"""Strides, offsets and aliasing survive a round trip, and no view leaves its storage."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.captures.format import DTYPES, Gather, StorageEntry, Strided, TensorEntry, as_bytes
from kda_lab.captures.layout import MAX_UNUSED_BYTES, bounds, gather_reasons, last_element, pack, refusal, view
from kda_lab.errors import CaptureError

ZEROS = "0" * 64


def unpack(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Through `pack` and `view`."""
    packed = pack(tensors)
    flats = {key: flat.clone() for key, flat in packed.flats.items()}
    found = {}
    for name, entry in packed.tensors.items():
        key = entry.strided.storage  # type: ignore[union-attr]
        assert bounds(name, entry, packed.storages[key]) == []
        found[name] = view(entry, packed.storages[key], flats[key])
    return found


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal dtype, shape and bytes; NaN equals NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(as_bytes(a.contiguous()), as_bytes(b.contiguous()))


@given(
    shape=st.lists(st.integers(0, 4), min_size=0, max_size=4),
    data=st.data(),
    dtype=st.sampled_from(sorted(DTYPES)),
)
def test_any_view_comes_back_with_strides_offset_and_bits(shape: list[int], data: st.DataObject, dtype: str) -> None:
    """Random strides, zero strides included, and random offsets round-trip."""
    stride = [data.draw(st.integers(0, 6)) for _ in shape]
    offset = data.draw(st.integers(0, 40))
    size = last_element(tuple(shape), tuple(stride), offset)
    flat = torch.arange((size + 3) * 8, dtype=torch.int64).view(torch.uint8).remainder(2).view(DTYPES[dtype])
    tensor = flat.as_strided(shape, stride, offset)
    again = unpack({"x": tensor})["x"]
    assert same_bits(again, tensor)
    assert (again.stride(), again.storage_offset()) == (tensor.stride(), tensor.storage_offset())


def test_tensors_that_share_memory_still_share_it() -> None:
    """A write through one loaded view shows in the other, and not in a third of its own."""
    base = torch.arange(40.0).view(8, 5)
    again = unpack({"a": base[2:6].t(), "b": base[3], "c": base.clone()})
    again["b"].fill_(-1)
    assert torch.equal(again["a"][:, 1], torch.full((5,), -1.0))
    assert torch.equal(again["c"], base)


def test_views_of_two_dtypes_share_one_byte_storage() -> None:
    """A uint8 view of BF16 rows keeps aliasing them, odd lengths included."""
    base = torch.randn(7, 3).bfloat16()
    again = unpack({"values": base[1], "bytes": as_bytes(base)[7:14]})
    assert same_bits(again["values"], base[1])
    again["bytes"].zero_()
    assert again["values"][1:].abs().sum() == 0
    assert pack({"values": base[1], "bytes": as_bytes(base)[7:14]}).storages["storage.values"].dtype == "uint8"


def test_a_small_view_deep_in_a_large_storage_does_not_drag_it_along() -> None:
    """Over 1 MiB of unused bytes is left out; what is kept starts at a 256-byte boundary."""
    big = torch.arange(2_000_000, dtype=torch.int32)
    packed = pack({"x": big[1_000_001:1_000_100:3]})
    assert packed.bytes < 1000
    assert packed.storages["storage.x"].first_byte > MAX_UNUSED_BYTES
    assert packed.storages["storage.x"].first_byte % 256 == 0
    assert torch.equal(unpack({"x": big[1_000_001:1_000_100:3]})["x"], big[1_000_001:1_000_100:3])


def test_empty_tensors_do_not_alias_each_other() -> None:
    """Two tensors without memory keep their own storages."""
    packed = pack({"a": torch.zeros(0, 3), "b": torch.zeros(2, 0, dtype=torch.int32)})
    assert len(packed.flats) == 2


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.eye(3).to_sparse(), "a dense strided tensor with data"),
        (torch.zeros(3, device="meta"), "a dense strided tensor with data"),
        (torch.zeros(3, dtype=torch.complex64), "one of the dtypes bool, uint8"),
        ("text", "a torch tensor"),
    ],
    ids=["sparse", "meta", "complex", "no tensor"],
)
def test_what_cannot_be_kept_is_refused_with_the_reason(tensor: object, words: str) -> None:
    """`refusal` and `pack` say the same."""
    assert words in refusal(tensor)
    with pytest.raises(CaptureError, match=f"tensor x is .*; allowed: {words}"):
        pack({"x": tensor})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("shape", "stride", "offset", "first_byte", "words"),
    [
        ((4,), (3,), 1, 0, r"x.bounds is .*byte 44; allowed: within the 40 bytes"),
        ((1,), (1,), 10, 0, r"x.bounds"),
        ((4,), (1,), 10, 256, r"x.offset is 10; allowed: at least 256 bytes"),
        ((4,), (1,), 100, 3, r"x.offset is 100; allowed: .* in steps of 256"),
    ],
)
def test_a_view_outside_its_storage_is_refused_unbuilt(
    shape: tuple[int, ...], stride: tuple[int, ...], offset: int, first_byte: int, words: str
) -> None:
    """Shape, stride and offset are checked by arithmetic, before a tensor exists."""
    entry = TensorEntry(
        dtype="float32", shape=shape, sha256=ZEROS, strided=Strided(storage="s", stride=stride, offset=offset)
    )
    reasons = bounds("x", entry, StorageEntry(dtype="float32", elements=10, first_byte=first_byte))
    with pytest.raises(CaptureError, match=words):
        raise CaptureError("captures", reasons)


def test_a_dtype_that_does_not_divide_the_storage_is_refused() -> None:
    """Seven bytes are no whole number of FP32 elements."""
    entry = TensorEntry(dtype="float32", shape=(1,), sha256=ZEROS, strided=Strided(storage="s", stride=(1,), offset=0))
    (reason,) = bounds("x", entry, StorageEntry(dtype="uint8", elements=7))
    assert str(reason) == "x.dtype is 'float32'; allowed: a size that divides 7 bytes."


@pytest.mark.parametrize(
    ("pool", "index", "words"),
    [
        (torch.zeros(5, 2), torch.tensor([0, 5], dtype=torch.int32), r"index is 0..5; allowed: 0..4"),
        (torch.zeros(5, 2), torch.tensor([-1, 0], dtype=torch.int32), r"index is -1..0"),
        (torch.zeros(5, 2), torch.tensor([0, 1]), r"index.dtype is torch.int64; allowed: torch.int32"),
        (torch.zeros(5, 2).half(), torch.tensor([0, 1], dtype=torch.int32), r"pool is torch.float16"),
        (torch.zeros(5, 3), torch.tensor([0, 1], dtype=torch.int32), r"shape is \(2, 2\); allowed: \(2, 3\)"),
    ],
    ids=["behind", "negative", "dtype", "pool dtype", "shape"],
)
def test_a_gather_outside_its_pool_is_refused(pool: torch.Tensor, index: torch.Tensor, words: str) -> None:
    """Index and shapes are checked before the gather."""
    gather = Gather(file="p.safetensors", tensor="k", index="i")
    entry = TensorEntry(dtype="float32", shape=(2, 2), sha256=ZEROS, gather=gather)
    with pytest.raises(CaptureError, match=words):
        raise CaptureError("captures", gather_reasons("x", entry, pool, index))
    with pytest.raises(CaptureError, match="no storage of its own"):
        view(entry, StorageEntry(dtype="float32", elements=4), torch.zeros(4))
