"""The fusing rule in three versions, and the rule of the side stream."""

from __future__ import annotations

import pytest

from kda_lab.projection import policy
from kda_lab.projection.policy import Setting

FULL_UNEQUAL = {Setting(True, False, False), Setting(True, False, True)}


def test_the_functions_agree_with_the_threads() -> None:
    """Eight settings in three versions, against the table read off the threads."""
    assert policy.table_faults() == []
    assert len(policy.truth_table()) == 8


def test_the_thread_changed_exactly_two_rows() -> None:
    """Full-rank gates on unequal groups, quantised or not; what landed decides as the thread."""
    assert set(policy.changed_settings("before", "thread")) == FULL_UNEQUAL
    assert policy.changed_settings("thread", "landed") == ()


def test_block_fp8_attention_is_fused_with_a_full_rank_gate() -> None:
    """Quantised weights on unequal groups: refused before, fused since."""
    mixed = Setting(full_rank_gate=True, equal_sizes=False, unquantised=False)
    assert [decide(mixed) for decide in policy.VERSIONS.values()] == [False, True, True]


def test_a_wrong_function_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that forgets the gate differs from its table in four settings."""
    monkeypatch.setitem(policy.VERSIONS, "before", lambda s: s.equal_sizes)
    assert policy.table_faults() == [
        "before says True for Setting(full_rank_gate=False, equal_sizes=True, unquantised=False)"
    ]


@pytest.mark.parametrize(
    ("tokens", "present", "capturing", "used"),
    [(1, True, True, True), (64, True, True, True), (65, True, True, False), (0, True, True, False),
     (4, False, True, False), (4, True, False, False)],
)  # fmt: skip
def test_the_side_stream_needs_all_of_its_conditions(tokens: int, present: bool, capturing: bool, used: bool) -> None:
    """A stream, a capture, and from 1 to 64 tokens."""
    assert policy.uses_side_stream(tokens, present=present, capturing=capturing, limit=64) is used


def test_blackwell_may_have_more_tokens() -> None:
    """128 from capability 10 on, 64 before it and where nobody knows."""
    limits = [policy.side_token_limit(c) for c in ((9, 0), (10, 0), (12, 1), None)]
    assert limits == [64, 128, 128, 64]
