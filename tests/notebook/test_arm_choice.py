"""Empty lists of arms stand for all there are; a list that stays empty is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kda_lab.errors import ParameterError
from kda_lab.notebook.arm_choice import given_or_all
from kda_lab.ops.registry import load_op

OP = "qsa.packed_decode"


def test_given_names_stay_and_empty_lists_take_all(tmp_path: Path) -> None:
    """Candidates by their files, sorted; the op's arms in its own order, so that the baseline stays the first."""
    (tmp_path / OP).mkdir()
    for name in ("b.py", "a.py", "a.cu"):
        (tmp_path / OP / name).touch()
    own = [arm.name for arm in load_op(OP).baselines.ARMS]
    assert given_or_all(OP, [], [], tmp_path) == (["a", "b"], own)
    assert given_or_all(OP, ["b"], [own[1]], tmp_path) == (["b"], [own[1]])


def test_an_op_without_candidates_is_refused(tmp_path: Path) -> None:
    """Nothing stands for an empty list of kernels, and the words say where candidates belong."""
    with pytest.raises(ParameterError, match=r"'0 kernels and 1 baselines'; allowed: at least one of each. Candidates"):
        given_or_all(OP, [], ["per_head"], tmp_path)


def test_an_unknown_op_is_refused(tmp_path: Path) -> None:
    """By name, with the known ones."""
    with pytest.raises(ParameterError, match="op is 'no'"):
        given_or_all("no", ["x"], [], tmp_path)
