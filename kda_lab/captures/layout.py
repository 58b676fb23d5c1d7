"""Tensors to storages and back: strides, offsets and aliasing survive, and nothing is read out of bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kda_lab.captures.format import (
    BYTE_DTYPES,
    DTYPES,
    StorageEntry,
    Strided,
    TensorEntry,
    as_bytes,
    content_sha256,
    dtype_name,
)
from kda_lab.errors import CaptureError, Reason

ALIGNMENT_BYTES = 256
MAX_UNUSED_BYTES = 1 << 20
"""Unused bytes before the first element that are kept so that the offset survives as it is."""


@dataclass(frozen=True)
class Packed:
    """Tensors taken apart: flat storages for the file and the entries that rebuild the tensors."""

    flats: dict[str, torch.Tensor]
    """Storage name to 1-D CPU tensor."""
    storages: dict[str, StorageEntry]
    tensors: dict[str, TensorEntry]

    @property
    def bytes(self) -> int:
        return sum(flat.nbytes for flat in self.flats.values())


def refusal(tensor: object) -> str:
    """What a tensor would have to be to be recorded; empty when it is that."""
    if not isinstance(tensor, torch.Tensor):
        return "a torch tensor"
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return "a dense strided tensor with data"
    if dtype_name(tensor.dtype) not in DTYPES:
        return f"one of the dtypes {', '.join(DTYPES)}"
    if tensor.is_conj() or tensor.is_neg():
        return "a tensor with bytes of its own, not a lazily conjugated or negated view"
    return ""


def _kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.layout} {value.dtype} {list(value.shape)} on {value.device}"
    return f"a {type(value).__name__}"


def last_element(shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> int:
    """Index in the storage just behind the last element that a view touches; `offset` when it is empty."""
    if 0 in shape:
        return offset
    return offset + sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True)) + 1


def pack(tensors: Mapping[str, torch.Tensor], encodings: Mapping[str, str] | None = None) -> Packed:
    """Copy tensors to the CPU as flat storages; tensors that share memory stay shared.

    Args:
        tensors: name to dense tensor of any strides on any device; not written.
        encodings: name to how the bits are to be read, for sub-byte data in uint8.
    Raises:
        CaptureError: a tensor that `refusal` names.
    """
    reasons = [Reason(f"tensor {n}", _kind(t), r) for n, t in tensors.items() if (r := refusal(t))]
    if reasons:
        raise CaptureError("captures", reasons)
    groups: dict[tuple[str, int], list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault((str(tensor.device), tensor.untyped_storage().data_ptr()), []).append(name)
    packed = Packed({}, {}, {})
    for members in _split_empty(groups, tensors):
        key = f"storage.{members[0]}"
        flat, first_byte = _span([tensors[n].detach() for n in members])
        packed.flats[key] = flat
        packed.storages[key] = StorageEntry(dtype=dtype_name(flat.dtype), elements=flat.numel(), first_byte=first_byte)
        for name in members:
            packed.tensors[name] = _entry(tensors[name], key, (encodings or {}).get(name, ""))
    return Packed(packed.flats, packed.storages, {name: packed.tensors[name] for name in tensors})


def _split_empty(groups: dict[tuple[str, int], list[str]], tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Tensors without memory all have data pointer 0 and do not alias each other."""
    result = []
    for members in groups.values():
        empty = [n for n in members if tensors[n].untyped_storage().nbytes() == 0]
        result += [[n] for n in empty]
        if rest := [n for n in members if n not in empty]:
            result.append(rest)
    return result


def _span(tensors: list[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """Copy the used stretch of a shared storage as a flat CPU tensor, and the bytes before it."""
    storage = tensors[0].untyped_storage()
    sizes = [t.element_size() for t in tensors]
    ends = [
        last_element(tuple(t.shape), t.stride(), int(t.storage_offset())) * s
        for t, s in zip(tensors, sizes, strict=True)
    ]
    starts = [int(t.storage_offset()) * s for t, s in zip(tensors, sizes, strict=True)]
    first = min(starts) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    first = first if first > MAX_UNUSED_BYTES else 0
    names = {dtype_name(t.dtype) for t in tensors}
    native = len(names) == 1 and not names & BYTE_DTYPES
    # A view of another dtype needs a whole number of its elements, so mixed storages end on a common multiple.
    unit = max(sizes)
    used = max(max(ends) - first, 0)
    window = torch.empty(0, dtype=torch.uint8, device=tensors[0].device).set_(storage, first, (used,), (1,))
    raw = torch.zeros(-(-used // unit) * unit, dtype=torch.uint8)
    raw[:used] = window.cpu()
    return (raw.view(tensors[0].dtype) if native else raw), first


def _entry(tensor: torch.Tensor, storage: str, encoding: str) -> TensorEntry:
    name = dtype_name(tensor.dtype)
    return TensorEntry(
        dtype=name,
        shape=tuple(tensor.shape),
        sha256=content_sha256(tensor),
        encoding=encoding or (f"torch.{name} bits" if name in BYTE_DTYPES else ""),
        strided=Strided(storage=storage, stride=tuple(tensor.stride()), offset=int(tensor.storage_offset())),
    )


def bounds(name: str, entry: TensorEntry, storage: StorageEntry) -> list[Reason]:
    """Why a strided entry would leave its storage; empty when it stays inside. Builds nothing."""
    strided = entry.strided
    if strided is None:
        return []
    size = DTYPES[entry.dtype].itemsize
    held = storage.elements * DTYPES[storage.dtype].itemsize
    first = strided.offset * size - storage.first_byte
    end = last_element(entry.shape, strided.stride, strided.offset) * size - storage.first_byte
    reasons = []
    if first < 0 or storage.first_byte % ALIGNMENT_BYTES:
        allowed = f"at least {storage.first_byte} bytes, in steps of {ALIGNMENT_BYTES}"
        reasons.append(Reason(f"{name}.offset", repr(strided.offset), allowed))
    if end > held:
        given = f"shape {entry.shape}, stride {strided.stride}, offset {strided.offset}"
        reasons.append(Reason(f"{name}.bounds", f"{given}: byte {end}", f"within the {held} bytes of the storage"))
    if held % size and not reasons:
        reasons.append(Reason(f"{name}.dtype", repr(entry.dtype), f"a size that divides {held} bytes"))
    return reasons


def view(entry: TensorEntry, storage: StorageEntry, flat: torch.Tensor) -> torch.Tensor:
    """The tensor that a strided entry describes, as a view of `flat`; call `bounds` first."""
    strided = entry.strided
    if strided is None:
        raise CaptureError("captures", "a gathered tensor has no storage of its own")
    dtype = DTYPES[entry.dtype]
    typed = as_bytes(flat).view(dtype)
    offset = strided.offset - storage.first_byte // dtype.itemsize
    return typed.as_strided(entry.shape, strided.stride, offset)


def gather_reasons(name: str, entry: TensorEntry, pool: torch.Tensor, index: torch.Tensor) -> list[Reason]:
    """Why a gathered entry cannot be built from this pool and index; empty when it can."""
    reasons = []
    if index.dtype != torch.int32:
        reasons.append(Reason(f"{name}.gather.index.dtype", repr(index.dtype), "torch.int32"))
    if dtype_name(pool.dtype) != entry.dtype or pool.dim() < 1:
        reasons.append(Reason(f"{name}.gather.pool", f"{pool.dtype} {list(pool.shape)}", f"{entry.dtype} rows"))
        return reasons
    shape = (*index.shape, *pool.shape[1:])
    if shape != entry.shape:
        reasons.append(Reason(f"{name}.shape", repr(entry.shape), f"{shape}, index shape plus row shape"))
    if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < pool.shape[0]):
        given = f"{int(index.min())}..{int(index.max())}"
        reasons.append(Reason(f"{name}.gather.index", given, f"0..{pool.shape[0] - 1}, the rows of the pool"))
    return reasons
