"""Axes of a decode call."""

from __future__ import annotations

from kda_lab.ops.qsa.decode_shape import DecodeShape


def test_heads_are_shared_in_groups() -> None:
    """Twelve query heads a key head, in both topologies."""
    assert [DecodeShape(1, *heads, 256, 0.0625).group for heads in ((24, 2), (12, 1))] == [12, 12]
