"""The least work of one `kda.fold` call: each state that takes a token read and written once, the accepted rows read."""

from __future__ import annotations

from kda_lab.ops.protocol import Call, Work


def work(call: Call) -> Work:
    """Bytes and FLOPs from host-side facts: `call.facts["taken"]` accepted tokens of each request with a slot.

    FLOPs: six for each element of a state and token.
    """
    i, facts = call.inputs, call.facts
    taken = [n for n in facts["taken"] if n]
    elements = facts["HV"] * facts["V"] * facts["K"]
    states = facts["Y"] * len(taken) * elements * i["state"].element_size()
    row = sum(i[n][0, 0, 0].numel() * i[n].element_size() for n in ("ring_k", "ring_v", "ring_g", "ring_beta"))
    indices = 4 * (i["state_indices"].numel() + i["accepted"].numel())
    tokens = facts["Y"] * sum(taken)
    return Work(bytes_read=states + tokens * row + indices, bytes_written=states, flops=6 * elements * tokens)
