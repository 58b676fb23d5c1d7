"""The command line `kda-lab`: look at the machine and the captures, run, report, export, explain.

Every command is a thin layer over a function of the package. Refusals are printed as one line with exit
code 2; a traceback is a bug. Heavy packages are imported inside the commands, so that help is instant.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from kda_lab.audit.command import audit
from kda_lab.batch.command import batch
from kda_lab.errors import KdaLabError, ParameterError, Reason
from kda_lab.referee.command import referee
from kda_lab.referee.serving.command import serve_ab
from kda_lab.referee.slices.command import slices
from kda_lab.referee.tokens_command import compare_tokens

if TYPE_CHECKING:
    from kda_lab.contracts.facts import CallFacts
    from kda_lab.contracts.model import Contract

REFUSED = 2
CAPTURES = Path("data/captures")
REPORTS = Path("reports")


class CleanErrors(TyperGroup):
    """Prints an error of the package as one line on stderr and exits 2; anything else keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a refusal of the package ends here."""
        try:
            return super().invoke(ctx)
        except KdaLabError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(REFUSED) from error


app = typer.Typer(
    cls=CleanErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Record, replay, judge, time and export GPU kernels.",
)
captures_app = typer.Typer(no_args_is_help=True, help="Recorded calls: what there is, and whether it is whole.")
kernels_app = typer.Typer(no_args_is_help=True, help="Exported kernels: what there is, and what a call would get.")
app.add_typer(captures_app, name="captures")
app.add_typer(kernels_app, name="kernels")
app.command("audit")(audit)
app.command("batch")(batch)
app.command("referee")(referee)
app.command("slices")(slices)
app.command("serve-ab")(serve_ab)
app.command("compare-tokens")(compare_tokens)


def table(title: str, *columns: str) -> Table:
    """A plain table; numbers are given as text by the caller."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def show(*tables: Table) -> None:
    """Print tables to stdout, wide enough not to cut names when the output is no terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    for item in tables:
        console.print(item)


def pairs(given: list[str], option: str) -> dict[str, str]:
    """Split `name=value` options.

    Raises:
        ParameterError: no `=`, or a name given twice.
    """
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name or name in found:
            raise ParameterError("cli", [Reason(option, repr(text), "name=value, each name once")])
        found[name] = value
    return found


def capability_of(text: str) -> tuple[int, int]:
    """`9.0` as (9, 0).

    Raises:
        ParameterError: not two whole numbers with a dot between.
    """
    major, dot, minor = text.partition(".")
    if not (dot and major.isdigit() and minor.isdigit()):
        raise ParameterError("cli", [Reason("capability", repr(text), "major.minor, such as 9.0 or 12.1")])
    return int(major), int(minor)


@app.command()
def doctor() -> None:
    """Say what this machine can do: device, packages, interpreter, disk. Exit 1 when something required is missing."""
    from kda_lab.batch import machine_check  # lazy: torch

    report = machine_check.examine()
    facts = table("Machine", "what", "found")
    for name, value in report.facts.items():
        facts.add_row(name, value)
    packages = table("Packages", "package", "needed", "state")
    for item in report.packages:
        packages.add_row(item.name, "required" if item.required else "optional", item.state)
    show(facts, packages)
    if report.missing:
        typer.echo(f"missing: {', '.join(report.missing)}", err=True)
        raise typer.Exit(1)
    typer.echo("everything required is there")


@captures_app.command("list")
def captures_list(root: Annotated[Path, typer.Option(help="Folder of capture sets.")] = CAPTURES) -> None:
    """List the capture sets below a folder."""
    from kda_lab.captures.store import CaptureSet  # lazy: torch

    made = table("Capture sets", "set", "op", "captures", "real", "MB")
    for folder in capture_folders(root):
        found = CaptureSet.open(folder)
        size_mb = sum(p.stat().st_size for p in folder.iterdir() if p.is_file()) / 1e6
        real = sum(e.kind == "real" for e in found.manifest.captures)
        made.add_row(str(folder), found.op, str(len(found.names())), str(real), f"{size_mb:.1f}")
    show(made)


def capture_folders(root: Path) -> list[Path]:
    """Folders below `root`, or `root` itself, that hold a manifest.

    Raises:
        ParameterError: there is none.
    """
    found = sorted(p.parent for p in [*root.glob("manifest.json"), *root.glob("*/manifest.json")])
    if not found:
        raise ParameterError(
            "cli", [Reason("captures", repr(str(root)), "a folder with a manifest.json in it or one level below")]
        )
    return found


@captures_app.command("show")
def captures_show(
    folder: Path, name: Annotated[str, typer.Argument(help="One capture; all when left out.")] = ""
) -> None:
    """Show the calls of a set, or one call with its tensors, source and what was folded."""
    from kda_lab.captures.store import CaptureSet  # lazy: torch

    found = CaptureSet.open(folder)
    if not name:
        made = table(f"{found.op} in {folder}", "capture", "kind", "facts", "pinned by")
        for entry in found.manifest.captures:
            made.add_row(
                entry.name, entry.kind, _short(entry.facts), entry.producer.name if entry.producer else "nothing"
            )
        show(made)
        return
    entry = found.entry(name)
    tensors = table(f"{name} ({entry.kind})", "tensor", "dtype", "shape", "sha256")
    for title, group in (("", entry.tensors), ("pinned ", entry.pinned)):
        for key, tensor in group.items():
            tensors.add_row(f"{title}{key}", tensor.dtype, str(list(tensor.shape)), tensor.sha256[:12])
    words = table("Provenance", "what", "words")
    for key in ("scalars", "facts", "source", "licence", "recorded", "folded"):
        value = getattr(entry, key)
        words.add_row(key, str(value.model_dump()) if hasattr(value, "model_dump") else str(value))
    show(tensors, words)


def _short(value: object, limit: int = 60) -> str:
    text = str(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


@captures_app.command("verify")
def captures_verify(
    folders: Annotated[list[Path] | None, typer.Argument(help="Sets; all when left out.")] = None,
) -> None:
    """Check every hash, shape and bound of capture sets. Exit 1 when one is not whole."""
    from kda_lab.captures.store import CaptureSet  # lazy: torch

    broken = 0
    for folder in folders or capture_folders(CAPTURES):
        found = CaptureSet.open(folder)
        reasons = found.verify()
        broken += len(reasons)
        typer.echo(f"{folder}: {len(found.names())} captures, {'whole' if not reasons else f'{len(reasons)} faults'}")
        for reason in reasons:
            typer.echo(f"  {reason}")
    if broken:
        raise typer.Exit(1)


@app.command()
def run(
    notebook: Path,
    parameter: Annotated[list[str] | None, typer.Option("--parameter", "-p", help="name=value, repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; reports/<notebook> when left out.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for the whole run.")] = 3600.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the folder's records and start over.")] = False,
    report: Annotated[bool, typer.Option(help="Write the run's page afterwards.")] = True,
) -> None:
    """Run a notebook into a folder. Exit 0 passed, 1 verdict failed, 2 wrong usage, 3 crashed or out of time."""
    from kda_lab.batch.runner import run_notebook  # lazy: nbformat

    folder = out or REPORTS / notebook.stem
    given = pairs(parameter or [], "-p")
    raise typer.Exit(run_notebook(notebook, given, folder, timeout_s=timeout, resume=not fresh, report=report))


@app.command("report")
def write_reports(
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders; all below --reports when left out.")] = None,
    reports: Annotated[Path, typer.Option(help="Folder of runs, whose index.html is written.")] = REPORTS,
) -> None:
    """Write the page of each run again, and the index of all runs."""
    from kda_lab.report.html import write_report  # lazy: matplotlib
    from kda_lab.report.index import run_folders, write_index  # lazy: torch
    from kda_lab.run_folder import RunFolder  # lazy: torch

    broken: list[Path] = []
    for folder in runs or list(run_folders(reports)):
        if not folder.is_dir():
            raise ParameterError("cli", [Reason("run", repr(str(folder)), "a run's folder that exists")])
        try:
            typer.echo(str(write_report(RunFolder(folder))))
        # Expected: what drawing or formatting raises on records that are well formed and senseless.
        except Exception as error:  # noqa: BLE001
            broken.append(folder)
            typer.echo(f"error: {folder}: {type(error).__name__}: {error}", err=True)
    typer.echo(str(write_index(reports)))
    raise typer.Exit(1 if broken else 0)


@app.command()
def runs(folders: Annotated[list[Path], typer.Argument(help="Run folders.")]) -> None:
    """Verdicts and pages of runs in one table; exit code 1 unless all passed."""
    from kda_lab.report.overview import verdicts  # lazy: matplotlib

    found = verdicts(folders)
    shown = table("Verdicts", "run", "verdict", "why", "page")
    for run in found:
        shown.add_row(run.run, run.word, run.sentence, run.page)
    show(shown)
    raise typer.Exit(0 if all(run.passed for run in found) else 1)


@app.command()
def judge(
    run: Annotated[Path, typer.Argument(help="Folder of a finished replay or sweep.")],
    because: Annotated[str, typer.Option(help="Why it is judged again; becomes part of the verdict's sentence.")],
) -> None:
    """Judge a run's records again by the present rules; its executed notebook keeps what it said then."""
    from kda_lab import runtime  # lazy: torch

    runtime.use_interpreter_on_cpu()
    from kda_lab.notebook import Session  # lazy: pandas, matplotlib

    verdict = Session.reopen(run).verdict(because)
    raise typer.Exit(0 if verdict.passed else 1)


@app.command()
def export(
    sources: Annotated[
        list[Path], typer.Argument(metavar="RUN... CANDIDATE", help="Run folders, then the source file.")
    ],
    captures: Annotated[
        list[Path] | None, typer.Option(help="Capture sets, repeated; data/captures/<op> when left out.")
    ] = None,
    arch: Annotated[list[str] | None, typer.Option(help="major.minor to compile for, repeated.")] = None,
    kernels_dir: Annotated[Path | None, typer.Option(help="Package folder of exported kernels.")] = None,
    evidence_dir: Annotated[Path, typer.Option(help="Folder of committed evidence.")] = REPORTS / "evidence",
    device: Annotated[str, typer.Option(help="Where bits are compared: auto, cpu or cuda.")] = "auto",
    leave_to: Annotated[
        list[str] | None, typer.Option(help="Exported kernel whose shapes stay its own, repeated.")
    ] = None,
) -> None:
    """Export a candidate whose runs passed: every gate is checked again; a failure leaves the package untouched."""
    from kda_lab.dispatch.dispatcher import KERNELS_DIR  # lazy: torch
    from kda_lab.export.candidate import read_candidate  # lazy: torch
    from kda_lab.export.exporter import ARCHITECTURES, Destination, export_kernel  # lazy: torch
    from kda_lab.run_folder import RunFolder  # lazy: torch

    *runs, candidate = sources
    for folder in runs:
        if not folder.is_dir():
            raise ParameterError("cli", [Reason("run", repr(str(folder)), "a run's folder that exists")])
    sets = captures or [CAPTURES / read_candidate(candidate).declaration.op]
    done = export_kernel(
        [RunFolder(r) for r in runs],
        candidate,
        Destination(kernels_dir or KERNELS_DIR, evidence_dir),
        captures=sets,
        architectures=tuple(capability_of(a) for a in arch) if arch else ARCHITECTURES,
        device=device,
        leave_to=leave_to or (),
    )
    typer.echo(f"exported to {done}")


@kernels_app.command("list")
def kernels_list() -> None:
    """List the exported kernels with their architectures and speed."""
    from kda_lab.dispatch.dispatcher import DISPATCHER  # lazy: torch

    made = table("Exported kernels", "kernel", "version", "op", "architectures", "headline")
    for folder in DISPATCHER.folders():
        contract = folder.contract
        architectures = ", ".join("sm{}{} {}".format(*a.capability, a.status) for a in contract.architectures)
        made.add_row(contract.kernel, str(contract.version), contract.op, architectures, _headline(contract))
    show(made)


def _headline(contract: Contract) -> str:
    parts = (f"{h.geomean:.3g}x (min {h.minimum:.3g}x, n {h.count}) over {h.baseline}" for h in contract.headline)
    return "; ".join(parts) or "—"


@kernels_app.command("show")
def kernels_show(kernel: str) -> None:
    """Print one kernel's contract as JSON."""
    from kda_lab.dispatch.dispatcher import DISPATCHER  # lazy: torch

    known = {f.contract.kernel: f.contract for f in DISPATCHER.folders()}
    if kernel not in known:
        raise ParameterError("cli", [Reason("kernel", repr(kernel), ", ".join(known) or "none is exported")])
    typer.echo(known[kernel].model_dump_json(indent=2))


@kernels_app.command("explain")
def kernels_explain(
    op: str,
    capability: Annotated[
        str, typer.Option(help="major.minor of the GPU to ask for; this machine's when left out.")
    ] = "",
    axis: Annotated[list[str] | None, typer.Option(help="NAME=extent, repeated: B=4.")] = None,
    scalar: Annotated[list[str] | None, typer.Option(help="name=value, repeated: max_seqlen_q=1.")] = None,
    dtype: Annotated[str, typer.Option(help="dtype of the floating inputs; the contract's first when left out.")] = "",
    kernel: Annotated[str, typer.Option(help="Force one kernel.")] = "",
) -> None:
    """Say which kernel a call of these shapes would get on a GPU, and why the others would not; needs no GPU."""
    from kda_lab.dispatch.dispatcher import DISPATCHER  # lazy: torch
    from kda_lab.ops.registry import load_op  # lazy: torch

    spec = load_op(op).spec
    contracts = [f.contract for f in DISPATCHER.folders() if f.contract.op == op and kernel in ("", f.contract.kernel)]
    if not contracts:
        raise ParameterError(
            "cli", [Reason("kernels of " + op, repr(kernel or "none"), "an exported kernel", "Export one first.")]
        )
    facts = _imagined(contracts[0], pairs(axis or [], "--axis"), pairs(scalar or [], "--scalar"), capability, dtype)
    typer.echo(str(DISPATCHER.explain_facts(spec, facts, kernel or None)))


def _imagined(
    contract: Contract, axes: dict[str, str], scalars: dict[str, str], capability: str, dtype: str
) -> CallFacts:
    """Facts of a call that exists only as numbers: contiguous, aligned tensors of the contract's shapes."""
    from kda_lab import runtime  # lazy: torch
    from kda_lab.batch.parameters import literal  # lazy: torch
    from kda_lab.contracts.imagined import imagined_call  # lazy: torch
    from kda_lab.contracts.model import axis_of  # lazy: torch

    dimensions = [d for gate in contract.tensors.values() for d in gate.shape if isinstance(d, str)]
    names = dict.fromkeys(axis_of(d) for d in dimensions)
    wrong = [n for n in names if not axes.get(n, "").isdigit()] + [n for n in axes if n not in names]
    if wrong:
        remedy = f"Give --axis NAME=extent for each of {', '.join(names)}."
        raise ParameterError(
            "cli",
            [
                Reason(f"axis {n}", repr(axes.get(n, "absent")), "a whole number for a known axis", remedy)
                for n in wrong
            ],
        )
    where = capability_of(capability) if capability else runtime.capability()
    values = {n: literal(v) for n, v in scalars.items()}
    return imagined_call(contract, {n: int(v) for n, v in axes.items()}, values, where, dtype)


if __name__ == "__main__":
    app()
