"""Write a capture set: whole at once (`write_set`), or call by call while a process runs (`SetWriter`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch

from kda_lab.captures.folder_lock import FolderLock
from kda_lab.captures.format import (
    FORMAT_VERSION,
    MANIFEST,
    CaptureEntry,
    Gather,
    OutputEntry,
    Producer,
    Source,
    TensorEntry,
    content_sha256,
    dtype_name,
)
from kda_lab.captures.layout import gather_reasons, pack
from kda_lab.captures.leftovers import OLD_SET, recover, scratch_prefix
from kda_lab.captures.manifest import read_manifest, sealed
from kda_lab.captures.sharing import shared_storages, with_shared
from kda_lab.errors import CaptureError, Reason
from kda_lab.ops.protocol import Call
from kda_lab.run_folder import scratch_folder, write_atomic

Pool = dict[str, torch.Tensor]
"""Rows that several calls share: tensor name to [P, …]."""


@dataclass(frozen=True)
class PoolRows:
    """Says that an input of a call is `pools[file][tensor][indices]`."""

    file: str
    """Pool file, `*.safetensors`."""
    tensor: str
    index: torch.Tensor
    """int32, any shape; entries in [0, P)."""
    index_name: str = "index"
    """Two inputs with one index share it by this name."""


@dataclass(frozen=True)
class CaptureDraft:
    """A call on its way to disk, with everything the manifest must say of it."""

    name: str
    kind: Literal["real", "synthetic"]
    call: Call
    source: Source
    licence: str
    recorded: str
    folded: str
    seed: int | None = None
    pinned: Mapping[str, torch.Tensor] = field(default_factory=dict)
    producer: Producer | None = None
    gathers: Mapping[str, PoolRows] = field(default_factory=dict)
    """Inputs that are kept as rows of a pool."""
    shared: Mapping[str, str] = field(default_factory=dict)
    """Inputs whose memory other calls have too, each to the pool file that keeps it once (weights)."""
    encodings: Mapping[str, str] = field(default_factory=dict)
    """How to read sub-byte data in uint8 inputs."""


def write_set(
    path: str | Path,
    op: str,
    captures: Sequence[CaptureDraft],
    *,
    pools: Mapping[str, Pool] | None = None,
    texts: Mapping[str, bytes] | None = None,
    note: str = "",
    replace: bool = False,
) -> Path:
    """Write a set into a folder that appears whole or not at all; what a killed writer of it left is cleared first.

    Args:
        path: folder of the set.
        op: name of the op, dotted.
        captures: the calls, in the order of the manifest.
        pools: pool file name (`*.safetensors`) to its tensors.
        texts: name (`*.txt`) to content of files that travel with the set.
        note: words on the whole set.
        replace: allow an existing set to be replaced. Between two renames there is no set for a moment.
    Raises:
        CaptureError: another writer holds the folder, it exists, a name is not allowed, a tensor cannot be kept, a gather
            does not reproduce its input; nothing is written.
    """
    target = Path(path)
    lock = FolderLock(target)
    try:
        recover(target)
        if reasons := taken(target, "path", replace):
            raise CaptureError("captures", reasons)
        _write_whole(target, op, captures, pools or {}, texts or {}, note)
    finally:
        lock.release()
    return target


def taken(target: Path, field: str, replace: bool) -> list[Reason]:
    """Why a set cannot be written to `target`: it exists and may not be replaced; empty when it can."""
    if replace or not target.exists():
        return []
    remedy = "Pass replace=True to replace it."
    return [Reason(field, repr(str(target)), "a folder that does not exist", remedy)]


def _write_whole(
    target: Path,
    op: str,
    captures: Sequence[CaptureDraft],
    pools: Mapping[str, Pool],
    texts: Mapping[str, bytes],
    note: str,
) -> None:
    """Write the set beside its place and swap it in; the caller holds the folder's lock."""
    with scratch_folder(target.parent, scratch_prefix(target, "new")) as folder:
        entries, files = [], {}
        pools = _with_shared_pools(pools, captures)
        for name, pool in pools.items():
            files[name] = _write_file(folder, name, _saved(pool))
        for name, text in texts.items():
            files[name] = _write_file(folder, name, text)
        for draft in captures:
            entry, data = draft_entry(draft, pools)
            entries.append(entry)
            files[entry.file] = _write_file(folder, entry.file, data)
        value = _manifest_value(op, note, files, entries)
        _write_manifest(folder, value)
        folder.chmod(0o755)
        _swap_in(folder, target)


def _with_shared_pools(pools: Mapping[str, Pool], captures: Sequence[CaptureDraft]) -> dict[str, Pool]:
    merged = {name: dict(pool) for name, pool in pools.items()}
    for draft in captures:
        for name, storages in shared_storages(draft.call.inputs, draft.shared).items():
            merged.setdefault(name, {}).update(storages)
    return merged


def _swap_in(folder: Path, target: Path) -> None:
    if not target.exists():
        folder.rename(target)
        return
    with scratch_folder(target.parent, scratch_prefix(target, "old")) as old:
        target.rename(old / OLD_SET)
        folder.rename(target)


def _manifest_value(
    op: str, note: str, files: dict[str, dict[str, Any]], entries: Sequence[CaptureEntry]
) -> dict[str, Any]:
    captures = [entry.model_dump(mode="json") for entry in entries]
    return {"version": FORMAT_VERSION, "op": op, "note": note, "files": files, "captures": captures}


def _write_manifest(folder: Path, value: dict[str, Any]) -> None:
    # Not run_folder.write_json: it sorts keys, and inputs keep the order of the call.
    text = json.dumps({**value, "seal": sealed(value).seal}, indent=1, allow_nan=False)
    write_atomic(folder / MANIFEST, text + "\n")


def draft_entry(draft: CaptureDraft, pools: Mapping[str, Pool]) -> tuple[CaptureEntry, bytes]:
    """The manifest entry and the file's bytes of one draft.

    Raises:
        CaptureError: a tensor cannot be kept, or a gather does not reproduce its input.
    """
    plain = {n: t for n, t in draft.call.inputs.items() if n not in draft.gathers}
    pinned = {f"pinned.{n}": t for n, t in draft.pinned.items()}
    packed = with_shared(pack({**plain, **pinned}, draft.encodings), draft.shared, pools, draft.name)
    gathered = {n: _gather_entry(n, draft, pools) for n in draft.gathers}
    indices = {rows.index_name: rows.index.contiguous() for rows in draft.gathers.values()}
    tensors = {n: gathered.get(n) or packed.tensors[n] for n in draft.call.inputs}
    outputs = {n: OutputEntry(dtype=dtype_name(t.dtype), shape=tuple(t.shape)) for n, t in draft.call.outputs.items()}
    value = {
        "name": draft.name,
        "kind": draft.kind,
        "seed": draft.seed,
        "file": f"{draft.name}.safetensors",
        "storages": packed.storages,
        "tensors": tensors,
        "scalars": draft.call.scalars,
        "outputs": outputs,
        "pinned": {n: packed.tensors[f"pinned.{n}"] for n in draft.pinned},
        "producer": draft.producer,
        "facts": draft.call.facts,
        "source": draft.source,
        "licence": draft.licence,
        "recorded": draft.recorded,
        "folded": draft.folded,
    }
    return _validated_entry(value), _saved({**packed.flats, **indices})


def _validated_entry(value: dict[str, Any]) -> CaptureEntry:
    try:
        return CaptureEntry.model_validate(value)
    except ValueError as error:
        reason = Reason(f"capture {value['name']!r}", str(error).replace("\n", " "), "what the format allows")
        raise CaptureError("captures", [reason]) from error


def _gather_entry(name: str, draft: CaptureDraft, pools: Mapping[str, Pool]) -> TensorEntry:
    rows = draft.gathers[name]
    tensor = draft.call.inputs[name].detach().cpu()
    pool = pools.get(rows.file, {}).get(rows.tensor)
    if pool is None:
        have = [f"{file}:{key}" for file, tensors in pools.items() for key in tensors]
        reason = Reason(f"{draft.name}: {name}.gather", f"{rows.file}:{rows.tensor}", ", ".join(have) or "no pool")
        raise CaptureError("captures", [reason])
    entry = TensorEntry(
        dtype=dtype_name(tensor.dtype),
        shape=tuple(tensor.shape),
        sha256=content_sha256(tensor),
        gather=Gather(file=rows.file, tensor=rows.tensor, index=rows.index_name),
    )
    reasons = gather_reasons(f"{draft.name}: {name}", entry, pool, rows.index)
    if not reasons and content_sha256(pool[rows.index.long()]) != entry.sha256:
        reasons = [Reason(f"{draft.name}: {name}", "other bits than its pool rows", "pool[index], bit for bit")]
    if reasons:
        raise CaptureError("captures", reasons)
    return entry


def _saved(tensors: Mapping[str, torch.Tensor]) -> bytes:
    return safetensors.torch.save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})


def _write_file(folder: Path, name: str, data: bytes) -> dict[str, Any]:
    # The manifest's schema refuses such a name too, but only after the file would lie outside the folder.
    if Path(name).name != name or name in (MANIFEST, "", ".", ".."):
        raise CaptureError("captures", [Reason("file name", repr(name), "a plain name inside the set")])
    write_atomic(folder / name, data)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


class SetWriter:
    """Adds captures to a set one at a time; the set opens after each, also when the process is killed.

    One writer a folder, from here to `close`, to the end of this object or of the process. An existing set
    of the same op is continued.

    Args:
        path: folder of the set, made when it is not there.
        op: name of the op, dotted.
        note: words on the whole set.
    Raises:
        CaptureError: another writer holds the folder, or it holds a set of another op, or a broken one.
    """

    def __init__(self, path: str | Path, op: str, note: str = "") -> None:
        self.path, self.op, self.note = Path(path), op, note
        self._entries: list[CaptureEntry] = []
        self._files: dict[str, dict[str, Any]] = {}
        self._lock = FolderLock(self.path)
        try:
            self._open()
        except BaseException:
            # The error's traceback keeps this object, and with it the lock, alive.
            self.close()
            raise

    def _open(self) -> None:
        recover(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / MANIFEST).exists():
            self._continue()
        else:
            self._write_manifest()

    def close(self) -> None:
        """Let another writer have the folder; nothing can be added after it."""
        self._lock.release()

    def _continue(self) -> None:
        manifest = read_manifest(self.path)
        if manifest.op != self.op:
            raise CaptureError("captures", [Reason("op", repr(self.op), f"{manifest.op!r}, the op of {self.path}")])
        self._entries = list(manifest.captures)
        self._files = {name: entry.model_dump() for name, entry in manifest.files.items()}
        self.note = manifest.note or self.note

    @property
    def entries(self) -> tuple[CaptureEntry, ...]:
        return tuple(self._entries)

    @property
    def bytes_written(self) -> int:
        """Bytes of all files of the set, the manifest left out."""
        return sum(int(entry["bytes"]) for entry in self._files.values())

    def add(self, draft: CaptureDraft, max_bytes: int | None = None) -> int:
        """Write one capture and the manifest that names it; returns the bytes of its file, 0 when over the limit.

        Args:
            draft: the capture; its name must be new.
            max_bytes: most bytes the set may hold; a capture that would pass it is left out.
        Raises:
            CaptureError: the writer is closed, the name is taken, or `draft_entry` refuses.
        """
        if not self._lock.held:
            reason = Reason("writer", "closed, or of the process this one was forked from", "one that holds its folder")
            raise CaptureError("captures", [reason])
        if any(entry.name == draft.name for entry in self._entries):
            raise CaptureError("captures", [Reason("name", repr(draft.name), "a name that the set does not hold yet")])
        entry, data = draft_entry(draft, {})
        if max_bytes is not None and self.bytes_written + len(data) > max_bytes:
            return 0
        self._files[entry.file] = _write_file(self.path, entry.file, data)
        self._entries.append(entry)
        self._write_manifest()
        return len(data)

    def _write_manifest(self) -> None:
        value = _manifest_value(self.op, self.note, self._files, self._entries)
        _write_manifest(self.path, value)
