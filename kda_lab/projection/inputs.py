"""Where the rows of x come from: drawn from a seed, or hidden states of a real model. Weights are drawn in either case.

Axes: M tokens of a call, T tokens of a capture, D width of x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kda_lab import runtime
from kda_lab.captures import projection_inputs
from kda_lab.captures.store import Capture, CaptureSet
from kda_lab.errors import ParameterError, Reason
from kda_lab.projection.sizes import ROOM

RANDOM = "random"
STEP = 101
"""Tokens between the first rows that two seeds take: odd, so that the seeds of a power of two of tokens all differ."""


class Rows(Protocol):
    """Gives rows of x."""

    @property
    def label(self) -> str:
        """What figures and tables call them: `layer 15`."""
        ...

    def record(self) -> dict[str, Any]:
        """What a record says of them, `source` first."""
        ...

    def take(self, tokens: int, seed: int, hidden: int, device: torch.device) -> torch.Tensor:
        """[M, D] bf16, contiguous, on memory of its own: the same for the same arguments, other rows for another seed.

        Raises:
            ParameterError: there are no such rows.
        """
        ...

    def reasons(self, tokens: int, hidden: int) -> list[Reason]:
        """Why there are no rows [M, D]; empty where there are."""
        ...


@dataclass(frozen=True)
class DrawnRows:
    """Rows drawn from a standard normal distribution."""

    @property
    def label(self) -> str:
        """See `Rows.label`."""
        return RANDOM

    def record(self) -> dict[str, Any]:
        """See `Rows.record`."""
        return {"source": RANDOM}

    def take(self, tokens: int, seed: int, hidden: int, device: torch.device) -> torch.Tensor:
        """See `Rows.take`."""
        generator = torch.Generator(device).manual_seed(1000 * seed + tokens)
        return torch.randn(tokens, hidden, generator=generator, device=device).bfloat16()

    def reasons(self, tokens: int, hidden: int) -> list[Reason]:
        """See `Rows.reasons`."""
        return []


DRAWN = DrawnRows()


@dataclass(frozen=True)
class RealRows:
    """Rows of one capture, in the order of the text, from its first one (seed 0) or later ones on; behind the last comes the first."""

    source: str
    """Name of the capture set behind the op's: `smollm`."""
    model: str
    layer: int
    states: torch.Tensor
    """[T, D] bf16, on the CPU."""
    sha256: str
    """Of the capture."""

    @property
    def label(self) -> str:
        """See `Rows.label`."""
        return f"layer {self.layer}"

    def record(self) -> dict[str, Any]:
        """See `Rows.record`."""
        return {"source": self.source, "model": self.model, "layer": self.layer, "capture_sha256": self.sha256}

    def take(self, tokens: int, seed: int, hidden: int, device: torch.device) -> torch.Tensor:
        """See `Rows.take`."""
        if reasons := self.reasons(tokens, hidden):
            raise ParameterError(ROOM, reasons)
        count = len(self.states)
        return self.states[(seed * STEP % count + torch.arange(tokens)) % count].to(device)

    def reasons(self, tokens: int, hidden: int) -> list[Reason]:
        """See `Rows.reasons`."""
        count, width = self.states.shape
        found = []
        if tokens > count:
            found.append(Reason("tokens", repr(tokens), f"at most {count}, the tokens of {self.source} {self.label}"))
        if hidden != width:
            found.append(Reason("hidden", repr(hidden), f"{width}, the width of {self.source} {self.label}"))
        return found


@dataclass(frozen=True)
class Inputs:
    """What a study multiplies its weights by."""

    timed: Rows
    compared: tuple[Rows, ...]
    """Rows on which the arms are compared with FP64: the drawn ones first, then the real ones."""
    hidden: int | None = None
    """Width of the real rows; None where all are drawn, which fit any width."""


def open_inputs(folder: str) -> Inputs:
    """The rows of one source.

    Args:
        folder: of a capture set of `projection.inputs`, below the project; empty: all rows are drawn. A set is timed on
            the layer with the most tokens, and compared on drawn rows too.

    Raises:
        ParameterError: no such folder, or captures of something else.
        CaptureError: the capture set is not what its manifest says.
    """
    if not folder:
        return Inputs(DRAWN, (DRAWN,))
    path = runtime.project_path(folder)
    if not path.is_dir():
        allowed = f"a folder of captures of {projection_inputs.OP}, or nothing for rows that are drawn"
        raise ParameterError(ROOM, [Reason("x_source", repr(folder), allowed)])
    captures = CaptureSet.open(path)
    if captures.op != projection_inputs.OP:
        raise ParameterError(ROOM, [Reason(f"op of {captures.path}", repr(captures.op), repr(projection_inputs.OP))])
    source = path.name.removeprefix(f"{projection_inputs.OP}.")
    real = [_rows(source, captures.load(name)) for name in captures.names()]
    timed = max(real, key=lambda rows: len(rows.states))
    return Inputs(timed, (DRAWN, *real), timed.states.shape[1])


def _rows(source: str, capture: Capture) -> RealRows:
    told = capture.entry.source
    return RealRows(source, told.model, told.layers[0], capture.call.inputs["x"], capture.sha256)


@dataclass(frozen=True)
class Extent:
    """How large the elements of x are."""

    largest: float
    """Largest magnitude."""
    rms: float
    """Root of the mean square."""

    @property
    def peak(self) -> float:
        """Largest magnitude over root mean square: 3 to 5 for normal rows, more where a few channels stand out."""
        return self.largest / self.rms


def extent_of(x: torch.Tensor) -> Extent:
    """The extent of a tensor that is not all zero."""
    wide = x.double()
    return Extent(float(wide.abs().max()), float(wide.square().mean().sqrt()))
