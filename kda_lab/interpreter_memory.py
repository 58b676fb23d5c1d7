"""Memory check of Triton's interpreter: a kernel may touch the storages of its own arguments and nothing else.

A GPU stops a program that leaves its allocations, often somewhere else and sometimes not at all; the interpreter reads
whatever lies there. So each address of a load, store or atomic that the mask lets through is looked up among the
storages of the launch's tensors. Gaps between the rows of a view belong to its storage: guard bands judge those.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch

ACCESSES = {
    "create_masked_load": (0, 1, "loads"),
    "create_masked_store": (0, 2, "stores"),
    "create_atomic_cas": (0, None, "updates"),
    "create_atomic_rmw": (1, 3, "updates"),
}
"""Builder methods that touch memory: places of pointers and mask among their arguments, and the word for what they do."""


@dataclass
class Arguments:
    """Storages of the launch that runs now: bytes from `starts` to `ends`, sorted, with the names of their tensors."""

    kernel: str = ""
    starts: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))
    ends: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))
    names: Sequence[str] = ()

    @classmethod
    def of(cls, kernel: str, tensors: dict[str, torch.Tensor]) -> Arguments:
        """Of one launch; tensors that share a storage are one entry."""
        found: dict[int, tuple[int, list[str]]] = {}
        for name, tensor in tensors.items():
            storage = tensor.untyped_storage()
            if storage.nbytes():
                found.setdefault(storage.data_ptr(), (storage.nbytes(), []))[1].append(name)
        order = sorted(found)
        starts = np.array(order, np.uint64)
        sizes = np.array([found[start][0] for start in order], np.uint64)
        return cls(kernel, starts, starts + sizes, [", ".join(found[start][1]) for start in order])

    def fault(self, addresses: np.ndarray, width: int) -> str:
        """What is wrong with accesses of `width` bytes at these addresses; empty when each lies in one storage."""
        if not addresses.size:
            return ""
        if not self.starts.size:
            return "the launch has no tensor that holds anything"
        # Most accesses lie in one tensor: then its lowest and highest address say so for all of them.
        low, high = self._owners(np.array([addresses.min(), addresses.max()], np.uint64), width)
        if low == high >= 0:
            return ""
        each = addresses.reshape(-1).astype(np.uint64)
        outside = self._owners(each, width) < 0
        return self._described(int(each[outside][0]), int(outside.sum())) if outside.any() else ""

    def _owners(self, addresses: np.ndarray, width: int) -> np.ndarray:
        """Number of the storage that holds each access; -1 where none does."""
        place = np.searchsorted(self.starts, addresses, "right").astype(np.int64) - 1
        inside = (place >= 0) & (addresses + np.uint64(width) <= self.ends[np.maximum(place, 0)])
        return np.where(inside, place, -1)

    def _described(self, address: int, count: int) -> str:
        distances = [
            (start - address, f"{start - address} bytes before {name}")
            if address < start
            else (address - end + 1, f"{address - end} bytes behind {name}")
            for start, end, name in zip(map(int, self.starts), map(int, self.ends), self.names, strict=True)
        ]
        return f"{count} elements lie outside its tensors, the first of them {min(distances)[1]}"


def install(machine: ModuleType) -> None:
    """Check every access of every launch from now on; an access outside raises IndexError."""
    launch = Arguments()

    def begun(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def checked(self: Any, args_dev: Any, kwargs: Any) -> Any:
            nonlocal launch
            found = original(self, args_dev, kwargs)
            given = {**dict(zip(self.arg_names, found[0], strict=False)), **found[1]}
            tensors = {n: t for n, t in given.items() if isinstance(t, torch.Tensor)}
            launch = Arguments.of(getattr(self.fn, "__name__", "kernel"), tensors)
            return found

        return checked

    def access(original: Callable[..., Any], at: int, mask_at: int | None, verb: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def checked(self: Any, *arguments: Any) -> Any:
            pointers, addresses = arguments[at], np.asarray(arguments[at].data)
            if mask_at is not None:
                addresses = addresses[np.broadcast_to(arguments[mask_at].data, addresses.shape).astype(bool)]
            fault = launch.fault(addresses, max(1, pointers.get_element_ty().primitive_bitwidth // 8))
            if fault:
                raise IndexError(f"kernel {launch.kernel} {verb} memory that is not its own: {fault}.")
            return original(self, *arguments)

        return checked

    executor, builder = machine.GridExecutor, machine.InterpreterBuilder
    executor._init_args_hst = begun(executor._init_args_hst)
    for name, (at, mask_at, verb) in ACCESSES.items():
        setattr(builder, name, access(getattr(builder, name), at, mask_at, verb))
