"""The least work of one `qsa.compress_keys` call: its keys and indices once, the groups' older keys, the ring twice."""

from __future__ import annotations

from kda_lab.ops.protocol import Call, Work


def work(call: Call) -> Work:
    """Bytes and FLOPs of a call from host-side facts: `call.facts["complete"]` groups, else one for each r tokens.

    The ring is copied, since its old state stays readable: it counts as read and as written. FLOPs: per element of a
    complete group r - 1 additions, two for the norm's sum, three for its scale and six for the rotation.
    """
    k_raw, ring, cos_sin = call.inputs["k_raw"], call.inputs["ring"], call.inputs["cos_sin"]
    ratio = ring.shape[1]
    complete = call.facts.get("complete", k_raw.shape[0] // ratio)
    indices = sum(call.inputs[n].numel() * call.inputs[n].element_size() for n in ("requests", "positions", "slots"))
    weight = call.inputs["weight"]
    read = k_raw.numel() * k_raw.element_size() + ring.numel() * ring.element_size() + indices
    read += weight.numel() * weight.element_size() + complete * cos_sin.shape[1] * cos_sin.element_size()
    written = sum(tensor.numel() * tensor.element_size() for tensor in call.outputs.values())
    return Work(bytes_read=read, bytes_written=written, flops=complete * k_raw.shape[1] * (ratio - 1 + 11))
