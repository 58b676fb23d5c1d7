"""The source threads of the project as data: what they printed, ready to be judged and recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kda_lab.errors import Reason, RefereeError
from kda_lab.referee.claim import Claim
from kda_lab.referee.readers import read
from kda_lab.referee.readers.derived_file import Derived, Status, read_derived

FOLDER = "data/claims"
THREADS: MappingProxyType[str, str] = MappingProxyType(
    {
        "sglang-36865-nvfp4": "NVFP4 GEMM, SM120 (sglang PR 36865)",
        "sglang-36845-qsa": "QSA decode, SM121 (sglang PR 36845)",
        "sglang-32890-kimi-k3": "Kimi K3 kernels (sglang PR 32890)",
        "sglang-36206-kda-fusion": "KDA projection fusion (sglang PR 36206)",
    }
)
"""Folder to title, in the order in which they are told."""


@dataclass(frozen=True)
class Thread:
    """One thread: its claims, and the derived numbers that it prints."""

    name: str
    title: str
    claims: tuple[Claim, ...]
    derived: tuple[Derived, ...]

    def claim(self, name: str) -> Claim:
        """One claim.

        Raises:
            RefereeError: there is none of that name.
        """
        found = {claim.name: claim for claim in self.claims}
        if name not in found:
            raise RefereeError("referee", [Reason("claim", repr(name), ", ".join(found))])
        return found[name]

    def of(self, status: Status) -> tuple[Derived, ...]:
        """Derived numbers of one status."""
        return tuple(d for d in self.derived if d.status == status)


def read_threads(folder: Path, names: Sequence[str] = tuple(THREADS)) -> list[Thread]:
    """Threads of a folder, each in a folder of its own with claims and `derived.csv`.

    Raises:
        RefereeError: no such thread, or a file of it is not as its reader wants it.
    """
    for name in names:
        if name not in THREADS:
            raise RefereeError("referee", [Reason("thread", repr(name), ", ".join(THREADS))])
    return [
        Thread(name, THREADS[name], tuple(read(folder / name)), tuple(read_derived(folder / name / "derived.csv")))
        for name in names
    ]
