"""Isolated beside in-chain: each cache policy against the reference policy, in every place it was timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kda_lab.errors import ParameterError
from kda_lab.report import grouping, style
from kda_lab.report.foot import order_words
from kda_lab.report.numbers import DASH, measured, scientific, significant, span
from kda_lab.report.row_plot import Column, Layout, row_plot, set_ticks
from kda_lab.report.speedup_figure import band_edges, draw_rows
from kda_lab.report.style import VERDICT_STYLE, Picture
from kda_lab.report.tables import Table
from kda_lab.timing.chain.comparison import ALONE, CHAIN, gain_percent
from kda_lab.timing.protocol import COLD_L2_MULTIPLE
from kda_lab.timing.statistics import RowResult

TICKS = (
    0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 1, 1.005, 1.01, 1.02, 1.03, 1.05, 1.1, 1.2, 1.5, 2,
    5, 10,
)  # fmt: skip


def pipeline(results: Sequence[RowResult], *, foot: str = "") -> Picture:
    """Interval plot of the policies: under each policy one row a place, against the noise band of that place.

    Args:
        results: of `timing.chain.comparison.compare`; those with the role `policy` are drawn.
        foot: one sentence on GPU, clocks, trials and geometry.

    Raises:
        ParameterError: no result is a policy's.
    """
    policies = [r for r in results if r.role == "policy"]
    if not policies:
        raise ParameterError("report", "no result has the role 'policy'; allowed: at least one. Time the chain first.")
    ordered: list[RowResult | None] = []
    headings: list[str] = []
    for arm, members in grouping.grouped(policies, lambda r: r.arm).items():
        ordered += [None, *members]
        headings += [arm, *[""] * len(members)]
    layout = Layout(
        title=pipeline_title(policies),
        labels=[r.row if r is not None else None for r in ordered],
        headings=headings,
        columns=_columns(ordered),
        axis_label="reference time / policy time (log scale; right is faster)",
        foot=foot,
        notes=(
            *_places_note(policies),
            "grey band: noise floor of the place (A/A arm);  bar: bootstrap 95 % interval;  mark: ratio of medians",
        ),
    )
    with style.settings():
        plot = row_plot(layout, _limits(policies))
        draw_rows(plot, ordered, layout.columns)
        set_ticks(plot.axes, TICKS, [f"{v:g}×" for v in TICKS], anchor=1)
    return plot.picture


def pipeline_title(policies: Sequence[RowResult]) -> str:
    """What the chain says of the policies, and the largest isolated win that is none there, in one sentence."""
    chained = [r for r in policies if r.row == CHAIN]
    reference = next((r.baseline for r in policies if r.baseline), "the reference")
    judged = [r for r in chained if r.verdict and r.ratio]
    if not judged:
        return f"No policy has a verdict in the chain against {reference}"
    counts = {word: sum(r.verdict == word for r in judged) for word in VERDICT_STYLE}
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    best = max(judged, key=lambda r: r.ratio or 0)
    most = f"; the best of them is {best.arm}, {gain_percent(best.ratio)}"
    return f"In the chain, of {len(chained)} policies against {reference}: {told}{most}{_lost(policies, chained)}"


def _lost(policies: Sequence[RowResult], chained: Sequence[RowResult]) -> str:
    """The largest isolated win of a policy that the chain calls same or slower; empty when there is none."""
    became = {r.arm: r.verdict for r in chained}
    gone = [r for r in policies if r.verdict == "faster" and became.get(r.arm) in ("same", "slower")]
    if not gone:
        return ""
    largest = max(gone, key=lambda r: r.ratio or 0)
    rest = f" (and {len(gone) - 1} more)" if len(gone) > 1 else ""
    return f"; an isolated win is gone there: {largest.arm}, {largest.row}, {gain_percent(largest.ratio)}{rest}"


def _places_note(policies: Sequence[RowResult]) -> list[str]:
    apart = any(ALONE in r.row for r in policies)
    return ["isolated: the layer's products, each in a loop of its own, summed;  alone: one of them"] if apart else []


def pipeline_table(results: Sequence[RowResult]) -> Table:
    """Every arm in every place, all in microseconds of one layer; refused arms stay in with their reason."""
    heads = (
        "place",
        "arm",
        "role",
        "reference µs",
        "arm µs",
        "saved µs",
        "gain % [95 %]",
        "noise ± %",
        "verdict",
        "reason",
    )
    lines = tuple(
        (
            r.row, r.arm, r.role, significant(r.baseline_us, 4), significant(r.arm_us, 4), _saved(r), _gain(r),
            DASH if r.noise is None else f"{100 * r.noise:.2f}", r.verdict or DASH, r.reason,
        )
        for r in results
    )  # fmt: skip
    reference = next((r.baseline for r in results if r.baseline), DASH)
    caption = (
        f"One layer, in µs, against {reference}; an isolated layer is the sum of its products, timed apart; "
        "a product alone is in µs of that product."
    )
    return Table(caption, heads, frozenset({0, 1, 2, 8, 9}), lines)


def check_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """Every arm's chain as it was checked, untimed: right or what was wrong, error beside limit, hash of the outputs.

    Args:
        records: lines of `chain.jsonl`; checks and refusals are shown.
    """
    lines = tuple(dict.fromkeys(_check_line(r) for r in records if r["kind"] in ("check", "refused")))
    heads = ("arm", "role", "chain", "error", "limit", "outputs")
    caption = "Each chain once, untimed: first and last layer against the FP32 oracle, states, and bits."
    return Table(caption, heads, frozenset({0, 1, 2, 5}), lines)


def _check_line(record: Mapping[str, Any]) -> tuple[str, ...]:
    if record["kind"] == "refused":
        return record["arm"], record["role"], f"refused: {record['reason']}", DASH, DASH, DASH
    judged = record["recheck"]
    outputs = record["outputs_sha256"][:12] or "none"
    errors = scientific(judged["error"]), scientific(judged["limit"])
    return record["arm"], record["role"], judged["detail"] or "right", *errors, outputs


def chain_foot(timed: Sequence[dict[str, Any]]) -> str:
    """The small print: GPU, clocks, geometry of the chain, L2, trials and order, from the records of one run."""
    first = timed[0]
    device = first["provenance"].get("device", {})
    clocks = [r["telemetry"]["sm_clock_mhz"] for r in timed if measured(r["telemetry"].get("sm_clock_mhz"))]
    products = max(r["product_bytes"] for r in timed)
    order = order_words(timed)
    moved = first["layers"] * products / first["l2_bytes"]
    state = first["state_bytes"]
    parts = [
        str(device.get("name", "unknown device")),
        f"SM {span(clocks, 'MHz')}" if clocks else "",
        f"driver {device['driver']}" if device.get("driver") else "",
        f"{first['axes']['model']}, M = {first['axes']['M']}, {first['layers']} layers of {products / 1e6:.3g} MB of products "
        f"and {state / 1e6:.3g} MB of state, touched {first['touches_per_layer']} times; L2 {first['l2_bytes'] / 1e6:.3g} MB",
        ""
        if moved >= COLD_L2_MULTIPLE
        else f"not cold: the products of a pass are {moved:.2g}× L2, less than {COLD_L2_MULTIPLE:g}×",
        f"L2 not reset between arms: {first['l2_reset_reason']}"
        if first["l2_reset_reason"]
        else "L2 reset between arms",
        f"{len({r['trial'] for r in timed})} trials an arm, {sum(bool(r['dropped']) for r in timed)} dropped{f', {order}' if order else ''}",
        f"protocol {first['protocol']}",
    ]
    return " · ".join(part for part in parts if part)


def _saved(row: RowResult) -> str:
    if row.baseline_us is None or row.arm_us is None:
        return DASH
    return f"{row.baseline_us - row.arm_us:+.2f}"


def _gain(row: RowResult) -> str:
    if not measured(row.ratio):
        return DASH
    ends = ", ".join(DASH if v is None else f"{100 * (v - 1):+.2f}" for v in (row.low, row.high))
    return f"{100 * (row.ratio - 1):+.2f} [{ends}]"


def _columns(ordered: Sequence[RowResult | None]) -> tuple[Column, ...]:
    return (
        Column("gain % [95 %]", ["" if r is None else _gain(r) for r in ordered]),
        Column("ref. µs", ["" if r is None else significant(r.baseline_us, 4) for r in ordered]),
        Column("policy µs", ["" if r is None else significant(r.arm_us, 4) for r in ordered]),
        Column("verdict", ["" if r is None else (r.verdict or DASH) for r in ordered], align="left"),
    )


def _limits(policies: Sequence[RowResult]) -> tuple[float, float]:
    values = [1.0, 0.99, 1.01]
    for row in policies:
        values += [v for v in (row.ratio, row.low, row.high) if v is not None and measured(v) and v > 0]
        values += band_edges(row.noise) if row.noise is not None else []
    low, high = min(values), max(values)
    pad = (high / low) ** 0.06
    return low / pad, high * pad
