"""The capture format, version 1: the pydantic models of `manifest.json`, its dtypes and its hashes.

A set is a folder: `manifest.json`, one safetensors file a call, and shared pool files where
several calls gather from the same rows. The manifest names every file with its SHA-256 and
every tensor with the SHA-256 of its content; a seal over the manifest makes an edited or
damaged manifest show. The seal finds accidents, it is no signature: whoever can write the
folder can seal it again. There is no pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, JsonValue, StringConstraints, model_validator

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MAX_TENSOR_BYTES = 16 << 30
"""Largest logical tensor that is built, so that a stride of 0 in a bad manifest cannot ask for terabytes."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
OpName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$")]
CaptureName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,119}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]*\.(safetensors|txt)$")]
"""A plain name inside the set's folder: no separator, so nothing outside the folder can be named."""
TensorName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")]
Extent = Annotated[int, Field(ge=0, lt=1 << 48)]
Scalar = bool | int | FiniteFloat | str | None

_NATIVE = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
_AS_BYTES = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"]
DTYPES: dict[str, torch.dtype] = {n: getattr(torch, n) for n in (*_NATIVE, *_AS_BYTES) if hasattr(torch, n)}
"""Dtypes a capture may hold, by the name the manifest uses."""
BYTE_DTYPES = frozenset(_AS_BYTES)
"""Dtypes that travel as uint8; their entry's `encoding` says so."""


def dtype_name(dtype: torch.dtype) -> str:
    """Name of a dtype without the `torch.` prefix: `bfloat16`."""
    return str(dtype).removeprefix("torch.")


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StorageEntry(_Data):
    """One flat stretch of memory, kept as a 1-D tensor; tensors that name the same storage alias."""

    dtype: str
    """Dtype of the 1-D tensor in the file; uint8 for FP8 data and where dtypes share a storage."""
    elements: Extent
    first_byte: Extent = 0
    """Bytes of the original storage before the stretch, a multiple of 256; 0 unless much was unused."""
    file: FileName | None = None
    """Pool file of the set that holds the stretch, shared by several calls; None for the call's own file."""

    @model_validator(mode="after")
    def _known(self) -> StorageEntry:
        if self.dtype not in DTYPES or self.dtype in BYTE_DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is none of {', '.join(_NATIVE)}")
        return self


class Strided(_Data):
    """A view of a storage: element (i, j, …) lies at offset + i·stride[0] + j·stride[1] + …"""

    storage: str
    stride: tuple[Extent, ...]
    offset: Extent
    """Elements from the start of the original storage, in the tensor's own dtype."""


class Gather(_Data):
    """Rows of a shared pool: content = pool[index], shape index.shape + pool.shape[1:], contiguous."""

    file: FileName
    """Pool file of the set."""
    tensor: str
    """[P, …] rows in that file."""
    index: str
    """int32 tensor in the call's own file, each entry in [0, P)."""


class TensorEntry(_Data):
    """One tensor of a call: what it is, and either how it lies in memory or where it is gathered from."""

    dtype: str
    shape: tuple[Extent, ...]
    sha256: Sha256
    """`content_sha256` of the tensor."""
    encoding: str = ""
    """How the bits are to be read when the dtype does not say it; required for FP8 and sub-byte data."""
    strided: Strided | None = None
    gather: Gather | None = None

    @model_validator(mode="after")
    def _consistent(self) -> TensorEntry:
        if (self.strided is None) == (self.gather is None):
            raise ValueError("exactly one of strided and gather must be given")
        if self.strided is not None and len(self.strided.stride) != len(self.shape):
            raise ValueError(f"{len(self.strided.stride)} strides for {len(self.shape)} dimensions")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is none of {', '.join(DTYPES)}")
        if self.dtype in BYTE_DTYPES and not self.encoding:
            raise ValueError(f"{self.dtype} travels as uint8 and needs an encoding")
        if math.prod(self.shape) * DTYPES[self.dtype].itemsize > MAX_TENSOR_BYTES:
            raise ValueError(f"more than {MAX_TENSOR_BYTES} bytes")
        return self


class OutputEntry(_Data):
    """A buffer that the call writes; allocated contiguous on load."""

    dtype: str
    shape: tuple[Extent, ...]

    @model_validator(mode="after")
    def _buildable(self) -> OutputEntry:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is none of {', '.join(DTYPES)}")
        if math.prod(self.shape) * DTYPES[self.dtype].itemsize > MAX_TENSOR_BYTES:
            raise ValueError(f"more than {MAX_TENSOR_BYTES} bytes")
        return self


class Source(_Data):
    """Where the tensors come from."""

    model: str = ""
    revision: str = ""
    text: str = ""
    """What the model was reading."""
    layers: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    """Query positions in the text, 0-based, one a row of the call."""
    rank: int = Field(default=0, ge=0)
    tensor_parallel_size: int = Field(default=1, ge=1)


class Producer(_Data):
    """What computed the pinned output."""

    name: str
    versions: dict[str, str] = {}
    interpreter: bool = False
    """Whether Triton's interpreter ran it on a CPU."""


class CaptureEntry(_Data):
    """One recorded call."""

    name: CaptureName
    kind: Literal["real", "synthetic"]
    seed: int | None = None
    """Seed of a synthetic capture; None for a real one."""
    file: FileName
    storages: dict[str, StorageEntry]
    tensors: dict[TensorName, TensorEntry]
    """Inputs of the call, by argument name."""
    scalars: dict[TensorName, Scalar]
    outputs: dict[TensorName, OutputEntry]
    pinned: dict[TensorName, TensorEntry]
    """Outputs that the producer wrote for these inputs; may be wrong, which is why it is kept."""
    producer: Producer | None = None
    facts: dict[str, JsonValue] = {}
    """Host-side axes: B, HQ, HKV, lengths …"""
    source: Source
    licence: str
    recorded: str
    """How it was recorded, in words."""
    folded: str
    """What was folded or resized to meet the op's contract, in words; `nothing` when nothing was."""

    @property
    def pool_files(self) -> frozenset[str]:
        """Files that the call shares with others: pools it gathers from, and pools that hold its storages."""
        gathered = {t.gather.file for t in self.tensors.values() if t.gather is not None}
        return frozenset(gathered | {storage.file for storage in self.storages.values() if storage.file is not None})

    @model_validator(mode="after")
    def _honest(self) -> CaptureEntry:
        if self.kind == "synthetic" and self.seed is None:
            raise ValueError("a synthetic capture needs its seed")
        if self.kind == "real" and (self.seed is not None or not self.source.model):
            raise ValueError("a real capture needs source.model and has no seed")
        if bool(self.pinned) != (self.producer is not None):
            raise ValueError("pinned outputs and their producer come together")
        return self


class FileEntry(_Data):
    """One file of the set."""

    bytes: Extent
    sha256: Sha256


class Manifest(_Data):
    """`manifest.json`."""

    version: Literal[1] = 1
    op: OpName
    note: str = ""
    files: dict[FileName, FileEntry]
    captures: tuple[CaptureEntry, ...]
    seal: Sha256
    """`manifest_seal` of everything else."""

    @model_validator(mode="after")
    def _closed(self) -> Manifest:
        names = [c.name for c in self.captures]
        if len(set(names)) != len(names):
            raise ValueError("two captures share a name")
        wanted = {c.file for c in self.captures}
        wanted |= {file for capture in self.captures for file in capture.pool_files}
        if missing := sorted(wanted - set(self.files)):
            raise ValueError(f"files lacks {', '.join(missing)}")
        return self


def manifest_seal(value: dict[str, Any]) -> str:
    """SHA-256 of a manifest's JSON value without its `seal`, keys sorted, no spaces."""
    body = {key: item for key, item in value.items() if key != "seal"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def content_sha256(tensor: torch.Tensor) -> str:
    """SHA-256 of a tensor's dtype, shape and elements in row-major order; strides do not count.

    Args:
        tensor: any shape, any dtype of `DTYPES`, any device, any strides.
    """
    digest = hashlib.sha256(f"{dtype_name(tensor.dtype)}{list(tensor.shape)}".encode())
    digest.update(as_bytes(tensor.detach().cpu().contiguous()).numpy().data)
    return digest.hexdigest()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory as a flat uint8 view."""
    # Not reshape: a contiguous tensor of one or no element may carry any stride, which view() refuses.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
