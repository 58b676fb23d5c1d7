"""The least work of one `kda.fused_decode` call: every state and window that a request names is read and written once."""

from __future__ import annotations

from kda_lab.ops.protocol import Call, Work

FLOPS_AN_ELEMENT = 7
"""Of the state; convolution and norm are some thousandths of that and are not counted."""
ROWS = ("mixed_qkv", "a", "b", "gate")
WEIGHTS = ("conv_weight", "a_log", "dt_bias", "norm_weight")


def work(call: Call) -> Work:
    """Bytes and FLOPs of a call from host-side facts; no device memory is read.

    Padding (`facts["live"]` counts the others) costs its index and its zero row; its operands need not be read.
    """
    i, out = call.inputs, call.outputs["out"]
    batch = i["state_indices"].numel()
    live = int(call.facts.get("live", batch))
    slot = i["state"][0].numel()
    pools = slot * i["state"].element_size() + i["conv_state"][0].numel() * i["conv_state"].element_size()
    operands = sum(i[n].shape[1] * i[n].element_size() for n in ROWS)
    weights = sum(i[n].numel() * i[n].element_size() for n in WEIGHTS)
    return Work(
        bytes_read=live * (pools + operands) + weights + 4 * batch,
        bytes_written=live * pools + out.numel() * out.element_size(),
        flops=FLOPS_AN_ELEMENT * live * slot,
    )
