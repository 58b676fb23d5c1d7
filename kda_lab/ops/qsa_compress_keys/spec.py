"""Signature of `qsa.compress_keys`, and what runs where no kernel takes a call: the op's torch function."""

from __future__ import annotations

from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec(
    name="qsa.compress_keys",
    tensors=("k_raw", "requests", "positions", "slots", "ring", "weight", "cos_sin"),
    scalars=("eps",),
    outputs=("entries", "entry_slots", "new_ring"),
    fallback=("qsa_compress_keys_torch",),
    refusal="unsupported QSA compress keys call",
)
"""Token t of request q at position p completes a group where (p + 1) % r == 0:

entries[t]     = bf16(rope(rmsnorm(bf16(mean of the group's r raw keys), weight + 1), position p - (r - 1)))
entry_slots[t] = (slots[t] - (r - 1)) // r
elsewhere both are 0, and entry 0 of the cache is the trash. new_ring[q, p % r] = k_raw[t], the last token of a place.

k_raw     [T, 128] bf16: a request's tokens are adjacent, at ascending consecutive positions
requests  [T] int32, rows of the ring; positions [T] int32
slots     [T] int64, raw KV slots; a group's are consecutive from a multiple of r, since pages are; 0 marks padding
ring      [R, r, 128] bf16, pending raw keys of earlier steps: position p in place p % r; r is 4
weight    [128] bf16, less one; cos_sin [P, W] fp32: W/2 cosines, then W/2 sines a position
entries   [T, 128] bf16; entry_slots [T] int64; new_ring [R, r, 128] bf16
"""
