"""Axes that both QSA decodes have: one query row a sequence, query heads in groups over key heads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DecodeShape:
    """Host-side facts of a decode call: B rows, HQ query heads, HKV key heads, D width."""

    B: int
    HQ: int
    HKV: int
    D: int
    scale: float
    """Of q·k."""

    @property
    def group(self) -> int:
        """Query heads that share one key head."""
        return self.HQ // self.HKV
