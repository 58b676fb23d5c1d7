"""The least work of one `kda.chunk_prefill` call: each operand and live state once, and the products of chunks of 64."""

from __future__ import annotations

from kda_lab.ops.kda.chunked import CHUNK
from kda_lab.ops.protocol import Call, Work


def work(call: Call) -> Work:
    """Bytes and FLOPs of a call from host-side facts; no device memory is read.

    States are read where `facts["starting"]` sequences have one and written for `facts["live"]` of them. FLOPs count
    dense tiles of 64 tokens, without credit for triangles and without the inverse: 180 thousand a token and head at
    K = V = 128. The recurrence itself would take 7·K·V, but token by token.
    """
    i, out = call.inputs, call.outputs["out"]
    operands = [
        i[n] for n in ("q", "k", "v", "a", "beta", "a_log", "dt_bias", "cu_seqlens", "state_indices", "has_state")
    ]
    slot_bytes = i["state"][0].numel() * i["state"].element_size()
    live = int(call.facts.get("live", i["state_indices"].numel()))
    starting = int(call.facts.get("starting", live))
    (_, HV, V, K), tokens = i["state"].shape, out.shape[0]
    inside = 3 * CHUNK * K + 2 * CHUNK * V
    across = 3 * K * V
    return Work(
        bytes_read=sum(t.numel() * t.element_size() for t in operands) + starting * slot_bytes,
        bytes_written=out.numel() * out.element_size() + live * slot_bytes,
        flops=2 * tokens * HV * (inside + across),
    )
