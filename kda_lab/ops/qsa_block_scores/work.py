"""The least work of one `qsa.block_scores` call: each live key of each row once, and the useful FLOPs."""

from __future__ import annotations

from kda_lab.ops.protocol import Call, Work
from kda_lab.ops.qsa.geometry import PAGE_ENTRIES


def work(call: Call) -> Work:
    """Bytes and FLOPs of a call from host-side facts: `call.facts["lengths"]`, else its shapes.

    Keys count once a row, also where rows share pages; dead scores count as written. FLOPs are two for each
    multiply-add of the products. No device memory is read.
    """
    q, keys, pages, scores = (call.inputs["q_index"], call.inputs["keys"], call.inputs["pages"], call.outputs["scores"])
    lengths = call.facts.get("lengths")
    lengths = [pages.shape[1] * PAGE_ENTRIES] * q.shape[0] if lengths is None else lengths
    live = sum(lengths)
    live_pages = sum(-(-n // PAGE_ENTRIES) for n in lengths)
    index_bytes = live_pages * pages.element_size() + q.shape[0] * call.inputs["lengths"].element_size()
    return Work(
        bytes_read=q.numel() * q.element_size() + live * keys.shape[1] * keys.element_size() + index_bytes,
        bytes_written=scores.numel() * scores.element_size(),
        flops=2 * q.shape[1] * q.shape[2] * live,
    )
