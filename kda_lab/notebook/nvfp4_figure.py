"""The pictures of recorded NVFP4 products: how codes and block scales are spread, and what quantising costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from kda_lab.captures import nvfp4_operands
from kda_lab.captures.store import CaptureSet
from kda_lab.errors import CaptureError, Reason
from kda_lab.report.style import ARM_COLOURS, BLUE, GREY, HAIR, SMALL_PT, VERMILLION, Picture, new_picture, settings

WIDTH_IN, ROW_IN, TOP_IN, BOTTOM_IN = 10.0, 0.24, 0.62, 0.5
SHARES = (0.0, 0.05, 0.5, 0.95, 1.0)
LARGEST_SCALE, SMALLEST_SCALE = 448, 2.0**-9
COSTS = {
    "x": ("activations alone", ARM_COLOURS[0], "o"),
    "weight": ("weight alone", ARM_COLOURS[1], "s"),
    "product": ("product", "#222222", "D"),
}


@dataclass(frozen=True)
class _Line:
    """One operand as a line of the picture."""

    label: str
    weight: bool
    codes: list[float]
    scales: list[float]
    """Quantiles at `SHARES`."""


def operand_figure(captures: CaptureSet) -> Picture:
    """One line an operand: shares of the eight magnitudes on the left, spread of the block scales on the right.

    Args:
        captures: a set of `nvfp4.gemm`; a weight that several captures share is one line.
    Raises:
        CaptureError: the set is empty, or of another op.
    """
    lines = _lines(captures)
    with settings():
        picture = new_picture(WIDTH_IN, TOP_IN + BOTTOM_IN + len(lines) * ROW_IN, _operand_title(lines))
        codes, scales = picture.subplots(1, 2, width_ratios=(1.15, 1), sharey=True)
        _draw_codes(codes, lines)
        _draw_scales(scales, lines)
        _finish(picture, (codes, scales), [line.label for line in lines])
    return picture


def cost_figure(captures: CaptureSet) -> Picture:
    """One line a capture: relative L2 against the unquantised product, and of each operand alone.

    Raises:
        CaptureError: the set is empty, or a capture does not say what quantising cost.
    """
    costs = _costs(captures)
    with settings():
        picture = new_picture(WIDTH_IN, TOP_IN + BOTTOM_IN + len(costs) * ROW_IN, _cost_title(costs))
        axes = picture.subplots()
        for height, cost in enumerate(costs.values()):
            axes.plot([min(cost), max(cost)], [height, height], color=HAIR, linewidth=3, zorder=1)
            for value, (_, colour, marker) in zip(cost, COSTS.values(), strict=True):
                axes.plot(value, height, marker=marker, color=colour, markersize=4.5, linestyle="none", zorder=2)
        _name_markers(axes, next(iter(costs.values())))
        axes.set_xlabel("relative L2 against the unquantised BF16 operands, %")
        axes.grid(axis="x", color=HAIR, linewidth=0.6)
        _finish(picture, (axes,), list(costs))
    return picture


def _costs(captures: CaptureSet) -> dict[str, list[float]]:
    """What quantising cost each capture, in percent, in the order of `COSTS`."""
    facts = {entry.name: entry.facts.get("quantisation_error") for entry in captures.manifest.captures}
    without = [name for name, errors in facts.items() if not isinstance(errors, dict)]
    if without or not facts:
        raise CaptureError("notebook", [Reason("quantisation_error", f"absent in {without}", "a fact of each capture")])
    found = {name: errors for name, errors in facts.items() if isinstance(errors, dict)}
    return {name: [100 * float(str(errors[cost])) for cost in COSTS] for name, errors in found.items()}


def _name_markers(axes: Axes, values: Sequence[float]) -> None:
    """Name each marker once, above the first line, spread so that close values do not overlap."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    sides: dict[int, Literal["left", "center", "right"]] = {
        order[0]: "right",
        order[1]: "left" if len(order) > 2 else "right",
        order[-1]: "left",
    }
    names = list(COSTS.values())
    for index, value in enumerate(values):
        words, colour, _ = names[index]
        _above(axes, words, value, colour, sides.get(index, "center"))


def _above(axes: Axes, words: str, x: float, colour: str, side: Literal["left", "center", "right"]) -> None:
    """Words just above the first line, outside the axes."""
    place = {"fontsize": SMALL_PT, "color": colour, "ha": side, "va": "bottom"}
    axes.annotate(words, (x, -0.5), annotation_clip=False, **place)  # type: ignore[arg-type]


def _lines(captures: CaptureSet) -> list[_Line]:
    if captures.op != "nvfp4.gemm" or not captures.names():
        given = f"{len(captures.names())} captures of {captures.op}"
        raise CaptureError("notebook", [Reason("captures", repr(given), "at least one of nvfp4.gemm")])
    lines: list[_Line] = []
    for name in captures.names():
        call, product = captures.load(name).call, name.partition("-")[0]
        if all(line.label != f"{product} weight" for line in lines):
            lines.append(_line(f"{product} weight", True, nvfp4_operands.weight(call)))
        lines.append(_line(f"x, M={call.facts['M']}", False, nvfp4_operands.activation(call)))
    return lines


def _line(label: str, weight: bool, operand: nvfp4_operands.Operand) -> _Line:
    return _Line(label, weight, operand.code_shares(), operand.scale_quantiles(SHARES))


def _draw_codes(axes: Axes, lines: Sequence[_Line]) -> None:
    colours = LinearSegmentedColormap.from_list("shares", ["#ffffff", BLUE])
    shares = [line.codes for line in lines]
    axes.imshow(shares, cmap=colours, vmin=0, vmax=0.5, aspect="auto", interpolation="none")
    for height, codes in enumerate(shares):
        for number, share in enumerate(codes):
            axes.text(number, height, f"{100 * share:.0f}", fontsize=SMALL_PT, ha="center", va="center")
    axes.set_xticks(range(len(nvfp4_operands.MAGNITUDES)), [f"{value:g}" for value in nvfp4_operands.MAGNITUDES])
    axes.set_xlabel("magnitude of the code; in the cells its share, %")


def _draw_scales(axes: Axes, lines: Sequence[_Line]) -> None:
    for height, line in enumerate(lines):
        colour = VERMILLION if line.weight else BLUE
        low, five, median, ninety_five, high = (max(value, SMALLEST_SCALE) for value in line.scales)
        axes.plot([low, high], [height, height], color=colour, linewidth=0.8)
        axes.plot([five, ninety_five], [height, height], color=colour, linewidth=3.2, solid_capstyle="butt")
        marker = "s" if line.weight else "o"
        axes.plot(median, height, marker=marker, color=colour, markersize=4.2, markeredgecolor="white")
    axes.axvline(LARGEST_SCALE, color=GREY, linewidth=0.8, linestyle=(0, (3, 2)))
    _above(axes, "448", LARGEST_SCALE, GREY, "center")
    axes.set_xscale("log", base=2)
    low = min(max(line.scales[0], SMALLEST_SCALE) for line in lines)
    axes.set_xlim(low / 1.5, 2 * LARGEST_SCALE)
    ticks = [2.0**power for power in range(-8, 10, 2) if low / 1.5 <= 2.0**power <= LARGEST_SCALE]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="x", color=HAIR, linewidth=0.6)
    axes.set_xlabel("block scale: range, 5 % to 95 %, median")


def _finish(picture: Picture, panels: Sequence[Axes], labels: Sequence[str]) -> None:
    panels[0].set_yticks(range(len(labels)), labels, fontsize=SMALL_PT)
    panels[0].set_ylim(len(labels) - 0.5, -0.5)
    for axes in panels:
        axes.tick_params(length=0, labelsize=SMALL_PT)
        axes.xaxis.label.set_fontsize(SMALL_PT)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    height = Figure.get_figheight(picture)
    picture.suptitle(picture.title, x=0.02, y=1 - 0.12 / height, ha="left", va="top", fontsize=SMALL_PT + 1.3)
    picture.subplots_adjust(left=0.17, right=0.97, top=1 - TOP_IN / height, bottom=BOTTOM_IN / height, wspace=0.06)


def _operand_title(lines: Sequence[_Line]) -> str:
    zeros = [100 * line.codes[0] for line in lines]
    spread = [line.scales[3] / max(line.scales[1], SMALLEST_SCALE) for line in lines]
    return (
        f"{min(zeros):.0f} % to {max(zeros):.0f} % of the codes are zero; nine of ten block scales of an operand "
        f"lie within a factor of {min(spread):.2g} to {max(spread):.2g}."
    )


def _cost_title(costs: dict[str, list[float]]) -> str:
    products = [cost[-1] for cost in costs.values()]
    return (
        f"Quantising both operands moves the product by {min(products):.1f} % to {max(products):.1f} %: "
        "a kernel is judged against the quantised product, never against the unquantised one."
    )
