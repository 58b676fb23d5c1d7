"""Captures of `qsa.paged_decode`: small synthetic selections, and a real packed call scattered into a paged pool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kda_lab.captures.format import Source
from kda_lab.captures.store import Capture, CaptureSet
from kda_lab.captures.writing import CaptureDraft, write_set
from kda_lab.ops.qsa_paged_decode.calls import from_packed
from kda_lab.ops.qsa_paged_decode.cases import TOPOLOGIES, drawn

OP = "qsa.paged_decode"
SEED = 2026
SYNTHETIC: tuple[tuple[str, str, tuple[int, ...], str], ...] = (
    ("tp1-holes", "tp1", (6, 40), "draft"),
    ("tp2-verify", "tp2", (64, 65, 66, 67), "verify"),
    ("tp2-mixed", "tp2", (0, 1, 65, 17), "mixed"),
)
"""Name, topology, valid columns of each row, and kind, of the synthetic captures: a page costs 64 or 128 KB."""
POOL_FILE = "pool.safetensors"
REAL = ("tp2r0-q1",)
"""Captures of `qsa.packed_decode` that are scattered, each kept as a target call and as a draft call with holes."""


def write_paged_set(
    path: str | Path, packed: CaptureSet, *, real: Sequence[str] = REAL, seed: int = SEED, replace: bool = False
) -> Path:
    """Write the set; nothing is run, so the pinned outputs are those of the packed captures.

    Args:
        path: folder of the set.
        packed: the set of `qsa.packed_decode` that holds the real calls.
        real: names of its captures, of rows of at most 2051 tokens that select all of their tokens.
        seed: of the synthetic tensors, and of pages, requests and order of blocks of the real ones.
        replace: allow an existing set to be replaced.
    Returns:
        `path`, to be opened with `CaptureSet.open`.
    Raises:
        CaptureError: `packed` has no capture of one of the names, or the set is there and may not be replaced.
    """
    drafts = [draft for name in real for draft in _real(packed.load(name), seed)]
    drafts += [_synthetic(*row, seed) for row in SYNTHETIC]
    note = (
        "Real: q, K, V and the pinned output are those of a capture of qsa.packed_decode; which pages, slots and columns"
        f" they lie in is drawn from seed {seed}. Synthetic: drawn from seed {seed}, no model and no text was involved."
        " Pool slots that no row names hold NaN."
    )
    return write_set(path, OP, drafts, note=note, replace=replace)


def _real(capture: Capture, seed: int) -> list[CaptureDraft]:
    """The scattered call and its draft form, with the origin of the packed capture."""
    entry, drafts = capture.entry, []
    for call in from_packed(capture.call, seed):
        how = (
            f"K and V rows of capture {capture.name} of qsa.packed_decode, scattered into a pool of pages of 64 tokens:"
            f" token t of a row is its packed row t, the slot table and the order of the columns are drawn from seed"
            f" {seed}. The pinned output is the packed capture's. That capture: {entry.recorded}"
        )
        drafts.append(
            CaptureDraft(
                name=call.label,
                kind="real",
                call=call,
                source=entry.source,
                licence=entry.licence.replace("text.txt", f"text.txt of {capture.call.op}"),
                recorded=how,
                folded=entry.folded,
                pinned=capture.pinned,
                producer=entry.producer,
                shared=dict.fromkeys(("k_pool", "v_pool", "req_to_slot"), POOL_FILE),
            )
        )
    return drafts


def _synthetic(name: str, topology: str, counts: tuple[int, ...], kind: str, seed: int) -> CaptureDraft:
    return CaptureDraft(
        name=name,
        kind="synthetic",
        call=drawn(name, TOPOLOGIES[topology], counts, kind, seed),
        source=Source(),
        licence="CC0-1.0: random numbers",
        recorded=f"Drawn by the op's `drawn` from seed {seed}: {kind} rows of {', '.join(map(str, counts))} tokens.",
        folded="nothing",
        seed=seed,
    )
