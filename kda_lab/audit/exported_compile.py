"""Cold compile of an exported kernel: new artifacts, what they use, which machine code, and for which architectures."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kda_lab import runtime
from kda_lab.audit.exported_files import recorded_versions
from kda_lab.audit.exported_model import Exported, Outcome
from kda_lab.audit.finding import Finding
from kda_lab.contracts.model import CompileUnit, Qualification, Resources
from kda_lab.errors import ExportError
from kda_lab.export import compile_gate

COMPILER = {"triton": "triton", "cuda": "nvidia-cuda-nvrtc"}
"""Language to the package whose version decides the machine code."""
COMPARED = ("registers", "spill_bytes", "shared_bytes")
COMPILERS_AT_ONCE = 2
TOOL_TIMEOUT_S = 60
AGAIN = "compile the unit again with the compiler that the evidence names"
_ELF_NAME = re.compile(r"\.(sm_\w+)\.cubin")


@dataclass(frozen=True)
class Built:
    """What one cold compile of one unit gave."""

    capability: tuple[int, int]
    unit: CompileUnit
    stated: Resources | None
    """What the contract says of the unit; None where it says nothing."""
    used: Resources | None
    """None when it did not compile."""
    fault: str = ""
    """Why it did not compile, or why its artifact is no proof."""
    targets: tuple[str, ...] | None = None
    """Architectures in the artifact, `sm_90a`; None where no tool could tell."""

    @property
    def label(self) -> str:
        """The unit and its architecture, as a finding names them."""
        constants = ", ".join(f"{name}={value}" for name, value in self.unit.constants.items())
        return f"{self.unit.function} for {architecture_name(self.capability)} ({constants})"


def architecture_name(capability: tuple[int, int]) -> str:
    """`sm90` for (9, 0)."""
    return "sm{}{}".format(*capability)


def check_compile(kernel: Exported, full: bool) -> list[Outcome]:
    """The checks `compile`, `resources`, `cubins` and `architectures` on units compiled now, each into an empty cache.

    Args:
        kernel: the exported kernel.
        full: every unit; else, for each architecture, the first unit of each function.
    """
    plan, gaps = planned(kernel, full)
    with tempfile.TemporaryDirectory(prefix="kda_lab_audit_") as cache:
        folders = [Path(cache) / str(i) for i in range(len(plan))]
        with ThreadPoolExecutor(max_workers=COMPILERS_AT_ONCE) as pool:
            jobs = [pool.submit(build, kernel, *item, folder) for item, folder in zip(plan, folders, strict=True)]
            built = [job.result() for job in jobs]
    return [_compiled(kernel, built, gaps), _resources(kernel, built), _cubins(kernel, built), _targets(kernel, built)]


Planned = tuple[tuple[int, int], CompileUnit, Resources | None]
"""Capability, unit, and what the contract states of it."""


def planned(kernel: Exported, full: bool) -> tuple[list[Planned], list[Finding]]:
    """What to compile, and the architectures whose units and stated resources do not fit together."""
    plan: list[Planned] = []
    gaps: list[Finding] = []
    for architecture in _served(kernel):
        units = _units(kernel, architecture)
        stated = architecture.resources
        fits = [(u.function, u.constants) for u in units] == [(r.function, r.constants) for r in stated]
        if not units or not fits:
            name = architecture_name(architecture.capability)
            lost = f"{name} has {len(units)} compile units and resources of {len(stated)}, or of others"
            gaps.append(kernel.finding("compile", "silent-wrong", lost, "compare both lists", symbol=name))
        pairs = [(unit, stated[i] if fits else None) for i, unit in enumerate(units)]
        first = {unit.function: i for i, unit in reversed(list(enumerate(units)))}
        plan += [(architecture.capability, *pair) for i, pair in enumerate(pairs) if full or i in first.values()]
    return plan, gaps


def _served(kernel: Exported) -> Iterator[Qualification]:
    return (a for a in kernel.contract.architectures if a.status != "refused")


def _units(kernel: Exported, architecture: Qualification) -> list[CompileUnit]:
    units = kernel.contract.compile_units
    return [unit for unit in units if not unit.capabilities or architecture.capability in unit.capabilities]


def build(
    kernel: Exported, capability: tuple[int, int], unit: CompileUnit, stated: Resources | None, cache: Path
) -> Built:
    """Compile one unit into a folder that is not there yet, and prove that the artifact is new."""
    started_ns = time.time_ns()
    try:
        used = compile_gate.compile_unit(kernel.compiled, unit, capability, cache)
    except ExportError as error:
        return Built(capability, unit, stated, None, str(error))
    cubins = sorted(cache.rglob("*.cubin"))
    # File systems may round a time stamp down to a second or two.
    new = len(cubins) == 1 and cubins[0].stat().st_mtime_ns >= started_ns - 2 * 10**9
    fault = "" if new else f"{len(cubins)} cubins in the cache, or one from before the compile: nothing proves it new"
    return Built(capability, unit, stated, used, fault, architectures_in(cubins))


def architectures_in(cubins: Sequence[Path]) -> tuple[str, ...] | None:
    """Architectures that the headers of artifacts name, sorted; None where `cuobjdump` is not at hand or hangs."""
    triton = runtime.import_optional("triton")
    if triton.module is None or triton.module.__file__ is None:
        return None
    tool = Path(triton.module.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        return None
    command = [str(tool), "--list-elf", *map(str, cubins)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return tuple(sorted(set(_ELF_NAME.findall(done.stdout))))


def _compiled(kernel: Exported, built: Sequence[Built], gaps: Sequence[Finding]) -> Outcome:
    findings = list(gaps)
    for item in (b for b in built if b.fault):
        severity, test = "crash", "compile the unit alone: compile_gate.compile_unit"
        findings.append(kernel.finding("compile", severity, item.fault, test, kernel.compiled.name, item.label))  # type: ignore[arg-type]
    total = sum(len(_units(kernel, a)) for a in _served(kernel))
    refused = [architecture_name(a.capability) for a in kernel.contract.architectures if a.status == "refused"]
    tail = f"; refused and not compiled: {', '.join(refused)}" if refused else ""
    words = f"{len(built)} of {total} units compiled cold, one new cubin each in a cache that was empty{tail}"
    return kernel.judged("compile", findings, words)


def _done(built: Sequence[Built]) -> list[tuple[Built, Resources, Resources]]:
    """Compiled units of which the contract states something: the unit, what is stated, what was used."""
    return [(b, b.stated, b.used) for b in built if b.stated is not None and b.used is not None]


def _versions(kernel: Exported) -> tuple[bool, str]:
    """Whether the compiler is the recorded one, and both in words."""
    package = COMPILER[kernel.contract.language]
    here, then = runtime.versions()[package], recorded_versions(kernel).get(package, "not recorded")
    return here == then, f"{package} {here} here, {then} in the evidence"


def _resources(kernel: Exported, built: Sequence[Built]) -> Outcome:
    """Registers, spills and shared memory against the contract; another compiler may give others, which is noted."""
    done = _done(built)
    if not done:
        return kernel.not_run("resources", "nothing compiled that the contract states resources of")
    same, versions = _versions(kernel)
    differing = [(b, words) for b, stated, used in done if (words := _difference(stated, used))]
    if not differing:
        words = f"registers, spills and shared memory of {len(done)} units are those of the contract ({versions})"
        return kernel.passed("resources", words)
    if not same:
        words = f"{len(differing)} of {len(done)} units differ under another compiler, not judged: {versions}"
        return kernel.noted("resources", f"{words}; {differing[0][0].label}: {differing[0][1]}")
    findings = [
        kernel.finding("resources", "performance", f"{b.label}: {words}", AGAIN, symbol=b.unit.function)
        for b, words in differing
    ]
    return kernel.judged("resources", findings, "")


def _difference(stated: Resources, used: Resources) -> str:
    """Stated and found numbers that differ, in words; a number that no tool could read is left out."""
    pairs = [(name, getattr(stated, name), getattr(used, name)) for name in COMPARED]
    return ", ".join(f"{n} is {found}, the contract says {said}" for n, said, found in pairs if _unequal(said, found))


def _unequal(said: int | None, found: int | None) -> bool:
    return said is not None and found is not None and said != found


def _cubins(kernel: Exported, built: Sequence[Built]) -> Outcome:
    """Hashes of the machine code against the contract, where equal inputs must give equal bytes."""
    done = [(b, stated.cubin_sha256, used.cubin_sha256) for b, stated, used in _done(built) if stated.cubin_sha256]
    if not done:
        return kernel.not_run("cubins", "the contract has no hash of what was compiled")
    same, versions = _versions(kernel)
    other = [b for b, stated, used in done if stated != used]
    if not other:
        return kernel.passed("cubins", f"{len(done)} cubins have the hashes of the contract ({versions})")
    counted = f"{len(other)} of {len(done)} cubins have other hashes"
    if not same:
        return kernel.not_run("cubins", f"{counted}, not judged: {versions}")
    if kernel.contract.language != "cuda":
        why = "Triton writes the path of the source into its line table, and the contract does not record it"
        return kernel.not_run("cubins", f"{counted}, not judged: {why} ({versions})")
    findings = [
        kernel.finding("cubins", "silent-wrong", f"{b.label} has another machine code", AGAIN, symbol=b.unit.function)
        for b in other
    ]
    return kernel.judged("cubins", findings, "")


def _targets(kernel: Exported, built: Sequence[Built]) -> Outcome:
    """The architectures in each artifact: machine code of another one gives `no kernel image` at the first launch."""
    known = [b for b in built if b.used is not None and b.targets is not None]
    if not known:
        return kernel.not_run("architectures", "nothing compiled, or no cuobjdump to read the artifacts with")
    findings = []
    for item in known:
        plain = "sm_{}{}".format(*item.capability)
        if item.targets not in ((plain,), (f"{plain}a",), (f"{plain}f",)):
            found = ", ".join(item.targets or ()) or "no architecture"
            lost = f"the artifact of {item.label} holds {found}: no kernel image for {plain}"
            findings.append(
                kernel.finding("architectures", "crash", lost, "launch it on that device", symbol=item.unit.function)
            )
    counts = Counter(target for item in known for target in item.targets or ())
    told = ", ".join(f"{name} in {count}" for name, count in sorted(counts.items()))
    only = "; a name that ends in a runs on exactly that capability" if any(n.endswith("a") for n in counts) else ""
    return kernel.judged("architectures", findings, f"{told}{only}")
