"""Reading and sealing `manifest.json`: each way in which it can be wrong has its own refusal."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kda_lab.captures.format import FORMAT_VERSION, MANIFEST, Manifest, manifest_seal
from kda_lab.errors import CaptureError, Reason

RERECORD = "Record the set again, or fetch it again."


def read_manifest(folder: Path) -> Manifest:
    """Read, check and return the manifest of a set.

    Raises:
        CaptureError: the file is missing, is no JSON, has another version, breaks the schema, or
            does not carry its own seal.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise CaptureError("captures", [Reason("manifest", repr(str(path)), "an existing file", RERECORD)])
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        reason = Reason("manifest", f"{path}: {error}", "JSON in UTF-8", RERECORD)
        raise CaptureError("captures", [reason]) from error
    if not isinstance(value, dict):
        raise CaptureError("captures", [Reason("manifest", f"{path}: a {type(value).__name__}", "a JSON object")])
    if value.get("version") != FORMAT_VERSION or isinstance(value["version"], bool):
        reason = Reason(f"{path}: version", repr(value.get("version")), str(FORMAT_VERSION), RERECORD)
        raise CaptureError("captures", [reason])
    return _validated(value, str(path))


def _validated(value: dict[str, Any], where: str) -> Manifest:
    try:
        manifest = Manifest.model_validate(value)
    except ValidationError as error:
        reasons = [
            Reason(f"{where}: {'.'.join(map(str, e['loc'])) or 'manifest'}", _short(e["input"]), e["msg"])
            for e in error.errors()
        ]
        raise CaptureError("captures", reasons) from error
    if manifest.seal != manifest_seal(value):
        reason = Reason(f"{where}: seal", repr(manifest.seal), repr(manifest_seal(value)), RERECORD)
        raise CaptureError("captures", [reason])
    return manifest


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def sealed(value: dict[str, Any]) -> Manifest:
    """A manifest made of a JSON value without its seal.

    Raises:
        CaptureError: the value breaks the schema; each field is named.
    """
    return _validated({**value, "seal": manifest_seal(value)}, MANIFEST)


def read_checked(folder: Path, manifest: Manifest, name: str) -> bytes:
    """The bytes of one file of a set, read once, after size and SHA-256 agree with the manifest.

    Raises:
        CaptureError: the file is missing, shorter or longer than stated, or has another hash.
    """
    path, entry = folder / name, manifest.files[name]
    if not path.is_file():
        raise CaptureError("captures", [Reason("file", repr(str(path)), "an existing file", RERECORD)])
    size = path.stat().st_size
    if size != entry.bytes:
        raise CaptureError("captures", [Reason(f"{path}: size in bytes", repr(size), str(entry.bytes), RERECORD)])
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != entry.sha256:
        raise CaptureError("captures", [Reason(f"{path}: sha256", repr(digest), repr(entry.sha256), RERECORD)])
    return data
