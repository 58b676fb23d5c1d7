"""The least work of one `kda.verify_ring` call."""

from __future__ import annotations

from kda_lab.ops.kda import verify_cases
from kda_lab.ops.protocol import Call, Work


def work(call: Call) -> Work:
    """Bytes and FLOPs from host-side facts: each state of a request read once, each output written once."""
    return verify_cases.work(call)
