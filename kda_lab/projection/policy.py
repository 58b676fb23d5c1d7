"""When the projections are fused, in three published versions, and when a side stream is used: pure functions.

The thread (sglang PR 36206) relaxed the rule for full-rank output gates; what landed upstream is written differently and
decides the same. Each version is spelled the way its source spells it, so that the truth table compares three texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

BLACKWELL = 10
"""Major compute capability from which a launch may have more tokens on the side stream."""
SIDE_TOKENS, SIDE_TOKENS_BLACKWELL = 64, 128


@dataclass(frozen=True)
class Setting:
    """What the decision looks at."""

    full_rank_gate: bool
    """The output gate is one weight, not a product of two."""
    equal_sizes: bool
    """The attention's tensor-parallel group is the whole model's."""
    unquantised: bool
    """There is no quantisation configuration."""


def fuses_before(setting: Setting) -> bool:
    """Before the thread: equal groups always, and then unquantised weights or a full-rank gate."""
    return setting.equal_sizes and (setting.unquantised or setting.full_rank_gate)


def fuses_thread(setting: Setting) -> bool:
    """The thread: a full-rank gate is fused always, block-FP8 attention too; a low-rank one as before."""
    if setting.full_rank_gate:
        return True
    return setting.equal_sizes and setting.unquantised


def fuses_landed(setting: Setting) -> bool:
    """What landed: a flag for unquantised weights on equal groups; the forward fuses by the flag or the gate."""
    do_fuse = setting.unquantised and setting.equal_sizes
    return do_fuse or setting.full_rank_gate


VERSIONS: dict[str, Callable[[Setting], bool]] = {
    "before": fuses_before,
    "thread": fuses_thread,
    "landed": fuses_landed,
}


@dataclass(frozen=True)
class TruthRow:
    """One setting and what every version decides for it."""

    setting: Setting
    fused: dict[str, bool]
    """Version to its decision."""


def settings() -> tuple[Setting, ...]:
    """All eight settings, full-rank gates last."""
    return tuple(Setting(*values) for values in product((False, True), repeat=3))


def truth_table() -> tuple[TruthRow, ...]:
    """Every setting with every version's decision."""
    return tuple(TruthRow(s, {name: decide(s) for name, decide in VERSIONS.items()}) for s in settings())


def changed_settings(old: str, new: str) -> tuple[Setting, ...]:
    """Settings for which two versions decide differently."""
    return tuple(row.setting for row in truth_table() if row.fused[old] != row.fused[new])


EXPECTED_FUSED: dict[str, frozenset[tuple[int, int, int]]] = {
    "before": frozenset({(1, 1, 0), (1, 1, 1), (0, 1, 1)}),
    "thread": frozenset({(1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1), (0, 1, 1)}),
    "landed": frozenset({(1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1), (0, 1, 1)}),
}
"""Version to its fused settings as (full-rank gate, equal sizes, unquantised), read off the threads."""


def table_faults() -> list[str]:
    """Where the functions and the table read off the threads differ, one sentence each; empty when nowhere."""
    return [
        f"{name} says {row.fused[name]} for {row.setting}"
        for row in truth_table()
        for name in VERSIONS
        if row.fused[name] != (_key(row.setting) in EXPECTED_FUSED[name])
    ]


def _key(setting: Setting) -> tuple[int, int, int]:
    return int(setting.full_rank_gate), int(setting.equal_sizes), int(setting.unquantised)


def side_token_limit(capability: tuple[int, int] | None) -> int:
    """Most tokens of a launch that uses the side stream; that of older GPUs where there is no GPU to ask."""
    return SIDE_TOKENS_BLACKWELL if capability is not None and capability[0] >= BLACKWELL else SIDE_TOKENS


def uses_side_stream(tokens: int, *, present: bool, capturing: bool, limit: int) -> bool:
    """Whether the small projections run beside the large one.

    Args:
        tokens: of the launch; 0 uses no stream.
        present: a side stream was made.
        capturing: the launch is being captured into a CUDA graph; an eager one would pay for the events on the host.
        limit: `side_token_limit` of the GPU.
    """
    return present and capturing and 0 < tokens <= limit
