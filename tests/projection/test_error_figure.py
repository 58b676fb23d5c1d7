"""The picture of errors on drawn and real x: what it says, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.projection.arms import FIVE, OUTPUTS, THREE
from kda_lab.projection.equality import EqualityRow
from kda_lab.projection.error_figure import input_errors
from kda_lab.projection.inputs import DRAWN, Extent, RealRows, Rows
from kda_lab.projection.plan import ARMS
from kda_lab.report import style

REAL = RealRows("smollm", "a model", 15, torch.ones(4, 2).bfloat16(), "abc")


def rows(x: Rows, extent: Extent, error: float) -> list[EqualityRow]:
    """A row an arm at 1 and 4 tokens; at 4 tokens plain fusion has other bits, and errors are a tenth larger."""
    return [
        EqualityRow(x, extent, arm, n, error * (1 + n / 40), dict.fromkeys(OUTPUTS, (arm, n) != (THREE, 4)), {})
        for n in (1, 4)
        for arm in ARMS
    ]


ALL = [*rows(DRAWN, Extent(4.0, 1.0), 2e-3), *rows(REAL, Extent(8.1, 0.3), 2.4e-3)]


def test_both_kinds_stand_beside_each_other() -> None:
    """The title has both worst errors and extents; a line a kind in each of three panels; bits as counts; the limit drawn."""
    picture = input_errors(ALL, "weights drawn")
    assert picture.title == (
        "Projection errors: at most 2.20e-3 on drawn x (|x| up to 4.0 × rms) and 2.64e-3 on real x "
        "(|x| up to 27 × rms), limit 5.00e-3"
    )
    assert len(picture.axes) == 3
    lines = [line for line in picture.axes[0].get_lines() if len(line.get_xdata()) == 2 and line.get_marker() != "None"]
    assert [list(line.get_ydata()) for line in lines] == [
        [r.error for r in ALL if r.arm == FIVE and r.x is x] for x in (DRAWN, REAL)
    ]
    assert any(list(line.get_ydata()) == [5e-3, 5e-3] for line in picture.axes[0].get_lines())
    texts = [text.get_text() for text in picture.texts]
    assert "weights drawn" in texts
    assert (
        "calls with the bits of five GEMMs: three 1 of 2 on drawn x, 1 of 2 on real x; "
        "three + side 2 of 2 on drawn x, 2 of 2 on real x"
    ) in texts
    assert {text.get_text() for text in picture.axes[1].texts} == {"random: 4.0", "layer 15: 27"}
    assert style.svg_text(picture) == style.svg_text(input_errors(ALL, "weights drawn"))


def test_an_arm_that_is_wrong_is_still_drawn() -> None:
    """An error above the limit widens the axis; one that is no number leaves a gap and stands in the title as none."""
    wrong = [replace(r, error=0.4) if r.arm == THREE else r for r in ALL]
    assert input_errors(wrong).axes[0].get_ylim()[1] > 0.4
    broken = [replace(r, error=float("nan")) if r.x is REAL else r for r in ALL]
    assert "— on real x" in input_errors(broken).title


def test_nothing_to_draw_is_refused() -> None:
    """No row, or none whose error is a number."""
    for given in ([], [replace(r, error=float("nan")) for r in ALL]):
        with pytest.raises(ParameterError, match="rows is empty or without an error that can be drawn"):
            input_errors(given)
