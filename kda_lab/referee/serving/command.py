"""The command `kda-lab serve-ab`: measure a plan's matrix, show progress, write what the referee reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kda_lab.errors import Reason, RefereeError
from kda_lab.referee.spoken import spoken_as

if TYPE_CHECKING:
    from kda_lab.referee.serving.cell_records import CellRecord
    from kda_lab.referee.serving.schedule import Cell


@spoken_as("serve-ab")
def serve_ab(
    plan: Annotated[Path, typer.Argument(help="The plan, YAML.")],
    out: Annotated[Path, typer.Option(help="The plan's folder; finished cells in it stay.")],
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Measure failed cells again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the order of the cells and stop.")] = False,
) -> None:
    """Measure running servers against each other. Exit 0 all cells measured, 1 some failed, 2 bad input.

    Servers are given by base URL and have to run already. Stopped or killed, the same command goes on where it was.
    """
    from tqdm import tqdm  # lazy: tqdm

    from kda_lab.referee.serving.driver import run_plan  # lazy: httpx
    from kda_lab.referee.serving.plan import read_plan  # lazy: pydantic
    from kda_lab.referee.serving.schedule import schedule  # lazy: pydantic

    read = read_plan(plan)
    cells = schedule(read)
    if dry_run:
        for cell in cells:
            typer.echo(
                f"{cell.order:4d}  concurrency {cell.concurrency:4d}  round {cell.round}  {cell.arm} ({cell.role})"
            )
        return
    with tqdm(total=len(cells), unit="cell", dynamic_ncols=True) as bar:

        def watch(cell: Cell, record: CellRecord, measured: bool) -> None:
            bar.update()
            bar.set_postfix_str(cell.key, refresh=False)
            if record.status == "failed":
                bar.write(f"{cell.key}: failed: {record.failure}")
            elif measured and record.notes:
                bar.write(f"{cell.key}: {'; '.join(record.notes)}")

        try:
            records = run_plan(read, out, watch, retry_failed)
        except OSError as error:
            given, allowed = repr(str(error.filename or out)), "a place that can be written"
            raise RefereeError("referee", [Reason("out", given, allowed, f"{error.strerror or error}.")]) from error
    failed = sum(record.status == "failed" for record in records)
    typer.echo(
        f"{len(records) - failed} of {len(records)} cells measured, {failed} failed; claims: {out / 'claims.yaml'}"
    )
    raise typer.Exit(1 if failed else 0)
