"""The least work of one `kda.packed_decode` call: every state that a request names is read and written once."""

from __future__ import annotations

from kda_lab.ops.protocol import Call, Work

FLOPS_AN_ELEMENT = 7
"""Of the state: one product for the decay, two operations each for S k, the update and S q."""


def work(call: Call) -> Work:
    """Bytes and FLOPs of a call from host-side facts; no device memory is read.

    Padding (`facts["live"]` counts the others) costs its index and its zero row; its operands need not be read.
    """
    i, out = call.inputs, call.outputs["out"]
    batch, state = i["state_indices"].numel(), i["state"]
    live = int(call.facts.get("live", batch))
    slot = state[0].numel()
    operands = sum(i[n].shape[1] * i[n].element_size() for n in ("mixed_qkv", "a", "b"))
    weights = sum(i[n].numel() * i[n].element_size() for n in ("a_log", "dt_bias"))
    return Work(
        bytes_read=live * (slot * state.element_size() + operands) + weights + 4 * batch,
        bytes_written=live * slot * state.element_size() + out.numel() * out.element_size(),
        flops=FLOPS_AN_ELEMENT * live * slot,
    )
