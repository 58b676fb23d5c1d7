"""Audit of our own exports: every folder of exported kernels is what its contract says it is.

The checks, in order: contract, sources, candidate, licence, evidence, claims, imports, declaration, signature, door, compile,
resources, cubins, architectures, replay, path, gates. A check whose ground is missing is `not run`, with its reason;
nothing that was not judged counts as passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kda_lab import runtime
from kda_lab.audit.exported_claims import check_claims
from kda_lab.audit.exported_compile import COMPILER, check_compile
from kda_lab.audit.exported_files import check_candidate, check_evidence, check_licence, check_sources
from kda_lab.audit.exported_model import CHECKS, Exported, ExportedAudit, Outcome, Places, finding_of
from kda_lab.audit.exported_replay import CHECKS_OF_REPLAY, check_replay
from kda_lab.audit.exported_source import check_declaration, check_signature
from kda_lab.dispatch.loader import kernel_folders, read_contract
from kda_lab.errors import AuditError, KernelLoadError, Reason

Say = Callable[[str], None]
"""Hears what is being checked, one line at a time."""


@dataclass(frozen=True)
class Depth:
    """How much is compiled and replayed."""

    every_unit: bool = False
    """Compile every unit; else, for each architecture, the first unit of each function."""
    every_capture: bool = False
    """Replay every capture; else the smallest."""
    device: str = "auto"
    """Where kernels are replayed: `auto`, `cpu` or `cuda`."""

    @property
    def words(self) -> str:
        """What this depth leaves out, in words."""
        units = "every compile unit" if self.every_unit else "the first compile unit of each function and architecture"
        captures = "every capture" if self.every_capture else "the smallest capture of each op"
        return f"{units}; {captures}"


def audit_exported(
    places: Places | None = None, only: str = "", depth: Depth | None = None, say: Say = lambda _line: None
) -> ExportedAudit:
    """Check every exported kernel, or one of them.

    Args:
        places: where to look; the installed package and its checkout when None.
        only: name of one kernel; empty: all.
        depth: how much is compiled and replayed.
        say: hears the progress.

    Raises:
        AuditError: there is no exported kernel, or none of that name.
        UnavailableError: the device is not there.
    """
    places, depth = places or Places.of_package(), depth or Depth()
    folders = _folders(places, only)
    outcomes = [outcome for folder in folders for outcome in _kernel(folder, places, depth, say)]
    versions = runtime.versions()
    return ExportedAudit(
        kernels=tuple(folder.name for folder in folders),
        scope=depth.words,
        compilers={package: versions[package] for package in COMPILER.values()},
        outcomes=tuple(outcomes),
    )


def _folders(places: Places, only: str) -> list[Path]:
    folders = kernel_folders(places.kernels)
    if not folders:
        remedy = "Name a folder that holds one folder a kernel."
        raise AuditError(
            "audit", [Reason("kernels", repr(str(places.kernels)), "a folder of exported kernels", remedy)]
        )
    chosen = [folder for folder in folders if only in ("", folder.name)]
    if not chosen:
        raise AuditError("audit", [Reason("kernel", repr(only), ", ".join(folder.name for folder in folders))])
    return chosen


def _kernel(folder: Path, places: Places, depth: Depth, say: Say) -> Iterator[Outcome]:
    say(f"{folder.name}: contract")
    try:
        kernel = Exported(folder, read_contract(folder), places)
    except KernelLoadError as error:
        text = str(error).split(": ", 1)[1]
        found = finding_of(folder.name, "contract", "crash", text, "load the kernel", "contract.json")
        yield Outcome(kernel=folder.name, check="contract", status="failed", words=text, findings=(found,))
        yield from _skipped(folder.name, tuple(CHECKS)[1:], "the contract cannot be read")
        return
    yield kernel.passed("contract", f"version {kernel.contract.version} of {kernel.contract.op}, valid")
    sources = check_sources(kernel)
    yield sources
    yield from (check_candidate(kernel), check_licence(kernel), check_evidence(kernel), check_claims(kernel))
    if not _has_host(kernel):
        # Without its host code there is nothing to read, compile or run.
        after = tuple(CHECKS)[tuple(CHECKS).index("imports") :]
        yield from _skipped(kernel.name, after, "a source is missing")
        return
    say(f"{folder.name}: source")
    yield from check_declaration(kernel)
    yield from check_signature(kernel)
    say(f"{folder.name}: cold compile")
    yield from check_compile(kernel, depth.every_unit)
    if sources.status == "failed":
        yield from _skipped(kernel.name, CHECKS_OF_REPLAY, "the sources are not those of the contract: not loaded")
        return
    say(f"{folder.name}: replay")
    yield from check_replay(kernel, depth.every_capture, depth.device)


def _has_host(kernel: Exported) -> bool:
    """Whether every source is there, so that the kernel can be read."""
    return kernel.host.is_file() and all((kernel.folder / s.path).is_file() for s in kernel.contract.sources)


def _skipped(kernel: str, checks: tuple[str, ...], reason: str) -> Iterator[Outcome]:
    return (Outcome(kernel=kernel, check=check, status="not run", words=reason) for check in checks)
