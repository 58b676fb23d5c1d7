"""Rows of x: drawn ones from their seed, real ones from the committed capture, and what a record says of them."""

from __future__ import annotations

import pytest
import torch

from kda_lab.captures.store import CaptureSet
from kda_lab.errors import ParameterError
from kda_lab.projection import inputs
from kda_lab.projection.inputs import DRAWN, RealRows, extent_of, open_inputs

CPU = torch.device("cpu")
STATES = torch.arange(8 * 3).reshape(8, 3).bfloat16()
FOLDER = "data/captures/projection.inputs.smollm"
REAL = RealRows("smollm", "a model", 15, STATES, "abc")


def test_drawn_rows_are_those_of_their_seed() -> None:
    """The same twice and other ones for another seed or number; the committed runs drew from this very generator."""
    rows = DRAWN.take(4, 2, 6, CPU)
    assert torch.equal(rows, DRAWN.take(4, 2, 6, CPU)) and not torch.equal(rows, DRAWN.take(4, 3, 6, CPU))
    assert torch.equal(rows, torch.randn(4, 6, generator=torch.Generator().manual_seed(2004)).bfloat16())
    assert (DRAWN.record(), DRAWN.reasons(10**6, 7)) == ({"source": "random"}, [])


def test_real_rows_follow_the_text_and_wrap() -> None:
    """From the first row, seed 0; 101 rows later for the next seed; behind the last comes the first."""
    assert torch.equal(REAL.take(3, 0, 3, CPU), STATES[:3])
    assert torch.equal(REAL.take(8, 1, 3, CPU), torch.cat([STATES[5:], STATES[:5]]))
    taken = REAL.take(8, 0, 3, CPU)
    taken.zero_()
    assert torch.equal(REAL.take(8, 0, 3, CPU), STATES)


@pytest.mark.parametrize("tokens", [1, 4, 256])
def test_another_seed_gives_other_rows_throughout(tokens: int) -> None:
    """Every row of the timed ones differs from the next seed's row in its place: what was kept shows in all of them."""
    timed = open_inputs(FOLDER).timed
    one, two = (timed.take(tokens, seed, 576, CPU) for seed in (0, 1))
    assert not bool((one == two).all(1).any())


def test_rows_that_are_not_there_are_refused() -> None:
    """More tokens than the capture has, and another width: both reasons at once."""
    words = "tokens is 9; allowed: at most 8, the tokens of smollm layer 15. hidden is 4; allowed: 3, the width"
    with pytest.raises(ParameterError, match=words):
        REAL.take(9, 0, 4, CPU)
    assert [reason.field for reason in REAL.reasons(9, 3)] == ["tokens"]


def test_a_random_source_has_drawn_rows_alone() -> None:
    """They fit any width."""
    found = open_inputs("")
    assert (found.timed, found.compared, found.hidden) == (DRAWN, (DRAWN,), None)


def test_a_real_source_is_compared_with_drawn_rows() -> None:
    """Three layers behind the drawn rows; timed is the one with 256 tokens; records name model, layer and capture."""
    found = open_inputs(FOLDER)
    assert [rows.label for rows in found.compared] == ["random", "layer 0", "layer 15", "layer 29"]
    assert found.timed is found.compared[2] and found.hidden == 576
    assert found.timed.reasons(256, 576) == [] and found.timed.reasons(257, 576) != []
    record = found.timed.record()
    assert (record["source"], record["layer"]) == ("smollm", 15) and "SmolLM2" in record["model"]
    captures = CaptureSet.open(inputs.runtime.project_path(FOLDER))
    assert record["capture_sha256"] == captures.sha256_of("smollm2-layer15")


def test_an_unknown_folder_or_set_is_refused() -> None:
    """The message says what would do; a set of another op does not."""
    with pytest.raises(
        ParameterError, match=r"x_source is 'gemma'; allowed: a folder of captures of projection\.inputs"
    ):
        open_inputs("gemma")
    with pytest.raises(ParameterError, match=r"is 'kda.attn_residuals'; allowed: 'projection.inputs'"):
        open_inputs("data/captures/kda.attn_residuals.smollm")


def test_an_extent_tells_how_far_an_element_stands_out() -> None:
    """Three ones and a minus seven: largest 7, root mean square the root of 13."""
    found = extent_of(torch.tensor([[1.0, -7.0], [1.0, 1.0]]).bfloat16())
    assert (found.largest, found.rms) == (7.0, pytest.approx(13**0.5))
    assert found.peak == pytest.approx(7 / 13**0.5)
