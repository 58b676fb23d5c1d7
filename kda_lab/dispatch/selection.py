"""Which kernel one call gets: a pure choice over contracts, and the table that explains it.

No kernel is imported here, no device is read: contracts and facts go in, a `Choice` comes out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kda_lab import runtime
from kda_lab.contracts.facts import CallFacts
from kda_lab.contracts.model import Contract
from kda_lab.contracts.predicate import check, show
from kda_lab.dispatch.fallback import FallbackFunction, FallbackVerdict, judge_chain
from kda_lab.dispatch.loader import KernelFolder
from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import OpSpec

ROOM = "dispatch"


@dataclass(frozen=True)
class Settings:
    """What the environment says of dispatch."""

    forced: str = ""
    """Kernel to use wherever it implements the op; empty: none."""
    off: bool = False
    """No exported kernel may run but those of the op's fallback chain."""
    allow_compiled: bool = False
    """Architectures that were compiled but never ran are accepted too."""


def read_settings() -> Settings:
    """The three variables KDA_LAB_KERNEL, KDA_LAB_DISPATCH and KDA_LAB_ALLOW_COMPILED.

    Raises:
        ParameterError: a switch has a value it does not allow, or a name starts with KDA_LAB_ and is not known:
            a typing error never means `on`, and never means nothing.
    """
    switch = runtime.environment("KDA_LAB_DISPATCH")
    opt_in = runtime.environment("KDA_LAB_ALLOW_COMPILED")
    reasons = [_misspelt(name) for name in runtime.unknown_variables()]
    if switch not in ("", "on", "off"):
        reasons.append(Reason("KDA_LAB_DISPATCH", show(switch), "'on', 'off' or unset"))
    if opt_in not in ("", "0", "1"):
        reasons.append(Reason("KDA_LAB_ALLOW_COMPILED", show(opt_in), "'0', '1' or unset"))
    if reasons:
        raise ParameterError(ROOM, reasons)
    return Settings(runtime.environment("KDA_LAB_KERNEL"), switch == "off", opt_in == "1")


def _misspelt(name: str) -> Reason:
    known = [variable for variable in runtime.ENVIRONMENT_VARIABLES if variable.startswith(runtime.PREFIX)]
    near = difflib.get_close_matches(name, known, n=1)
    remedy = f"Did you mean {near[0]}?" if near else "Unset it."
    return Reason("environment variable", show(name), ", ".join(known), remedy)


@dataclass(frozen=True)
class KernelReason(Reason):
    """A reason with the kernels and fallbacks that gave it."""

    kernels: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()

    def __str__(self) -> str:
        given = {"kernel": self.kernels, "fallback": self.fallbacks}
        sources = "; ".join(f"{word} {', '.join(names)}" for word, names in given.items() if names)
        return f"{super().__str__()} ({sources})" if sources else super().__str__()


@dataclass(frozen=True)
class KernelVerdict:
    """One kernel's answer to one call."""

    kernel: str
    version: int
    shapes: str
    """The set it was judged by: `callable` when forced, else `dispatched`."""
    reasons: tuple[Reason, ...]

    @property
    def accepted(self) -> bool:
        """Whether the kernel may take the call."""
        return not self.reasons


@dataclass(frozen=True)
class Choice:
    """The decision for one call."""

    op: str
    verdicts: tuple[KernelVerdict, ...]
    """Every kernel that implements the op and is no fallback, sorted by name; only the forced one when forced."""
    forced: str = ""
    """Name of the forced kernel; empty: none."""
    general: tuple[Reason, ...] = field(default=())
    """Reasons that hold for every kernel: the op's own demands, dispatch switched off, none exported."""
    chain: tuple[FallbackVerdict, ...] = ()
    """The fallbacks that were asked, in order: up to the first that takes the call; empty where none may."""

    @property
    def accepted(self) -> tuple[str, ...]:
        """Names of the kernels that may take the call."""
        return () if self.general else tuple(v.kernel for v in self.verdicts if v.accepted)

    @property
    def kernel(self) -> str:
        """The kernel that takes the call; empty when none does, or when two or more claim it."""
        return self.accepted[0] if len(self.accepted) == 1 else ""

    @property
    def fallback(self) -> FallbackVerdict | None:
        """The fallback that takes the call; None where a kernel does, or the call must raise."""
        return next((verdict for verdict in self.chain if verdict.accepted), None)

    def reasons(self) -> tuple[Reason, ...]:
        """Every reason why neither a kernel nor an asked fallback takes the call; equal reasons become one."""
        if len(self.accepted) > 1:
            return (_claimed_twice(self.accepted),)
        if self.kernel:
            return ()
        named = {reason.field for reason in self.general}
        kernels: dict[Reason, list[str]] = {}
        fallbacks: dict[Reason, list[str]] = {}
        for verdict in self.verdicts:
            for reason in (r for r in verdict.reasons if r.field not in named):
                kernels.setdefault(reason, []).append(verdict.kernel)
        for asked in self.chain:
            for reason in asked.reasons:
                fallbacks.setdefault(reason, []).append(asked.name)
        own = [
            KernelReason(r.field, r.given, r.allowed, r.remedy, tuple(kernels.get(r, ())), tuple(fallbacks.get(r, ())))
            for r in {**kernels, **fallbacks}
        ]
        return (*self.general, *own)


def choose(
    spec: OpSpec,
    folders: Sequence[KernelFolder],
    facts: CallFacts,
    settings: Settings,
    kernel: str | None = None,
    demands: Iterable[Reason] = (),
    functions: Mapping[str, FallbackFunction] | None = None,
) -> Choice:
    """Judge every kernel of an op for one call, and its fallbacks where no kernel takes it.

    A kernel that the op names as a fallback is judged in its place of the chain, unless it is forced. No
    fallback is asked when the op itself refuses, a kernel is forced, or two kernels claim the call:
    another implementation would hide what the caller has to know.

    Args:
        spec: the op.
        folders: all exported kernels, of any op.
        facts: of the call.
        settings: of the environment.
        kernel: name that the caller forces; goes before the environment's. A forced kernel is
            judged by its callable shapes, not by the narrower dispatched ones.
        demands: reasons of the op itself against the call, whatever kernels there are.
        functions: registered fallback functions by name.

    Raises:
        ParameterError: the forced name is not known; the known names are listed.
    """
    own = {folder.contract.kernel: folder.contract for folder in folders if folder.contract.op == spec.name}
    forced = _forced_name(spec.name, folders, settings, kernel)
    demands = tuple(demands)
    judged = [c for name, c in own.items() if (name == forced if forced else name not in spec.fallback)]
    verdicts = tuple(_verdict(contract, facts, settings, bool(forced)) for contract in judged)
    general = (*demands, *_absence(settings, judged, own))
    choice = Choice(spec.name, verdicts, forced, general)
    if demands or forced or choice.accepted:
        return choice
    return replace(choice, chain=judge_chain(spec.fallback, functions or {}, own, facts, settings.allow_compiled))


def _absence(settings: Settings, judged: Sequence[Contract], own: Mapping[str, Contract]) -> list[Reason]:
    """Why no kernel is asked at all, in at most one reason."""
    if settings.off:
        remedy = "Unset KDA_LAB_DISPATCH to let exported kernels run."
        return [Reason("KDA_LAB_DISPATCH", "'off'", "'on' or unset", remedy)]
    if judged:
        return []
    given = f"only {_names(list(own))}, a fallback of this op" if own else "none exported for this op"
    return [Reason("kernels", given, "at least one", "Export one with kda-lab export.")]


def _verdict(contract: Contract, facts: CallFacts, settings: Settings, forced: bool) -> KernelVerdict:
    decision = check(contract, facts, "callable" if forced else "dispatched", settings.allow_compiled)
    shapes = "callable" if forced else "dispatched"
    return KernelVerdict(contract.kernel, contract.version, shapes, decision.reasons)


def _forced_name(op: str, folders: Sequence[KernelFolder], settings: Settings, kernel: str | None) -> str:
    own = [folder.contract.kernel for folder in folders if folder.contract.op == op]
    if kernel is not None:
        if not isinstance(kernel, str) or kernel not in own:
            raise ParameterError(op, [Reason("kernel", show(kernel), _names(own))])
        return kernel
    if settings.off:
        return ""
    everyone = [folder.contract.kernel for folder in folders]
    if settings.forced and settings.forced not in everyone:
        raise ParameterError(op, [Reason("KDA_LAB_KERNEL", show(settings.forced), _names(everyone) + " or unset")])
    return settings.forced if settings.forced in own else ""


def _names(kernels: Sequence[str]) -> str:
    return ", ".join(map(repr, kernels)) or "none, since no kernel is exported"


def _claimed_twice(kernels: Sequence[str]) -> Reason:
    remedy = f"Force one with kernel={kernels[0]!r}, or narrow the dispatched shapes of one contract."
    return Reason("kernels", f"claimed by {' and '.join(map(repr, kernels))}", "one kernel a call", remedy)
