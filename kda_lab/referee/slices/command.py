"""The command `kda-lab slices`: two traces, one marker, a table of what changed, and files to look at.

Exit code 0 compared, 2 refused; nothing is written then. Heavy packages are imported inside, so that help is instant.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kda_lab.referee.spoken import spoken_as

if TYPE_CHECKING:
    from kda_lab.referee.slices.comparison import SliceComparison
    from kda_lab.referee.slices.tables import Lines

WIDTH = 160
"""Columns of a table where the output is no terminal."""


@spoken_as("slices")
def slices(
    traces: Annotated[
        tuple[Path, Path],
        typer.Argument(metavar="BASELINE CANDIDATE", help="torch-profiler JSON (.gz) or Nsight Systems SQLite."),
    ],
    marker: Annotated[str, typer.Option(help="Name, or part of it, of a kernel launched equally often in every step.")],
    per_step: Annotated[int, typer.Option(help="Launches of the marker in a step.")],
    first: Annotated[int, typer.Option(help="Launch that begins the slice, from 0.")],
    last: Annotated[int, typer.Option(help="Launch that ends the slice.")],
    settings: Annotated[Path | None, typer.Option(help="YAML: categories, limits, device.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for CSV, Perfetto traces and figures.")] = None,
) -> None:
    """Compare the same few layers of two profiles: wall, union, overlap, idle, and the sum of each kind of kernel."""
    from kda_lab.referee.slices.outputs import write_outputs  # lazy: pydantic
    from kda_lab.referee.slices.pair import compare_files  # lazy: pydantic
    from kda_lab.referee.slices.pictures import drawn_files  # lazy: matplotlib
    from kda_lab.referee.slices.settings import read_settings  # lazy: pydantic
    from kda_lab.referee.slices.steps import Marker  # lazy: pydantic

    given = read_settings(settings) if settings else None
    found = compare_files(*traces, Marker(marker, per_step, first, last), given)
    written = write_outputs(found, out, drawn_files(found)) if out else []
    _show(found)
    for path in written:
        typer.echo(f"wrote {path}")


def _show(found: SliceComparison) -> None:
    from kda_lab.referee.slices import tables  # lazy: pydantic

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    console.print(_table("Representative slices", tables.PART_HEADS, tables.part_lines(found)))
    console.print(_table("Summed durations by category", tables.CATEGORY_HEADS, tables.category_lines(found)))
    for sentence in found.findings():
        typer.echo(f"note: {sentence}")


def _table(title: str, heads: tuple[str, ...], lines: Lines) -> Table:
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, head in enumerate(heads):
        made.add_column(head, justify="right" if number else "left")
    for line in lines:
        made.add_row(*map(escape, line))
    return made
