"""The least work of one `qsa.paged_decode` call: each live byte once, and the useful FLOPs."""

from __future__ import annotations

from kda_lab.ops.protocol import Call, Work

INDEX_BYTES = 4


def work(call: Call) -> Work:
    """Bytes and FLOPs of a call from host-side facts; no device memory is read.

    K and V count the distinct slots that the rows name (`facts["pool_rows"]`, since rows of one request may share
    tokens), with one table entry each; without that fact every valid column counts (`facts["lengths"]`), and without
    either every column. All of `tokens` counts, because only reading it tells which columns are valid. FLOPs are two
    for each multiply-add of QK and of PV; padding a tile of query rows is not useful work and is not counted.
    """
    i, out = call.inputs, call.outputs["out"]
    q, k_pool = i["q"], i["k_pool"]
    lengths = call.facts.get("lengths")
    columns = sum(lengths) if lengths is not None else i["tokens"].numel()
    slots = int(call.facts.get("pool_rows", columns))
    kv_bytes = 2 * slots * k_pool.shape[1] * k_pool.shape[2] * k_pool.element_size()
    index_bytes = INDEX_BYTES * (i["tokens"].numel() + i["lengths"].numel() + i["requests"].numel() + slots)
    return Work(
        bytes_read=q.numel() * q.element_size() + kv_bytes + index_bytes,
        bytes_written=out.numel() * out.element_size(),
        flops=4 * q.shape[1] * q.shape[2] * columns,
    )
