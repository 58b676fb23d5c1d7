"""The pipeline figure sets each policy's isolated results beside what became of them in the chain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kda_lab.errors import ParameterError
from kda_lab.report import style
from kda_lab.report.pipeline_figure import chain_foot, check_table, pipeline, pipeline_table, pipeline_title
from kda_lab.timing.statistics import RowResult

COLD, CHAIN = "isolated, cold", "in the chain"
Make = Callable[..., RowResult]


@pytest.fixture
def make() -> Make:
    """A result of a policy; keyword arguments replace fields."""
    base = RowResult(
        op="nvfp4.gemm", row=CHAIN, axes={"model": "9b"}, arm="k stream/persist", role="policy", baseline="k stream/stream",
        baseline_us=50.0, arm_us=50.4, ratio=0.9924, low=0.990, high=0.994, noise=0.003, verdict="slower", trials=7,
        dropped_trials=0, roof_us=None, roof_share=None, bandwidth_gb_s=None, state=CHAIN, reason="",
    )  # fmt: skip
    return lambda **changes: replace(base, **changes)


@pytest.fixture
def results(make: Make) -> list[RowResult]:
    """Two policies in two places, the baseline and the reference."""
    return [
        make(row=COLD, arm_us=49.4, ratio=1.012, low=1.010, high=1.014, verdict="faster"),
        make(),
        make(row=COLD, arm="k persist/stream", ratio=1.0, low=0.999, high=1.001, verdict="same"),
        make(arm="k persist/stream", ratio=1.001, low=0.999, high=1.005, verdict="ambiguous", reason="crosses"),
        make(arm="k stream/stream", role="reference", verdict="", ratio=1.0, low=1.0, high=1.0, reason="the reference"),
        make(arm="cublas_bf16", role="baseline", arm_us=140.0, ratio=0.357, low=0.35, high=0.36),
    ]


def texts(results: list[RowResult]) -> list[str]:
    """Every text of the figure's axes."""
    picture = pipeline(results, foot="H200 · 7 trials")
    return [text.get_text() for text in picture.axes[0].texts] + [text.get_text() for text in picture.texts]


def test_policies_are_drawn_place_by_place(results: list[RowResult]) -> None:
    """Each policy is a heading, its places the rows; baseline and reference are left to the table."""
    shown = texts(results)
    assert [t for t in shown if t in (COLD, CHAIN, "k stream/persist", "k persist/stream")] == [
        "k stream/persist", COLD, CHAIN, "k persist/stream", COLD, CHAIN,
    ]  # fmt: skip
    assert "cublas_bf16" not in shown
    assert "-0.76 [-1.00, -0.60]" in shown
    assert "+1.20 [+1.00, +1.40]" in shown
    assert "H200 · 7 trials" in shown


def test_the_title_tells_the_chain(results: list[RowResult]) -> None:
    """Counts by verdict in the chain, the fastest policy there, and the isolated win that became none."""
    assert pipeline_title([r for r in results if r.role == "policy"]) == (
        "In the chain, of 2 policies against k stream/stream: 1 slower, 1 ambiguous; "
        "the best of them is k persist/stream, +0.10 %; an isolated win is gone there: k stream/persist, isolated, cold, +1.20 %"
    )


def test_the_title_names_the_largest_win_that_is_gone(make: Make) -> None:
    """Others are counted; a win that stays, or that the chain leaves undecided, is not said to be gone."""
    won = {"ratio": 1.03, "verdict": "faster"}
    lost = [make(row="down alone (eight sets)", **won), make(row=COLD, ratio=1.01, verdict="faster"), make()]
    assert pipeline_title(lost).endswith(
        "an isolated win is gone there: k stream/persist, down alone (eight sets), +3.00 % (and 1 more)"
    )
    assert "gone" not in pipeline_title([make(row=COLD, **won), make(**won)])
    assert "gone" not in pipeline_title([make(row=COLD, **won), make(verdict="ambiguous")])


def test_products_apart_are_explained(make: Make, results: list[RowResult]) -> None:
    """A note says what `isolated` and `alone` mean, only where both are shown."""
    note = "isolated: the layer's products, each in a loop of its own, summed;  alone: one of them"
    assert note in texts([*results, make(row="down alone, cold")])
    assert note not in texts(results)


def test_checks_are_shown_with_their_limit() -> None:
    """A right chain, a wrong one, one refused twice in the same words; other kinds are no checks."""
    right = {"kind": "check", "arm": "a", "role": "policy", "outputs_sha256": "0123456789abcdef",
             "recheck": {"passed": True, "error": 0.00166, "limit": 0.002, "detail": ""}}  # fmt: skip
    wrong = {
        **right,
        "outputs_sha256": "",
        "recheck": {"passed": False, "error": None, "limit": 0.002, "detail": "off"},
    }
    refused = {"kind": "refused", "arm": "b", "role": "peer", "reason": "no GPU"}
    table = check_table([right, wrong, refused, {**refused, "device": "cpu"}, {"kind": "chain"}])
    assert table.lines == (
        ("a", "policy", "right", "1.66e-3", "2.00e-3", "0123456789ab"),
        ("a", "policy", "off", "—", "2.00e-3", "none"),
        ("b", "peer", "refused: no GPU", "—", "—", "—"),
    )


def test_without_a_verdict_the_title_says_so(make: Make) -> None:
    """A refused policy wins nothing."""
    refused = make(verdict="", ratio=None, low=None, high=None, arm_us=None, noise=None, reason="no such hint")
    assert pipeline_title([refused]) == "No policy has a verdict in the chain against k stream/stream"
    assert "—" in texts([refused])


def test_the_same_results_draw_the_same_bytes(results: list[RowResult]) -> None:
    """SVG text of two drawings is equal."""
    assert style.svg_text(pipeline(results)) == style.svg_text(pipeline(results))


def test_nothing_to_draw_is_refused(make: Make) -> None:
    """The words say what is missing."""
    with pytest.raises(ParameterError, match="no result has the role 'policy'; allowed: at least one"):
        pipeline([make(role="baseline")])


def test_the_table_keeps_every_arm(results: list[RowResult], make: Make) -> None:
    """Gains are signed and saved microseconds are absolute; a refused arm stays in with its reason."""
    refused = make(role="peer", arm="portable", verdict="", ratio=None, baseline_us=None, arm_us=None, noise=None,
                   reason="needs SM120")  # fmt: skip
    table = pipeline_table([*results, refused])
    assert len(table.lines) == 7
    assert table.lines[0] == (
        COLD, "k stream/persist", "policy", "50.00", "49.40", "+0.60", "+1.20 [+1.00, +1.40]", "0.30", "faster", "",
    )  # fmt: skip
    assert table.lines[6][3:] == ("—", "—", "—", "—", "—", "—", "needs SM120")
    assert "against k stream/stream" in table.caption


def test_the_foot_says_where_and_how() -> None:
    """GPU, clocks, geometry, L2, whether it was reset, trials and their order, read off the records."""
    shared = {"axes": {"model": "9b", "M": 8}, "layers": 8, "state_bytes": 24_000_000, "touches_per_layer": 2,
              "l2_bytes": 62_914_560, "l2_reset_reason": "", "dropped": "", "protocol": "chain v1", "product_bytes": 85_000_000,
              "provenance": {"device": {"name": "NVIDIA H200", "driver": "580"}},
              "telemetry": {"sm_clock_mhz": 1980}}  # fmt: skip
    timed = [
        {**shared, "arm": arm, "role": "policy", "trial": trial, "order": (number + trial) % 2}
        for trial in (0, 1) for number, arm in enumerate("ab")
    ]  # fmt: skip
    assert "not cold" not in chain_foot([{**r, "layers": 80} for r in timed])
    assert (
        chain_foot([{**r, "layers": 3} for r in timed]).count(
            "not cold: the products of a pass are 4.1× L2, less than 5×"
        )
        == 1
    )
    assert chain_foot(timed) == (
        "NVIDIA H200 · SM 1980 MHz · driver 580 · 9b, M = 8, 8 layers of 85 MB of products and 24 MB of state, "
        "touched 2 times; L2 62.9 MB · L2 reset between arms · 2 trials an arm, 0 dropped, order ABBA · protocol chain v1"
    )
    for record in timed:
        record |= {"order": "ab".index(record["arm"]), "l2_reset_reason": "unavailable, because"}
    assert "order not ABBA" in chain_foot(timed)
    assert "L2 not reset between arms: unavailable, because" in chain_foot(timed)
    assert "order" not in chain_foot(timed[:2])
