"""Gates of ops that round nothing: every limit is 0, and a floor that is not 0 is refused."""

from __future__ import annotations

import math

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops.exact import Limits, exact_gates, exact_limits


@pytest.mark.parametrize("kind", ["real", "synthetic"])
def test_every_limit_is_zero(kind: str) -> None:
    """Real and synthetic captures are judged alike: nothing may differ."""
    assert exact_limits("qsa.toy", kind, 0.0, 0.0) == exact_limits("qsa.toy", kind, 0.0) == Limits(0.0, 0.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("imagined", 0.0), r"qsa\.toy: kind is 'imagined'; allowed: 'real', 'synthetic'\."),
        (("real", 1e-9), r"qsa\.toy: floor is 1e-09; allowed: 0, since nothing is rounded\. Mend the oracle\."),
        (("real", math.nan), "floor is nan; allowed: 0"),
        (("real", 0.0, 0.5), "row_floor is 0.5; allowed: 0"),
    ],
)
def test_a_floor_or_an_unknown_kind_is_refused(arguments: tuple, words: str) -> None:
    """A floor above 0 says that oracle and emulation disagree, which no limit may hide."""
    with pytest.raises(ParameterError, match=words):
        exact_limits("qsa.toy", *arguments)


def test_the_table_names_every_check_and_its_changes() -> None:
    """One gate a check, the changed contents before the state, all of limit 0."""
    gates = exact_gates(("changed_lengths_shorter",))
    names = [gate.gate for gate in gates]
    assert names[:3] == ["error_fp32", "error_pinned", "row_max"]
    assert names[-2:] == ["changed_lengths_shorter", "state_zero"]
    assert {gate.real for gate in gates} == {gate.synthetic for gate in gates} == {0.0}
