"""The least work of one `qsa.expand_blocks` call: every byte of its buffers once."""

from __future__ import annotations

from kda_lab.ops.protocol import Call, Work


def work(call: Call) -> Work:
    """Bytes of a call from its shapes: blocks, lengths and positions read, tokens written; no FLOPs."""
    read = sum(call.inputs[name].numel() * call.inputs[name].element_size() for name in call.inputs)
    tokens = call.outputs["tokens"]
    return Work(bytes_read=read, bytes_written=tokens.numel() * tokens.element_size(), flops=0)
