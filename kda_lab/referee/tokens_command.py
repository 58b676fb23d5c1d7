"""The command `kda-lab compare-tokens`: are the outputs of two arms identical, and may one ask?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kda_lab.referee.command import write_report
from kda_lab.referee.spoken import spoken_as


@spoken_as("compare-tokens")
def compare_tokens(
    files: Annotated[list[Path], typer.Argument(help="JSON Lines of token ids and log-probabilities.")],
    baseline: Annotated[str, typer.Option(help="Arm that is the reference.")],
    candidate: Annotated[str, typer.Option(help="Arm that is asked about.")],
    control: Annotated[
        str, typer.Option(help="Arm that is the baseline again; its further rounds when left out.")
    ] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the verdicts here.")] = None,
) -> None:
    """Compare outputs token by token. Exit 0 identical in every mode, 1 any other verdict, 2 bad input."""
    from kda_lab.referee import tokens  # lazy: pydantic
    from kda_lab.referee.token_records import read_tokens  # lazy: pydantic

    verdicts = tokens.compare_tokens(read_tokens(files), baseline, candidate, control)
    for verdict in verdicts:
        typer.echo(f"{verdict.mode}: {verdict}")
    if json_file is not None:
        write_report(json_file, json.dumps([asdict(v) for v in verdicts], indent=2, sort_keys=True) + "\n")
    raise typer.Exit(0 if all(v.word == "identical" for v in verdicts) else 1)
