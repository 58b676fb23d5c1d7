"""The command `kda-lab referee`: claims from files, verdicts with their arithmetic.

Exit code 0 judged, 1 with --strict when a claim's question got no answer, 2 input that is no claim. Reports are
written whole or not at all. Heavy packages are imported inside, so that help is instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kda_lab.errors import Reason, RefereeError
from kda_lab.run_folder import write_atomic

if TYPE_CHECKING:
    from kda_lab.referee.claim import Claim
    from kda_lab.referee.judge import Judgement

PLAIN_WIDTH = 160
"""Columns of a table where the output is no terminal."""


def referee(
    claims: Annotated[list[Path], typer.Argument(metavar="CLAIM...", help="Claim files, or folders of them.")],
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 unless every question got an answer.")] = False,
    arithmetic: Annotated[bool, typer.Option(help="Print each finding with its arithmetic.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the judgements as JSON.")] = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write the judgements as Markdown.")] = None,
) -> None:
    """Judge A/B claims by what their own numbers can carry. Exit 0 judged, 1 unanswered (--strict), 2 bad input."""
    from kda_lab.referee import render  # lazy: scipy
    from kda_lab.referee.judge import judge_all  # lazy: scipy

    judgements = judge_all(read_all(claims))
    for path, text in ((json_file, render.as_json), (markdown_file, render.markdown)):
        if path is not None:
            write_report(path, text(judgements))
    show(judgements)
    if arithmetic:
        typer.echo(render.plain(judgements))
    unanswered = [j for j in judgements if not j.reached]
    typer.echo(f"{len(judgements)} claims, {len(judgements) - len(unanswered)} answered")
    raise typer.Exit(1 if strict and unanswered else 0)


def read_all(paths: Sequence[Path]) -> list[Claim]:
    """Claims of files and folders, in the order given, those of a folder by name.

    Raises:
        RefereeError: a path does not exist, holds no claim, or a file is not one.
    """
    from kda_lab.referee.readers import read  # lazy: yaml

    found: list[Claim] = []
    for path in paths:
        if not path.exists():
            raise RefereeError("referee", [Reason("claim", repr(str(path)), "a file or folder that exists")])
        claims = read(path)
        if not claims:
            raise RefereeError("referee", [Reason("claim", repr(str(path)), "a file or folder that holds a claim")])
        found += claims
    return found


def write_report(path: Path, text: str) -> None:
    """Write a report whole.

    Raises:
        RefereeError: the place cannot be written.
    """
    try:
        write_atomic(path, text)
    except OSError as error:
        raise RefereeError(
            "referee", [Reason("report", repr(str(path)), "a file that can be written", f"{error.strerror}.")]
        ) from error


def show(judgements: Sequence[Judgement]) -> None:
    """Print the table of verdicts to stdout."""
    from kda_lab.referee import render  # lazy: scipy

    table = Table(title="Verdicts", title_justify="left", box=None, pad_edge=False)
    for name in render.COLUMNS:
        table.add_column(name, overflow="fold", justify="right" if name in ("change", "p", "MDE") else "left")
    for row in render.rows(judgements):
        table.add_row(*(escape(cell) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    console.print(table)
