"""The command `kda-lab audit`: our own exported kernels, or what an export tree lost of the tree it was taken from.

Exit code 0 clean, 1 findings, 2 wrong usage or trees that cannot be audited. Reports are written whole or not at all.
Heavy packages are imported inside, so that help is instant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kda_lab.errors import AuditError, Reason
from kda_lab.run_folder import write_atomic, write_json

if TYPE_CHECKING:
    from kda_lab.audit.finding import FileState, Finding

PLAIN_WIDTH = 160
"""Columns of a table where the output is no terminal."""
ONE, ALL = "one", "all"


def audit(
    trees: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KERNEL | SOURCE EXPORT",
            help="Nothing: every exported kernel. One name: that kernel. Two trees: folders, REPO@REVISION, or revisions.",
        ),
    ] = None,
    base: Annotated[str, typer.Option(help="Two trees: their common ancestor, a folder or REPO@REVISION.")] = "",
    scope: Annotated[list[str] | None, typer.Option(help="Two trees: glob of paths to audit, repeated.")] = None,
    allow: Annotated[
        Path | None, typer.Option(help="Two trees: YAML of accepted findings, each with its reason.")
    ] = None,
    semantic: Annotated[
        bool, typer.Option("--semantic", help="Two trees: list cosmetic findings, and do not fail for them.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Our kernels: compile every unit, not one a function.")] = False,
    captures: Annotated[str, typer.Option(help="Our kernels: replay `one` capture of each op, or `all`.")] = ONE,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the audit as JSON.")] = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write the audit as Markdown.")] = None,
) -> None:
    """Audit our exported kernels, or an export tree against its source. Exit 0 clean, 1 findings, 2 bad input."""
    given = trees or []
    if len(given) == 2:
        refuse("two trees", {"--full": full, "--captures": captures != ONE})
        passed, record, page = trees_audited(given, base, scope or [], allow, semantic)
    else:
        refuse("exported kernels", {"--base": base, "--scope": scope, "--allow": allow, "--semantic": semantic})
        passed, record, page = exports_audited(given, full, captures)
    write(json_file, markdown_file, record, page)
    raise typer.Exit(0 if passed else 1)


def refuse(what: str, options: dict[str, object]) -> None:
    """Refuse options that the other kind of audit takes.

    Raises:
        AuditError: with each option that was given.
    """
    given = [name for name, value in options.items() if value]
    if given:
        raise AuditError("audit", [Reason(f"options with {what}", ", ".join(given), "those of that audit, see --help")])


def exports_audited(given: Sequence[str], full: bool, captures: str) -> tuple[bool, dict[str, Any], str]:
    """Audit exported kernels, print the outcome; whether it is clean, its record and its page.

    Raises:
        AuditError: more than one kernel is named, or one that is not exported, or `captures` has another value.
    """
    if len(given) > 1:
        raise AuditError("audit", [Reason("arguments", repr(list(given)), "none, one kernel, or SOURCE and EXPORT")])
    if captures not in (ONE, ALL):
        raise AuditError("audit", [Reason("--captures", repr(captures), f"{ONE!r}, {ALL!r}")])
    from kda_lab.audit.exported import Depth, audit_exported  # lazy: torch
    from kda_lab.audit.exported_render import as_markdown, as_record, rows  # lazy: torch

    depth = Depth(every_unit=full, every_capture=captures == ALL)
    found = audit_exported(only=given[0] if given else "", depth=depth, say=progress)
    print_table("Exported kernels", ("kernel", "check", "status", "what was found"), rows(found))
    typer.echo(f"{found.sentence}. Judged: {found.scope}.")
    return found.passed, as_record(found), as_markdown(found)


def trees_audited(
    given: Sequence[str], base: str, scope: Sequence[str], allow: Path | None, semantic: bool
) -> tuple[bool, dict[str, Any], str]:
    """Audit an export tree against its source, print the findings; whether it is clean, its record and its page.

    Raises:
        AuditError: a tree, a revision, the scope or the allow-list cannot be used.
    """
    from kda_lab.audit.render import as_markdown, as_record  # lazy: pyyaml
    from kda_lab.audit.trees import audit_trees  # lazy: pyyaml

    progress(f"reading {given[0]} and {given[1]}")
    found = audit_trees(given[0], given[1], base=base or None, scope=tuple(scope), allow=allow, semantic=semantic)
    typer.echo(f"{given[0]} -> {given[1]}: {_counted(found.files)}")
    print_table("Findings", ("rule", "severity", "where", "what was lost"), list(map(_row, found.findings)))
    for line in (*(f"stale: {entry}" for entry in found.stale), *(f"note: {note}" for note in found.notes)):
        typer.echo(line)
    typer.echo(found.sentence)
    return found.passed, as_record(found), as_markdown(found)


def _counted(files: Sequence[FileState]) -> str:
    """How many files are of each class."""
    counts = Counter(file.state for file in files)
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no file"


def _row(finding: Finding) -> tuple[str, str, str, str]:
    where = f"{finding.file}: {finding.symbol}" if finding.symbol else finding.file
    allowed = f" (allowed: {finding.allowed})" if finding.allowed else ""
    return finding.rule, finding.severity, where, f"{finding.lost}{allowed}"


def progress(line: str) -> None:
    """Say on stderr what is being done, so that stdout holds the outcome alone."""
    typer.echo(f"audit: {line}", err=True)


def print_table(title: str, columns: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    """A plain table on stdout, wide enough not to cut names when the output is no terminal; nothing without rows."""
    if not body:
        return
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in body:
        made.add_row(*map(escape, row))
    console = Console()
    (console if console.is_terminal else Console(width=PLAIN_WIDTH)).print(made)


def write(json_file: Path | None, markdown_file: Path | None, record: dict[str, Any], page: str) -> None:
    """Write the reports that were asked for, each whole or not at all.

    Raises:
        AuditError: a file cannot be written.
    """
    try:
        if json_file is not None:
            write_json(json_file, record)
        if markdown_file is not None:
            write_atomic(markdown_file, page)
    except OSError as error:
        given = f"{error.filename or json_file or markdown_file} ({error.strerror or error})"
        raise AuditError("audit", [Reason("report", given, "a path that can be written")]) from error
