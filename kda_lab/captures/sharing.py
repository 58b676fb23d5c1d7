"""Memory that several calls of a set have in common is kept once, in a pool file, under a key made of its contents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from kda_lab.captures.format import StorageEntry, content_sha256
from kda_lab.captures.layout import Packed, pack
from kda_lab.errors import CaptureError, Reason


def storage_key(flat: torch.Tensor) -> str:
    """Key of a flat storage in a pool file: the same contents have the same key, whatever call they come from."""
    return f"shared.{content_sha256(flat)[:24]}"


def shared_storages(
    inputs: Mapping[str, torch.Tensor], shared: Mapping[str, str]
) -> dict[str, dict[str, torch.Tensor]]:
    """The storages of the inputs that are to be shared: pool file to key to flat CPU tensor.

    Args:
        inputs: a call's tensors.
        shared: names among them, each to a pool file.
    Raises:
        CaptureError: `shared` names no input, or a tensor that cannot be recorded.
    """
    if unknown := [name for name in shared if name not in inputs]:
        raise CaptureError("captures", [Reason("shared", repr(unknown), ", ".join(inputs))])
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, file in shared.items():
        for flat in pack({name: inputs[name]}).flats.values():
            found.setdefault(file, {})[storage_key(flat)] = flat
    return found


def with_shared(
    packed: Packed, shared: Mapping[str, str], pools: Mapping[str, Mapping[str, torch.Tensor]], where: str
) -> Packed:
    """The same tensors, where those named in `shared` have their memory in the pools instead of the call's own file.

    Args:
        packed: all tensors of a call.
        shared: name to pool file.
        pools: pool file to key to flat tensor, as `shared_storages` gives them.
        where: name of the capture, for refusals.
    Raises:
        CaptureError: a pool lacks the memory, or another tensor of the call lies in it too.
    """
    for name, file in shared.items():
        packed = _moved(packed, name, file, pools.get(file, {}), where)
    return packed


def _moved(packed: Packed, name: str, file: str, pool: Mapping[str, torch.Tensor], where: str) -> Packed:
    entry = packed.tensors[name]
    if entry.strided is None:
        raise CaptureError("captures", [Reason(f"{where}: {name}", "gathered", "a tensor with memory of its own")])
    old, key = entry.strided.storage, storage_key(packed.flats[entry.strided.storage])
    beside = [n for n, t in packed.tensors.items() if n != name and t.strided is not None and t.strided.storage == old]
    if beside or key not in pool:
        given = f"in one memory with {', '.join(beside)}" if beside else f"not in {file}"
        allowed = f"memory of its own that {file} holds"
        raise CaptureError("captures", [Reason(f"{where}: {name}", given, allowed, "Write the set with write_set.")])
    storage = StorageEntry(**{**packed.storages[old].model_dump(), "file": file})
    moved = entry.model_copy(update={"strided": entry.strided.model_copy(update={"storage": key})})
    return replace(
        packed,
        flats={k: flat for k, flat in packed.flats.items() if k != old},
        storages={**{k: s for k, s in packed.storages.items() if k != old}, key: storage},
        tensors={**packed.tensors, name: moved},
    )
