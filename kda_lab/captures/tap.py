"""A tap on one callable: copies the inputs before each call, writes the capture after it, counts everything."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kda_lab import runtime
from kda_lab.captures.binding import Arguments, Target, bind, named_results, of_op
from kda_lab.captures.facts import recorded_facts
from kda_lab.captures.format import CaptureEntry, Producer, Source, content_sha256
from kda_lab.captures.layout import pack, view
from kda_lab.captures.writing import CaptureDraft, SetWriter
from kda_lab.ops.protocol import Call
from kda_lab.ops.registry import load_op, op_names

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class About:
    """What a person knows of the calls that are recorded; goes into the manifest."""

    model: str = "not stated"
    revision: str = ""
    licence: str = "not stated"
    outputs: tuple[str, ...] = ("out",)
    """Names of the outputs: of the return value's tensors in order, or of arguments that are written."""
    rank: int | None = None
    """Rank in the tensor-parallel group where torch.distributed is not initialised."""


@dataclass
class Statistics:
    """What a tap did with the calls it saw. Every call is counted once under `seen` and once below it."""

    seen: int = 0
    recorded: int = 0
    sampled_out: int = 0
    in_graph_capture: int = 0
    nested: int = 0
    """Calls of the target made by the target, or by the recorder itself."""
    duplicates: int = 0
    over_quota: int = 0
    target_raised: int = 0
    failed: int = 0
    refused_arguments: int = 0
    """Arguments of recorded calls that were left out, all calls together."""
    bytes_written: int = 0
    last_failure: str = ""


@dataclass
class Tap:
    """A tapped callable. `statistics` may be read at any time; `path` is known after the first record."""

    target: str
    op: str
    directory: Path
    every: int
    max_bytes: int
    about: About
    statistics: Statistics = field(default_factory=Statistics)
    active: bool = True
    _writer: SetWriter | None = None
    _known: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _inside: threading.local = field(default_factory=threading.local)

    @property
    def path(self) -> Path:
        """Folder of the set: `directory`, or `directory/rank<r>` where there are several ranks."""
        rank = _rank(self.about)
        return self.directory if rank is None else self.directory / f"rank{rank}"

    def wrap(self, found: Target) -> Callable[..., Any]:
        """The replacement: calls the original with the very arguments it got, and returns its very result."""

        @functools.wraps(found.function)
        def tapped(*args: Any, **named: Any) -> Any:
            before = self._before(found, args, named)
            if before is None:
                return found.function(*args, **named)
            self._inside.busy = True
            try:
                result = found.function(*args, **named)
            except BaseException:
                self._count("target_raised")
                raise
            finally:
                self._inside.busy = False
            self._after(before, result)
            return result

        return tapped

    def close(self) -> None:
        """Stop recording and let another writer have the folder."""
        self.active = False
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _count(self, name: str, failure: str = "") -> None:
        with self._lock:
            setattr(self.statistics, name, getattr(self.statistics, name) + 1)
            if failure:
                self.statistics.last_failure = failure

    def _skip(self) -> str:
        """Name of the counter of a call that is not recorded; empty for one that is. Counts it as seen."""
        if getattr(self._inside, "busy", False):
            return "nested"
        if torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return "in_graph_capture"
        if (self.statistics.seen - 1) % self.every:
            return "sampled_out"
        return "over_quota" if self.statistics.bytes_written >= self.max_bytes else ""

    def _before(self, found: Target, args: tuple[Any, ...], named: dict[str, Any]) -> _Before | None:
        if not self.active:
            return None
        with self._lock:
            self.statistics.seen += 1
            skip = self._skip()
            if skip:
                setattr(self.statistics, skip, getattr(self.statistics, skip) + 1)
                return None
        self._inside.busy = True
        try:
            arguments = bind(found.function, args, named, found.bound_first)
            updated: tuple[str, ...] = ()
            if self.op in op_names():
                spec = load_op(self.op).spec
                arguments = of_op(arguments, spec)
                updated = spec.updated
            return _copied(arguments, self.about.outputs, updated)
        # Expected: arguments that do not fit, a device error while copying, no memory. The host must not notice.
        except Exception as error:  # noqa: BLE001
            self._failure("arguments", error)
            return None
        finally:
            self._inside.busy = False

    def _after(self, before: _Before, result: Any) -> None:
        self._inside.busy = True
        try:
            outputs = {**before.written, **named_results(result, self.about.outputs)}
            with self._lock:
                try:
                    self._write(before, {n: t.detach().cpu().clone() for n, t in outputs.items()})
                finally:
                    # A call that was under way when the recording ended opens the set once more.
                    if not self.active:
                        self._close()
        # Expected: a full disk, a folder that cannot be written or has another writer, a tensor name the format refuses.
        except Exception as error:  # noqa: BLE001
            self._failure("writing", error)
        finally:
            self._inside.busy = False

    def _failure(self, what: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        LOG.warning("captures: %s of %s not recorded: %s", what, self.target, text)
        self._count("failed", text)

    def _write(self, before: _Before, pinned: dict[str, torch.Tensor]) -> None:
        if self._writer is None:
            self._writer = SetWriter(self.path, self.op, note=f"Recorded from {self.target} in a running program.")
            self._known = {_key_of_entry(entry) for entry in self._writer.entries}
        key = before.key()
        if key in self._known:
            self.statistics.duplicates += 1
            return
        draft = self._draft(before, pinned, number=len(self._writer.entries))
        written = self._writer.add(draft, self.max_bytes)
        if not written:
            self.statistics.over_quota += 1
            return
        self._known.add(key)
        self.statistics.recorded += 1
        self.statistics.refused_arguments += len(before.refused)
        self.statistics.bytes_written += written

    def _draft(self, before: _Before, pinned: dict[str, torch.Tensor], number: int) -> CaptureDraft:
        rank = _rank(self.about) or 0
        call = Call(self.op, before.tensors, dict(before.scalars), pinned, facts=recorded_facts(before.tensors))
        left_out = "; ".join(f"{name}: {why}" for name, why in before.refused.items())
        return CaptureDraft(
            name=f"r{rank}-{number:06d}",
            kind="real",
            call=call,
            source=Source(
                model=self.about.model,
                revision=self.about.revision,
                rank=rank,
                tensor_parallel_size=_world(),
            ),
            licence=self.about.licence,
            recorded=f"Call {self.statistics.seen} of {self.target}, tapped in a running program; inputs copied before the call.",
            folded=f"Nothing was folded. Arguments left out: {left_out}." if left_out else "nothing",
            pinned=pinned,
            producer=Producer(name=self.target, versions=runtime.versions()) if pinned else None,
        )


@dataclass(frozen=True)
class _Before:
    """A call's arguments, copied before the call; `written` are the caller's output buffers, not copied."""

    tensors: dict[str, torch.Tensor]
    scalars: dict[str, Any]
    refused: dict[str, str]
    written: dict[str, torch.Tensor]

    def key(self) -> str:
        contents = sorted((name, content_sha256(t)) for name, t in self.tensors.items())
        return repr((contents, sorted((n, repr(s)) for n, s in self.scalars.items())))


def _key_of_entry(entry: CaptureEntry) -> str:
    contents = sorted((name, t.sha256) for name, t in entry.tensors.items())
    return repr((contents, sorted((n, repr(s)) for n, s in entry.scalars.items())))


def _copied(arguments: Arguments, outputs: tuple[str, ...], updated: tuple[str, ...]) -> _Before:
    """What the call begins with; a tensor that the op updates in place is among the inputs and among what is written."""
    written = {n: t for n, t in arguments.tensors.items() if n in (*outputs, *updated)}
    scalars = {n: s for n, s in arguments.scalars.items() if n not in outputs}
    packed = pack({n: t for n, t in arguments.tensors.items() if n not in outputs or n in updated})
    tensors = {}
    for name, entry in packed.tensors.items():
        if entry.strided is not None:
            key = entry.strided.storage
            tensors[name] = view(entry, packed.storages[key], packed.flats[key])
    return _Before(tensors, scalars, arguments.refused, written)


def _rank(about: About) -> int | None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return about.rank


def _world() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1
