"""Two files go through reading, slicing and comparing with one set of settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from kda_lab.errors import RefereeError
from kda_lab.referee.slices.pair import compare_files
from kda_lab.referee.slices.settings import CategoryEntry, SliceSettings
from kda_lab.referee.slices.steps import Marker

CUT = Marker("moe_fused_gate", 12, 4, 8)


@pytest.fixture
def paths(files: dict[str, Path]) -> tuple[Path, Path]:
    """One trace of each format."""
    return files["made_up_unfused.sqlite"], files["made_up_fused.pt.trace.json.gz"]


def test_the_two_formats_may_be_mixed(paths: tuple[Path, Path]) -> None:
    """A trace is a trace."""
    found = compare_files(*paths, CUT)
    assert found.candidate.shown.wall_ns - found.baseline.shown.wall_ns == -25_964
    assert [len(a.measures) for a in found.arms] == [1, 5]


def test_settings_reach_every_step(paths: tuple[Path, Path]) -> None:
    """Size, device, categories and the limit of `other`."""
    for settings, message in (
        (SliceSettings(other_limit_percent=0.5), "share of category other in percent is 0.9"),
        (SliceSettings(device=3), "device is 3; allowed: 0"),
    ):
        with pytest.raises(RefereeError, match=message):
            compare_files(*paths, CUT, settings)
    own = SliceSettings(categories=(CategoryEntry(name="quant", patterns=("group_quant",)),), other_limit_percent=0)
    assert compare_files(*paths, CUT, own).baseline.shown.category_kernels["quant"] == 4
