"""Gates of top-k: exact, and refusing a floor."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa_topk_blocks import gates


def test_limits_are_zero_and_a_floor_is_refused() -> None:
    """Ids are integers: nothing may differ, and the error names the op."""
    assert gates.limits("synthetic", 0.0).error == 0.0
    with pytest.raises(ParameterError, match=r"qsa\.topk_blocks: floor is 0\.1; allowed: 0"):
        gates.limits("real", 0.1)
