"""The least work of one `kda.replay_decode` call: checkpoints and records read, records appended, what is flushed."""

from __future__ import annotations

from kda_lab.ops.protocol import Call, Work


def work(call: Call) -> Work:
    """Bytes and FLOPs from host-side facts: live requests, their records, how many of them flush and append.

    A raw record is a delta, a key and a log-decay; a pre-decayed one a delta and a key, with one row of sums a ring.
    FLOPs: four for each element of a state, two dot products and two products of vectors for each record.
    """
    i, facts = call.inputs, call.facts
    HV, V, K = facts["HV"], facts["V"], facts["K"]
    rows = sum(i[n].numel() * i[n].element_size() for n in ("mixed_qkv", "a", "b", "a_log", "dt_bias", "state_indices"))
    state = HV * V * K * i["state"].element_size()
    keys = i["ring_k"].shape[1] * K * i["ring_k"].element_size()
    delta, sums = HV * V * i["ring_d"].element_size(), HV * K * i["ring_g"].element_size()
    ring = facts["records"] * (delta + keys) + sums * facts["filled" if facts["predecayed"] else "records"]
    appended = facts["appended"] * (delta + keys + sums)
    out = call.outputs["out"].numel() * call.outputs["out"].element_size()
    return Work(
        bytes_read=rows + 4 * facts["live"] + facts["live"] * state + ring,
        bytes_written=facts["flushed"] * state + appended + out,
        flops=4 * facts["live"] * HV * V * K + 4 * facts["records"] * HV * (K + V),
    )
