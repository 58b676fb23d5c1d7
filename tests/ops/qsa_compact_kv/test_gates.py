"""Gates of the compaction: exact, and refusing a floor."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa_compact_kv import gates


def test_limits_are_zero_and_a_floor_is_refused() -> None:
    """Rows are copies: nothing may differ, and the error names the op."""
    assert gates.limits("synthetic", 0.0).row_max == 0.0
    with pytest.raises(ParameterError, match=r"qsa\.compact_kv: floor is 0\.1; allowed: 0"):
        gates.limits("real", 0.1)
