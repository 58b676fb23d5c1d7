"""The least work of one `qsa.topk_blocks` call: live scores and lengths read once, ids written once."""

from __future__ import annotations

from kda_lab.ops.protocol import Call, Work


def work(call: Call) -> Work:
    """Bytes of a call from host-side facts: `call.facts["lengths"]`, else its shapes; no FLOPs, only comparisons.

    A row with no more columns than ids needs none of its scores: its ids are known.
    """
    scores, blocks = call.inputs["scores"], call.outputs["blocks"]
    rows, columns = scores.shape
    lengths = call.facts.get("lengths") or [columns] * rows
    read = sum(n for n in lengths if n > blocks.shape[1]) * scores.element_size()
    lengths_bytes = rows * call.inputs["lengths"].element_size()
    return Work(bytes_read=read + lengths_bytes, bytes_written=blocks.numel() * blocks.element_size(), flops=0)
