"""The least work of one `qsa.packed_decode` call: each live byte once, and the useful FLOPs."""

from __future__ import annotations

from kda_lab.ops.protocol import Call, Work

INDEX_BYTES = 4


def work(call: Call) -> Work:
    """Bytes and FLOPs of a call from host-side facts: `call.facts["lengths"]`, else its shapes.

    K and V count their live rows only, not the capacity of their buffers. FLOPs are two for each
    multiply-add of QK and of PV; padding a tile of query rows is not useful work and is not counted.
    No device memory is read.
    """
    q, k, out = call.inputs["q"], call.inputs["k"], call.outputs["out"]
    lengths = call.facts.get("lengths")
    live_rows = sum(lengths) if lengths is not None else k.shape[0]
    kv_bytes = 2 * live_rows * k.shape[1] * k.shape[2] * k.element_size()
    index_bytes = INDEX_BYTES * (call.inputs["cu_seqlens_q"].numel() + call.inputs["cu_seqlens_k"].numel())
    return Work(
        bytes_read=q.numel() * q.element_size() + kv_bytes + index_bytes,
        bytes_written=out.numel() * out.element_size(),
        flops=4 * q.shape[1] * q.shape[2] * live_rows,
    )
