"""Claims as CSV tables: runs, scores and summaries of traces."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kda_lab.errors import RefereeError
from kda_lab.referee.readers.table_file import read_table


def put(folder: Path, content: str) -> Path:
    """A table."""
    path = folder / "t.csv"
    path.write_text(content)
    return path


def test_rows_of_one_claim_are_one_comparison(tmp_path: Path) -> None:
    """Roles name the arms, `resolved.` and `published.` columns go where they belong, units are converted."""
    text = "claim,arm,role,round,hardware,e2e_mean_s,resolved.tp,superseded,published.change.e2e_mean_s,note\n"
    text += "x,unfused,baseline,1,GB300,161.229,16,,,first\nx,fused,candidate,1,GB300,157.630,16,,-2.23%,\n"
    text += "x,again,control,1,GB300,161.0,16,no,,\ny,a,baseline,,,1,,,,\ny,b,candidate,,,2,,yes,,\n"
    first, second = read_table(put(tmp_path, text))
    assert (first.name, first.baseline, first.candidate, first.metric) == ("x", "unfused", "fused", "e2e_mean_ms")
    assert [r.metrics["e2e_mean_ms"] for r in first.runs] == [161229.0, 157630.0, 161000.0]
    assert first.runs[0].resolved == {"tp": "16"}
    assert (first.runs[0].source.line, first.runs[0].source.note) == (2, "first")
    assert [(c.arm, c.repeats) for c in first.controls] == [("again", "unfused")]
    assert [(p.metric, p.value, p.digits) for p in first.published] == [("e2e_mean_ms", -2.23, 2)]
    assert (second.name, second.runs[0].round, second.runs[1].superseded) == ("y", None, True)


def test_without_roles_the_arms_are_named_after_them(tmp_path: Path) -> None:
    """A plain table of baseline and candidate is one claim, named after the file."""
    (claim,) = read_table(put(tmp_path, "arm,kernel_us\nbaseline,10\ncandidate,9\n"))
    assert (claim.name, claim.baseline, claim.candidate, claim.metric) == ("t", "baseline", "candidate", "kernel_us")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kernel_us\n3\n", r"header is \['kernel_us'\]; allowed: a column `arm`"),
        ("arm,speed\na,3\n", r"t\.csv:1: column is 'speed'; allowed: a known column"),
        ("arm,e2e_mean_s,e2e_mean_ms\nbaseline,1,1\n", r"one unit a metric"),
        ("arm,kernel_us\nx,3\n", r"t\.csv:2: role is 'x'; allowed: baseline, candidate, control"),
        ("arm,kernel_us\nbaseline,3\n", r"candidate arms is \[\]; allowed: exactly one"),
        ("arm,role,kernel_us\na,baseline,1\nb,candidate,1\nc,candidate,1\n", r"candidate arms is \['b', 'c'\]"),
        ("arm,kernel_us\nbaseline,3 us\ncandidate,1\n", r"t\.csv:2: kernel_us is '3 us'; allowed: a number"),
        ("arm,round,kernel_us\nbaseline,1.5,3\ncandidate,1,3\n", r"t\.csv:2: round is '1\.5'; allowed: a whole number"),
        ("arm,round,kernel_us\nbaseline,1,3\nbaseline,1,4\ncandidate,1,3\n",
         r"t\.csv:3: run is round 1 of 'baseline', as on line 2"),
        ("arm,superseded,kernel_us\nbaseline,maybe,3\ncandidate,,3\n", r"superseded is 'maybe'; allowed: yes, no or empty"),
        ("arm,kernel_us\nbaseline,\ncandidate,\n", r"t\.csv:2: metrics is none; allowed: at least one column"),
        ("arm,cache_state,kernel_us\nbaseline,hot,3\ncandidate,,3\n", r"t\.csv:2: cache_state is 'hot'"),
        ("arm,kernel_us,published.jump.kernel_us\nbaseline,3,\ncandidate,3,1%\n",
         r"column is 'published\.jump\.kernel_us'; allowed: published\.<statistic>\.<metric>, with change"),
        ("arm,kernel_us,published.change.kernel_us\nbaseline,3,\ncandidate,3,big\n", r"t\.csv:3: published.change.kernel_us is 'big'"),
        ("arm,role,kernel_us\n,baseline,3\nb,candidate,3\n", r"t\.csv:2: arm is ''; allowed: a name"),
        ("arm,summary,kernel_us\nbaseline,mean,3\ncandidate,,3\n", r"t\.csv:2: .*summary is 'mean' and summarises is 1"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    """Missing arms, mixed units, numbers with units, rounds that stand twice: one error."""
    with pytest.raises(RefereeError, match=message):
        read_table(put(tmp_path, text))


def test_scores_are_a_table_of_their_own(tmp_path: Path) -> None:
    """Digits as printed, questions and right answers where they are given."""
    text = "arm,name,score_percent,correct,questions\nbaseline,gsm8k,95.510,1255,1314\ncandidate,gsm8k,95.282,,1314\n"
    (claim,) = read_table(put(tmp_path, text))
    assert claim.question == "score"
    assert [(s.value, s.digits, s.correct, s.questions) for s in claim.scores] == [
        (95.51, 3, 1255, 1314),
        (95.282, 3, None, 1314),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "arm,score_percent,ttft_mean_ms\nbaseline,1,1\n",
            r"column is 'ttft_mean_ms'; allowed: claim, arm, role, name",
        ),
        (
            "arm,score_percent\nbaseline,\ncandidate,1\n",
            r"t\.csv:2: score_percent is ''; allowed: a number and its unit",
        ),
        ("arm,score_percent\nbaseline,3 ms\ncandidate,1\n", r"score_percent is '3 ms'"),
        ("arm,score_percent,questions\nbaseline,3,0\ncandidate,1,1\n", r"t\.csv:2: questions is 0"),
    ],
)
def test_wrong_scores_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """A score is a percentage, and its table holds nothing else."""
    with pytest.raises(RefereeError, match=message):
        read_table(put(tmp_path, text))


def test_slices_of_a_trace_are_one_run_an_arm(tmp_path: Path) -> None:
    """Slices of one process are no independent runs: their median stands for them, and says so."""
    text = "variant,step,wall_us,summed_kernel_us,kernels,union,overlap\n"
    text += "baseline,0,100,110,9,95,15\nbaseline,1,104,112,9,96,16\nbaseline,2,102,111,9,97,14\n"
    (claim,) = read_table(put(tmp_path, text + "candidate,0,90,120,8,85,35\n"))
    base, cand = claim.runs
    assert base.metrics == {"wall_us": 102, "summed_kernel_us": 111, "kernels": 9, "union_us": 96}
    assert (base.summarises, base.summary, cand.summarises, cand.summary) == (3, "median", 1, "")
    assert claim.metric == "wall_us"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("variant,step,wall_us\nbaseline,0,1\n", r"variants is \['baseline'\]; allowed: baseline and candidate"),
        ("variant,step,wall_us\nold,0,1\n", r"t\.csv:2: variant is 'old'; allowed: baseline, candidate, control"),
        ("variant,step,kernels\nbaseline,0,1\ncandidate,0,1\n", r"no wall_us; allowed: a column wall_us"),
    ],
)
def test_a_wrong_trace_summary_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Both arms and a wall time are needed."""
    with pytest.raises(RefereeError, match=message):
        read_table(put(tmp_path, text))


cells = st.floats(0, 1e9, allow_nan=False).map(lambda v: round(v, 6))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(("baseline", "candidate")), cells, cells), min_size=1, max_size=8))
def test_a_written_table_reads_back_equal(tmp_path: Path, rows: list[tuple[str, float, float]]) -> None:
    """Every cell comes back as it was typed, in order."""
    rows = [("baseline", 1.0, 2.0), ("candidate", 1.0, 2.0), *rows]
    text = "arm,kernel_us,ttft_mean_ms\n" + "".join(f"{a},{k!r},{t!r}\n" for a, k, t in rows)
    (claim,) = read_table(put(tmp_path, text))
    assert [(r.arm, r.metrics["kernel_us"], r.metrics["ttft_mean_ms"]) for r in claim.runs] == rows
