"""Memory check of Triton's interpreter: a kernel may touch the storages of its own arguments and nothing else.

A GPU stops a program that leaves its allocations, often somewhere else and sometimes not at all; the interpreter reads
whatever lies there. So each address of a load, store or atomic that the mask lets through is looked up among the
storages of the launch's tensors. Gaps between the rows of a view belong to its storage: guard bands judge those.
"""

from __future__ import annotations

import functools
import inspect
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch

ACCESSES = {
    "create_masked_load": ("ptrs", "loads"),
    "create_masked_store": ("ptrs", "stores"),
    "create_atomic_cas": ("ptr", "updates"),
    "create_atomic_rmw": ("ptr", "updates"),
}
"""Builder methods that touch memory: name of their pointers' parameter, and the word for what they do."""
POINTER_BYTES = 8


@dataclass
class Arguments:
    """Storages of the launch that runs now: bytes from `starts` to `ends`, sorted and apart, with their tensors' names."""

    kernel: str = ""
    starts: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))
    ends: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._starts, self._ends = ([int(edge) for edge in edges] for edges in (self.starts, self.ends))

    @classmethod
    def of(cls, kernel: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> Arguments:
        """Of one launch; storages that touch or overlap are one entry."""
        spans: list[tuple[int, int, str]] = []
        for name, tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.nbytes():
                spans.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes(), name))
        merged: list[list[Any]] = []
        for start, end, name in sorted(spans):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(end, merged[-1][1])
                merged[-1][2] += f", {name}"
            else:
                merged.append([start, end, name])
        starts, ends = (np.array([m[place] for m in merged], np.uint64) for place in (0, 1))
        return cls(kernel, starts, ends, [m[2] for m in merged])

    def fault(self, addresses: np.ndarray, width: int) -> str:
        """What is wrong with accesses of `width` bytes at these addresses; empty when each lies in one storage."""
        if not addresses.size:
            return ""
        if not self.starts.size:
            return "the launch has no tensor that holds anything"
        if self.hold_together(addresses, width):
            return ""
        each = addresses.reshape(-1).astype(np.uint64)
        outside = self._owners(each, width) < 0
        return self._described(int(each[outside][0]), width, int(outside.sum())) if outside.any() else ""

    def hold_together(self, addresses: np.ndarray, width: int) -> bool:
        """Whether one storage holds all of these accesses: the lowest and the highest address say so; False without any."""
        if not addresses.size:
            return False
        # In Python's integers, which do not overflow and are quicker than arrays of two.
        place = bisect_right(self._starts, int(addresses.min())) - 1
        return place >= 0 and int(addresses.max()) + width <= self._ends[place]

    def _owners(self, addresses: np.ndarray, width: int) -> np.ndarray:
        """Number of the storage that holds each access; -1 where none does."""
        place = np.searchsorted(self.starts, addresses, "right").astype(np.int64) - 1
        start, end = self.starts[np.maximum(place, 0)], self.ends[np.maximum(place, 0)]
        # By differences, since the sum of an address and a width may pass 2^64.
        inside = (place >= 0) & (addresses < end) & (end - addresses >= np.uint64(width)) & (addresses >= start)
        return np.where(inside, place, -1)

    def _described(self, address: int, width: int, count: int) -> str:
        distances = []
        for start, end, name in zip(map(int, self.starts), map(int, self.ends), self.names, strict=True):
            if address < start:
                distances.append((start - address, f"{start - address} bytes before {name}"))
            elif address < end:
                distances.append((0, f"{address + width - end} bytes across the end of {name}"))
            else:
                distances.append((address - end + 1, f"{address - end} bytes behind {name}"))
        return f"{count} elements lie outside its tensors, the first of them {min(distances)[1]}"


def install(machine: ModuleType) -> None:
    """Check every access of every launch from now on; an access outside raises IndexError."""
    running = threading.local()

    def begun(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def checked(self: Any, args_dev: Any, kwargs: Any) -> Any:
            found = original(self, args_dev, kwargs)
            given = {**dict(zip(self.arg_names, found[0], strict=False)), **found[1]}
            running.launch = Arguments.of(getattr(self.fn, "__name__", "kernel"), _tensors(given.items()))
            return found

        return checked

    def access(original: Callable[..., Any], parameter: str, verb: str) -> Callable[..., Any]:
        names = list(inspect.signature(original).parameters)

        @functools.wraps(original)
        def checked(*arguments: Any, **options: Any) -> Any:
            given = {**dict(zip(names, arguments, strict=False)), **options}
            pointers, mask, launch = given[parameter], given.get("mask"), running.launch
            addresses, width = np.asarray(pointers.data), _width(pointers)
            # Mostly even the lanes that a mask keeps back point into the one tensor.
            if not launch.hold_together(addresses, width):
                if mask is not None:
                    addresses = addresses[np.broadcast_to(mask.data, addresses.shape).astype(bool)]
                fault = launch.fault(addresses, width)
                if fault:
                    raise IndexError(f"kernel {launch.kernel} {verb} memory that is not its own: {fault}.")
            return original(*arguments, **options)

        return checked

    executor, builder = machine.GridExecutor, machine.InterpreterBuilder
    executor._init_args_hst = begun(executor._init_args_hst)
    for name, (parameter, verb) in ACCESSES.items():
        setattr(builder, name, access(getattr(builder, name), parameter, verb))


def _tensors(given: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among arguments, also in tuples and behind what wraps one (a descriptor, another dtype's view)."""
    for name, value in given:
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, tuple):
            yield from _tensors((name, part) for part in value)
        elif isinstance(getattr(value, "base", None), torch.Tensor):
            yield name, value.base


def _width(pointers: Any) -> int:
    """Bytes of the element that each pointer points to."""
    element = pointers.dtype.scalar.element_ty
    return POINTER_BYTES if element.is_ptr() else max(1, element.primitive_bitwidth // 8)
