"""Judgements as text, Markdown and JSON."""

from __future__ import annotations

import json
import math

from kda_lab.referee import render
from kda_lab.referee.claim import Claim, Level, Run, Score
from kda_lab.referee.judge import judge_all

SPEED = Claim(
    name="fusion",
    title="Five projections | three",
    thread="sglang PR 36206",
    runs=tuple(
        Run(arm=a, metrics={"throughput_tok_s": v})
        for a, values in (("baseline", (3038.33, 3055.28, 3061.53)), ("candidate", (3106.03, 3133.26, 3122.06)))
        for v in values
    ),
)
SCORES = Claim(
    name="score",
    question="score",
    scores=tuple(Score(arm=a, name="n", value=v, questions=200) for a, v in (("baseline", 99.0), ("candidate", 99.5))),
)
ODD = Claim(
    name="odd",
    question="gate",
    levels=(
        Level(name="a", baseline_us=2, candidate_us=1),
        Level(name="b", baseline_us=math.nan, candidate_us=1),
    ),
)
JUDGEMENTS = judge_all([SPEED, SCORES, ODD])


def test_a_row_holds_the_numbers() -> None:
    """Verdict, change, p and MDE, with a dash for what does not exist."""
    speed, score, odd = render.rows(JUDGEMENTS)
    assert speed == (
        "fusion",
        "throughput_tok_s",
        "inconclusive(separated, p = 0.10, n = 3)",
        "+2.19 %",
        "0.1",
        "—",
    )
    assert (score[1], score[3], score[5]) == ("score", "+0.50 points", "2.42 points")
    assert odd[3:] == ("—", "—", "—")


def test_the_text_shows_the_arithmetic() -> None:
    """Each finding with its lines, unless they are not wanted."""
    text = render.plain(JUDGEMENTS)
    assert "  [INCONCLUSIVE] separation: 3 v 3 runs cannot give p below 0.1" in text
    assert "      20 relabellings: p = 0.1, attainable minimum 0.1" in text
    assert "relabellings" not in render.plain(JUDGEMENTS, arithmetic=False)


def test_markdown_is_a_table_and_sections() -> None:
    """A bar inside a cell is escaped, and each claim has its section."""
    page = render.markdown(JUDGEMENTS)
    assert page.startswith("| claim | question | verdict | change | p | MDE |\n|---|---|---|---|---|---|\n| fusion |")
    assert "## fusion: inconclusive(separated, p = 0.10, n = 3)\n\nFive projections | three (sglang PR 36206)" in page
    assert render.markdown(JUDGEMENTS) == page


def test_json_is_strict() -> None:
    """NaN becomes null; the verdict stands as one text too."""
    content = json.loads(render.as_json(JUDGEMENTS), parse_constant=lambda word: 1 / 0)
    assert content[0]["verdict_text"] == "inconclusive(separated, p = 0.10, n = 3)"
    assert content[0]["numbers"]["p"] == 0.1
    assert content[2]["reached"] is False
