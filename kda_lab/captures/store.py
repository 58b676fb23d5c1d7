"""Open a capture set, check it, and build the calls it holds; nothing is built before it is checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from kda_lab.captures.format import DTYPES, CaptureEntry, Manifest, TensorEntry, content_sha256, dtype_name
from kda_lab.captures.layout import bounds, gather_reasons, view
from kda_lab.captures.manifest import read_checked, read_manifest
from kda_lab.captures.writing import CaptureDraft, Pool, PoolRows, SetWriter, write_set
from kda_lab.errors import CaptureError, Reason
from kda_lab.ops.protocol import Call

__all__ = ["Capture", "CaptureDraft", "CaptureSet", "Pool", "PoolRows", "SetWriter", "write_set"]


@dataclass(frozen=True)
class Capture:
    """One recorded call, ready to be replayed."""

    name: str
    kind: str
    """`real` or `synthetic`."""
    call: Call
    """Inputs as recorded; outputs allocated, contiguous, with undefined contents."""
    pinned: dict[str, torch.Tensor]
    """What the recorded producer wrote; empty when nothing was pinned."""
    sha256: str
    """What the record of a replay names the contents by: `CaptureSet.sha256_of`."""
    entry: CaptureEntry


@dataclass(frozen=True)
class CaptureSet:
    """A folder of captures with a checked manifest. Open with `CaptureSet.open`."""

    path: Path
    manifest: Manifest
    _pools: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, path: str | Path) -> CaptureSet:
        """Read and check the manifest of a set; no tensor is read yet.

        Raises:
            CaptureError: the manifest is missing or wrong; the reason names file and field.
        """
        folder = Path(path)
        return cls(folder, read_manifest(folder))

    @property
    def op(self) -> str:
        return self.manifest.op

    def names(self) -> list[str]:
        """Names of the captures in the order of the manifest."""
        return [entry.name for entry in self.manifest.captures]

    def entry(self, name: str) -> CaptureEntry:
        """What the manifest says of one capture.

        Raises:
            CaptureError: there is no capture of that name.
        """
        for entry in self.manifest.captures:
            if entry.name == name:
                return entry
        raise CaptureError(
            "captures", [Reason("name", repr(name), ", ".join(self.names()) or "nothing, the set is empty")]
        )

    def sha256_of(self, name: str) -> str:
        """One hash for everything that a capture's call is made of; no tensor is read.

        The SHA-256 of the call's own file, where that holds all of it. Where inputs lie in a pool file that calls
        share, the SHA-256 over that hash, the call's scalars, and name and content hash of each such input.
        Gathered inputs of a call with pinned outputs are taken as told by the file: it holds the index into the
        pool and what the producer made of the rows.

        Raises:
            CaptureError: there is no capture of that name.
        """
        entry = self.entry(name)
        own = self.manifest.files[entry.file].sha256
        elsewhere = {n: tensor.sha256 for n, tensor in _named(entry).items() if _lies_elsewhere(tensor, entry)}
        if not elsewhere:
            return own
        text = json.dumps([own, entry.scalars, elsewhere], sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def load(self, name: str, device: torch.device | str = "cpu") -> Capture:
        """Check one capture's files and build its call.

        Args:
            name: one of `names()`.
            device: where the tensors go; strides, offsets and aliasing are those of the record.
        Raises:
            CaptureError: hash, dtype, shape, bounds or content differ from the manifest; nothing is built.
        """
        entry = self.entry(name)
        file = self._with_shared(entry, self._tensors(entry.file))
        reasons = self._reasons(entry, file)
        if reasons:
            raise CaptureError("captures", reasons)
        # Storages move as a whole, so that tensors that alias on the CPU alias on the device.
        flats = {key: file[key].clone().to(device) for key in entry.storages}
        inputs = {n: self._build(t, entry, file, flats).to(device) for n, t in entry.tensors.items()}
        pinned = {n: self._build(t, entry, file, flats) for n, t in entry.pinned.items()}
        _check_contents(entry, {**inputs, **{f"pinned.{n}": t for n, t in pinned.items()}}, self.path / entry.file)
        outputs = {
            # What is updated in place has the input's strides; `restore` gives it its contents.
            n: torch.empty_strided(inputs[n].shape, inputs[n].stride(), dtype=inputs[n].dtype, device=device)
            if n in inputs
            else torch.empty(o.shape, dtype=DTYPES[o.dtype], device=device)
            for n, o in entry.outputs.items()
        }
        call = Call(self.op, inputs, dict(entry.scalars), outputs, label=name, facts=dict(entry.facts))
        call.restore()
        return Capture(name, entry.kind, call, pinned, self.sha256_of(name), entry)

    def gather_index(self, name: str, tensor: str) -> torch.Tensor | None:
        """Rows of the pool that an input was gathered from, int32; None when it is kept as it is.

        Raises:
            CaptureError: no such capture or input, or its file is not whole.
        """
        entry = self.entry(name)
        if tensor not in entry.tensors:
            raise CaptureError("captures", [Reason(f"{name}: tensor", repr(tensor), ", ".join(entry.tensors))])
        gather = entry.tensors[tensor].gather
        if gather is None:
            return None
        file = self._with_shared(entry, self._tensors(entry.file))
        if reasons := self._reasons(entry, file):
            raise CaptureError("captures", reasons)
        return file[gather.index]

    def verify(self) -> list[Reason]:
        """Check every file and every capture; all reasons found, empty when the set is whole."""
        reasons: list[Reason] = []
        for name in self.manifest.files:
            reasons += _reasons_of(lambda name=name: read_checked(self.path, self.manifest, name))  # type: ignore[misc]
        if reasons:
            return reasons
        for name in self.names():
            reasons += _reasons_of(lambda name=name: self.load(name))  # type: ignore[misc]
        return reasons

    def _tensors(self, name: str) -> dict[str, torch.Tensor]:
        """The flat tensors of one checked file; pools stay in memory, since many calls read them."""
        if name in self._pools:
            return self._pools[name]
        data = read_checked(self.path, self.manifest, name)
        try:
            tensors = safetensors.torch.load(data)
        except (safetensors.SafetensorError, ValueError, KeyError) as error:
            reason = Reason(str(self.path / name), repr(str(error)), "a whole safetensors file")
            raise CaptureError("captures", [reason]) from error
        if any(name in capture.pool_files for capture in self.manifest.captures):
            self._pools[name] = tensors
        return tensors

    def _with_shared(self, entry: CaptureEntry, file: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors of a call's own file and, under their keys, the storages that it shares with other calls."""
        shared = {key: storage.file for key, storage in entry.storages.items() if storage.file is not None}
        found = {key: self._tensors(pool).get(key) for key, pool in shared.items()}
        own = {key: tensor for key, tensor in file.items() if key not in shared}
        return {**own, **{key: tensor for key, tensor in found.items() if tensor is not None}}

    def _reasons(self, entry: CaptureEntry, file: dict[str, torch.Tensor]) -> list[Reason]:
        """Everything about one capture that can be checked before a tensor is built."""
        where = str(self.path / entry.file)
        reasons = []
        for key, storage in entry.storages.items():
            if key not in file:
                reasons.append(Reason(f"{where}: {key}", "absent", f"a tensor of {storage.file or 'the file'}"))
                continue
            found = (dtype_name(file[key].dtype), list(file[key].shape))
            if found != (storage.dtype, [storage.elements]):
                reasons.append(Reason(f"{where}: {key}", repr(found), repr((storage.dtype, [storage.elements]))))
        if reasons:
            return reasons
        for name, tensor in _named(entry).items():
            reasons += self._tensor_reasons(f"{where}: {name}", tensor, entry, file)
        return reasons

    def _tensor_reasons(
        self, name: str, tensor: TensorEntry, entry: CaptureEntry, file: dict[str, torch.Tensor]
    ) -> list[Reason]:
        if tensor.strided is not None:
            key = tensor.strided.storage
            if key not in entry.storages:
                return [Reason(f"{name}.storage", repr(key), ", ".join(entry.storages))]
            return bounds(name, tensor, entry.storages[key])
        gather = tensor.gather
        if gather is None:
            return []
        pool = self._tensors(gather.file)
        if gather.tensor not in pool:
            return [Reason(f"{name}.gather.tensor", repr(gather.tensor), ", ".join(pool))]
        if gather.index not in file:
            return [Reason(f"{name}.gather.index", repr(gather.index), ", ".join(file))]
        return gather_reasons(name, tensor, pool[gather.tensor], file[gather.index])

    def _build(
        self, tensor: TensorEntry, entry: CaptureEntry, file: dict[str, torch.Tensor], flats: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        if tensor.strided is not None:
            key = tensor.strided.storage
            return view(tensor, entry.storages[key], flats[key])
        gather = tensor.gather
        if gather is None:
            raise CaptureError("captures", "a tensor entry has neither strides nor a gather")
        rows = self._tensors(gather.file)[gather.tensor][file[gather.index].long()]
        return rows.contiguous()


def _named(entry: CaptureEntry) -> dict[str, TensorEntry]:
    """Inputs by their names, pinned outputs as `pinned.<name>`."""
    return {**entry.tensors, **{f"pinned.{n}": t for n, t in entry.pinned.items()}}


def _lies_elsewhere(tensor: TensorEntry, entry: CaptureEntry) -> bool:
    """Whether a tensor's contents are in a shared file and nothing in the call's own file tells of them."""
    if tensor.strided is None:
        return not entry.pinned
    storage = entry.storages.get(tensor.strided.storage)
    return storage is not None and storage.file is not None


def _check_contents(entry: CaptureEntry, tensors: dict[str, torch.Tensor], path: Path) -> None:
    wanted = _named(entry)
    reasons = []
    for name, tensor in tensors.items():
        found = content_sha256(tensor)
        if found != wanted[name].sha256:
            reasons.append(Reason(f"{path}: {name}.sha256", repr(found), repr(wanted[name].sha256)))
    if reasons:
        raise CaptureError("captures", reasons)


def _reasons_of(check: Callable[[], object]) -> list[Reason]:
    try:
        check()
    except CaptureError as error:
        return list(error.reasons) or [Reason("set", str(error), "a whole set")]
    return []
