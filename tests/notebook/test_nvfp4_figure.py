"""The pictures of recorded products say what the captures hold, and draw the same bytes each time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kda_lab.captures import nvfp4_operands
from kda_lab.captures.store import CaptureSet
from kda_lab.errors import CaptureError
from kda_lab.notebook.nvfp4_figure import cost_figure, operand_figure
from kda_lab.report.style import png_bytes

DATA = Path(__file__).parents[2] / "data" / "captures"
GEMMS = CaptureSet.open(DATA / "nvfp4.gemm")


def some(*names: str) -> CaptureSet:
    """A set of some of the committed captures."""
    entries = tuple(entry for entry in GEMMS.manifest.captures if entry.name in names)
    return replace(GEMMS, manifest=GEMMS.manifest.model_copy(update={"captures": entries}))


def test_a_weight_is_one_line_and_each_activation_another() -> None:
    """Labels in the order of the set; the cells print the shares of the codes."""
    picture = operand_figure(some("smollm2_down-M1", "smollm2_down-M9", "gemma3_down-M2"))
    labels = [label.get_text() for label in picture.axes[0].get_yticklabels()]
    assert labels == ["smollm2_down weight", "x, M=1", "x, M=9", "gemma3_down weight", "x, M=2"]
    shares = nvfp4_operands.weight(GEMMS.load("smollm2_down-M1").call).code_shares()
    assert [text.get_text() for text in picture.axes[0].texts[:8]] == [f"{100 * share:.0f}" for share in shares]


def test_the_title_gives_the_range_of_what_is_drawn() -> None:
    """Least and most share of zeros; least and most cost."""
    captures = some("smollm2_down-M1", "gemma3_down-M2")
    assert operand_figure(captures).title.startswith("8 % to 23 % of the codes are zero; nine of ten block scales")
    assert cost_figure(captures).title.startswith("Quantising both operands moves the product by 9.5 % to 14.0 %:")


def test_a_cost_line_has_three_marks_at_the_recorded_errors() -> None:
    """Activations, weight and product, in percent."""
    picture = cost_figure(some("smollm2_down-M1"))
    errors = GEMMS.entry("smollm2_down-M1").facts["quantisation_error"]
    drawn = [line.get_xdata()[0] for line in picture.axes[0].lines if line.get_marker() != "None"]
    assert isinstance(errors, dict) and drawn == [100 * errors[name] for name in ("x", "weight", "product")]
    assert {text.get_text() for text in picture.axes[0].texts} == {"activations alone", "weight alone", "product"}


@pytest.mark.parametrize("figure", [operand_figure, cost_figure])
def test_the_same_captures_draw_the_same_bytes(figure) -> None:  # type: ignore[no-untyped-def]
    """No date, no random order."""
    captures = some("gemma3_down-M1")
    assert png_bytes(figure(captures)) == png_bytes(figure(captures))


def test_sets_that_cannot_be_drawn_are_refused() -> None:
    """Another op, an empty set, captures without the fact."""
    qsa = CaptureSet.open(DATA / "qsa.packed_decode")
    with pytest.raises(
        CaptureError, match=r"captures is '15 captures of qsa\.packed_decode'; allowed: at least one of nvfp4"
    ):
        operand_figure(qsa)
    with pytest.raises(CaptureError, match=r"captures is '0 captures of nvfp4\.gemm'"):
        operand_figure(some())
    with pytest.raises(CaptureError, match=r"quantisation_error is absent in \['tp1-q1', "):
        cost_figure(qsa)
    with pytest.raises(CaptureError, match=r"quantisation_error is absent in \[\]"):
        cost_figure(some())
