"""The kinds of arms that the ops of Kimi Delta Attention are compared with: kernels in plain Triton, and fla-core's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kda_lab import interpreter, runtime
from kda_lab.ops import arms
from kda_lab.ops.protocol import Call, Launcher


def memory_of(call: Call) -> dict[str, torch.Tensor]:
    """The op's tensors as a launch may use them: the pools that it updates, and the inputs that it reads."""
    return {**call.inputs, **{name: call.outputs[name] for name in call.updated}}


@dataclass(frozen=True)
class TritonArm:
    """Kernels of this package that are written plainly, one launch after another, as a server would have them."""

    name: str
    sources: tuple[Path, ...]
    """The files whose kernels run."""
    launchers: Callable[[Sequence[Call]], list[Launcher]]
    """One launcher a call, from calls of one geometry, which may share scratch; imports the kernels."""
    reads_live_lengths: bool = True

    @property
    def source_sha256(self) -> str:
        """Of all its files, one behind the other."""
        return hashlib.sha256(b"".join(path.read_bytes() for path in self.sources)).hexdigest()

    def unavailable(self, device: torch.device) -> str:
        """Why its kernels cannot run on `device`; empty when they can."""
        return arms.cuda_or_interpreter(device, self.name)

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """One launcher a call; on a CPU the interpreter is mended first."""
        if calls[0].device.type == "cpu":
            interpreter.ensure_faithful()
        return self.launchers(calls)


@dataclass(frozen=True)
class FlaArm:
    """A function of fla-core. What it wants otherwise than the op is read on the host: a launcher serves that only."""

    name: str
    module: str
    """Dotted, below `fla`."""
    function: str
    launcher: Callable[[Any, Call], Launcher]
    """From the function and a call."""
    source_sha256: str = ""
    reads_live_lengths: bool = False

    def unavailable(self, device: torch.device) -> str:
        """Why fla-core cannot run on `device`; empty when it can."""
        if device.type != "cuda":
            return f"unavailable, because fla-core needs a CUDA device and this one is {device.type}"
        return runtime.import_optional(self.module).reason

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """One launcher a call."""
        function = getattr(runtime.import_optional(self.module).module, self.function)
        return [self.launcher(function, call) for call in calls]
