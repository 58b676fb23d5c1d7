"""The least work of one `kda.attn_residuals` call: every row once, the weights once, every result once."""

from __future__ import annotations

from kda_lab.ops.protocol import Call, Work


def work(call: Call) -> Work:
    """Bytes and FLOPs of a call from shapes and scalars.

    With R = valid + 1 rows of D elements a token it reads R rows, one more where a delta is pending, and both weights;
    it writes `out`, the prefix where a delta was added, the snapshot where one is wanted. FLOPs: six an element of a
    row (score, square, mix) and five an element of the result.
    """
    bank, add, write = call.inputs["bank"], bool(call.scalars["add_delta"]), bool(call.scalars["write_prefix"])
    tokens, _, width = bank.shape
    rows = int(call.scalars["valid"] or 0) + 1
    line = tokens * width * bank.element_size()
    weights = sum(call.inputs[n].numel() * call.inputs[n].element_size() for n in ("score_weight", "out_weight"))
    return Work(
        bytes_read=(rows + add) * line + weights,
        bytes_written=(1 + add + write) * line,
        flops=tokens * width * (6 * rows + 5 + add),
    )
