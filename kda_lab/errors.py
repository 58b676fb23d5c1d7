"""The error tree of kda_lab, and `Reason`, the one value that says why something was refused.

KdaLabError
├── ContractError      (ValueError)    a call lies outside every contract that could serve it
├── CaptureError       (ValueError)    a capture file or manifest is not what it claims to be
├── KernelLoadError    (RuntimeError)  an exported kernel's files disagree with its contract
├── UnavailableError   (RuntimeError)  an optional library, device or arm cannot be used here
├── ParameterError     (ValueError)    a command, notebook or function got a value it does not allow
├── VerificationError  (AssertionError) a gate did not pass, or could not be evaluated
├── TimingError        (RuntimeError)  a measurement broke the timing protocol
├── ExportError        (RuntimeError)  a gate of the export failed; the package is untouched
├── AuditError         (ValueError)    a tree, revision or allow-list cannot be audited as it was given
└── RefereeError       (ValueError)    a claim, its data or a file of it is not what it has to be
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Reason:
    """Why one field was refused: what was given, what is allowed, what to do about it."""

    field: str
    """Name of the field, dotted: `q.dtype`."""
    given: str
    """`repr` of the value that was given."""
    allowed: str
    """The allowed values, as a person would write them."""
    remedy: str = ""
    """One sentence on what to do; empty when the field says it all."""

    def __str__(self) -> str:
        text = f"{self.field} is {self.given}; allowed: {self.allowed}."
        return f"{text} {self.remedy}" if self.remedy else text


def _told(reasons: Sequence[Reason]) -> str:
    """All reasons in a row; a remedy that several share stands behind the last of them."""
    last = {reason.remedy: place for place, reason in enumerate(reasons)}
    told = (r if last[r.remedy] == place else replace(r, remedy="") for place, r in enumerate(reasons))
    return " ".join(map(str, told))


class KdaLabError(Exception):
    """Base of every error that kda_lab raises on purpose.

    Args:
        room: the op or room that refuses, e.g. `qsa.packed_decode` or `timing`.
        reasons: all reasons found, not only the first; or one finished sentence.
    """

    def __init__(self, room: str, reasons: Sequence[Reason] | str) -> None:
        self.room = room
        self.reasons: tuple[Reason, ...] = () if isinstance(reasons, str) else tuple(reasons)
        text = reasons if isinstance(reasons, str) else _told(reasons)
        super().__init__(f"{room}: {text}")

    def __reduce__(self):  # type: ignore[no-untyped-def]
        text = str(self).split(": ", 1)[1]
        return (type(self), (self.room, self.reasons or text))


class ContractError(KdaLabError, ValueError):
    """A call lies outside every contract that could serve it; nothing was launched."""


class CaptureError(KdaLabError, ValueError):
    """A capture file or manifest is not what it claims to be; nothing was loaded."""


class KernelLoadError(KdaLabError, RuntimeError):
    """An exported kernel's files disagree with its contract; it was not imported."""


class UnavailableError(KdaLabError, RuntimeError):
    """An optional library, device or arm cannot be used here; the text says why."""


class ParameterError(KdaLabError, ValueError):
    """A command, notebook or function got a value it does not allow."""


class VerificationError(KdaLabError, AssertionError):
    """A gate did not pass, or could not be evaluated (a check that breaks fails closed)."""


class TimingError(KdaLabError, RuntimeError):
    """A measurement broke the timing protocol; its numbers were not kept."""


class ExportError(KdaLabError, RuntimeError):
    """A gate of the export failed; the package was left as it was."""


class RefereeError(KdaLabError, ValueError):
    """A claim, its data or a file that holds it is not what it has to be; nothing was judged."""


class AuditError(KdaLabError, ValueError):
    """A tree, a revision or an allow-list cannot be audited as it was given; nothing was written."""
