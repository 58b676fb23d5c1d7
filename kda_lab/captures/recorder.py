"""Record the tensors of real calls: tap any Python callable by dotted name, inside a running program.

    with record("sglang.attention.packed_decode", op="qsa.packed_decode", directory="captures/live") as tap:
        serve()
    print(tap.statistics)

Only the named attribute is replaced and put back. A module that did `from pkg import function`
before keeps the original and is not tapped: name the place where the function is looked up.

In a process that one cannot edit, set `KDA_LAB_CAPTURE="target=op:directory"` and call
`install_from_environment()` from any start-up hook (`sitecustomize`, a plugin entry point).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kda_lab import runtime
from kda_lab.captures.binding import Target, resolve, stored
from kda_lab.captures.folder_lock import require_free
from kda_lab.captures.tap import About, Statistics, Tap
from kda_lab.errors import ParameterError, Reason

__all__ = ["About", "Statistics", "Tap", "install_from_environment", "record"]

LOG = logging.getLogger(__name__)
DEFAULT_MAX_BYTES = 1 << 30


@contextmanager
def record(
    target: str,
    *,
    op: str,
    directory: str | Path,
    every: int = 1,
    max_bytes: int = DEFAULT_MAX_BYTES,
    about: About | None = None,
) -> Iterator[Tap]:
    """Tap a callable while the block runs; the folder then opens with `CaptureSet.open`.

    Inputs are copied before the call, since the callee may write them; outputs after it. The call
    gets its own arguments and its result is handed on as it is. Nothing is recorded inside CUDA
    graph capture or torch.compile tracing. Failures are logged and counted, never raised.

    Args:
        target: `package.module.function` or `package.module.Class.method`.
        op: name under which the set is kept, dotted.
        directory: folder of the set; with several ranks each writes `rank<r>` inside.
        every: record each n-th call, the first included; at least 1.
        max_bytes: most bytes of tensors that are written.
        about: model, licence, output names, rank.
    Raises:
        ParameterError: the target cannot be found or replaced, or `every` or `max_bytes` is no int of at least 1.
        CaptureError: the folder is being recorded into; once recording has begun that is only counted.
    """
    tap, found = _tap(target, op, Path(directory), every, max_bytes, about or About())
    require_free(tap.path)
    _install(tap, found)
    try:
        yield tap
    finally:
        tap.close()
        _remove(tap, found)


_INSTALLED: dict[int, Any] = {}
"""Replacement by tap, so that only our own is taken out again."""


def _tap(target: str, op: str, directory: Path, every: int, max_bytes: int, about: About) -> tuple[Tap, Target]:
    given = (("every", every), ("max_bytes", max_bytes))
    reasons = [
        Reason(name, repr(value), "an int of at least 1")
        for name, value in given
        if type(value) is not int or value < 1
    ]
    if reasons:
        raise ParameterError("captures", reasons)
    return Tap(target, op, directory, every, max_bytes, about), resolve(target)


def _install(tap: Tap, found: Target) -> None:
    replacement = found.wrapping(tap.wrap(found))
    try:
        setattr(found.owner, found.attribute, replacement)
    # Classes written in C, objects with slots and properties take no new attribute.
    except (AttributeError, TypeError) as error:
        reason = Reason("target", f"{tap.target} ({error})", "an attribute that can be replaced")
        raise ParameterError("captures", [reason]) from error
    _INSTALLED[id(tap)] = replacement


def _remove(tap: Tap, found: Target) -> None:
    replacement = _INSTALLED.pop(id(tap))
    if stored(found.owner).get(found.attribute) is not replacement:
        # Someone wrapped the tapped function meanwhile; putting the original back would drop their wrapper.
        LOG.warning("captures: %s was replaced by others; the tap is off but stays below theirs", tap.target)
    elif found.own:
        setattr(found.owner, found.attribute, found.raw)
    else:
        delattr(found.owner, found.attribute)


def install_from_environment() -> Tap | None:
    """Tap what KDA_LAB_CAPTURE names, until the process ends; None when it is unset or unusable.

    The value is `target=op:directory`, e.g. `sglang.attention.packed_decode=qsa.packed_decode:/tmp/live`.
    A value that cannot be used is logged as an error and not raised: the host must start.
    """
    value = runtime.environment("KDA_LAB_CAPTURE")
    if not value:
        return None
    try:
        tap, found = _tap(*_parsed(value), every=1, max_bytes=DEFAULT_MAX_BYTES, about=About())
        _install(tap, found)
    # Expected: ParameterError, ImportError, TypeError, and whatever the target's module raises or exits with.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        LOG.error("captures: KDA_LAB_CAPTURE is %r; nothing is recorded: %s: %s", value, type(error).__name__, error)
        return None
    return tap


def _parsed(value: str) -> tuple[str, str, Path]:
    target, _, rest = value.partition("=")
    op, _, directory = rest.partition(":")
    if not (target and op and directory):
        raise ParameterError("captures", [Reason("KDA_LAB_CAPTURE", repr(value), "target=op:directory")])
    return target, op, Path(directory)
