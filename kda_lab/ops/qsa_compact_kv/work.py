"""The least work of one `qsa.compact_kv` call: selected rows read once, the packed buffers written once."""

from __future__ import annotations

from kda_lab.ops.protocol import Call, Work

INDEX_BYTES = 4


def work(call: Call) -> Work:
    """Bytes of a call from host-side facts: `call.facts["counts"]`, else all columns of its rows; no FLOPs.

    Read: K and V rows of the valid tokens, one table entry each, and the rows' tokens, lengths and requests. Written:
    both packed buffers whole, since the rows behind the live end are zeroed, and the offsets.
    """
    tokens, pool = call.inputs["tokens"], call.inputs["k_pool"]
    counts = call.facts.get("counts")
    live = sum(counts) if counts is not None else tokens.numel()
    row_bytes = pool.shape[1] * pool.shape[2] * pool.element_size()
    rows = tokens.shape[0]
    packed = call.outputs["packed_k"].shape[0] * row_bytes
    return Work(
        bytes_read=2 * live * row_bytes + INDEX_BYTES * (live + tokens.numel() + 2 * rows),
        bytes_written=2 * packed + INDEX_BYTES * (rows + 1),
        flops=0,
    )


def copied_bytes(call: Call) -> int:
    """Bytes that move for the valid rows alone, read and written: what the compaction of the source thread moves."""
    pool = call.inputs["k_pool"]
    counts = call.facts.get("counts") or [call.inputs["tokens"].numel()]
    return 4 * sum(counts) * pool.shape[1] * pool.shape[2] * pool.element_size()
