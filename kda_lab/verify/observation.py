"""What happened when an arm ran: its launches on guarded buffers, recorded phase by phase, judged later.

The phases share one bound launcher and one set of buffers, as in a serving process:
`first` and `repeat` on the original contents, then two phases after the buffers were refilled in
place; the op names them (`shorter` and `longer` for live lengths). On CUDA the last two are graph
replays: the first of a graph captured over the original contents, the second of a graph captured
over the first changed ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kda_lab.errors import Reason, VerificationError
from kda_lab.ops.protocol import Arm, Call, Launcher, preparation_of
from kda_lab.verify import graph
from kda_lab.verify.guarded import GuardedBuffer, copy_strided, same_bits
from kda_lab.verify.launching import ArmFailure, bind_one, nonzero_state, run_arm, wait
from kda_lab.verify.reference import Contents, Reference, Tensors

ROLES = ("candidate", "baseline", "peer", "control", "mutant")
READS_EVERYTHING = ("candidate", "mutant")
"""Roles whose launch must do all of the work: they get a decoy and may not prepare by contents."""


@dataclass(frozen=True)
class Settings:
    """How an arm is run.

    Raises:
        VerificationError: fewer than two launches of the same contents, or an unknown role.
    """

    repeats: int = 2
    """Launches of the original contents; at least 2."""
    role: str = "candidate"
    """Only a candidate must read lengths when it runs and survive graph capture."""
    graphs: bool = True
    """On CUDA: judge changed contents through graphs. Mutants are torch code that no graph can hold."""
    first_only: bool = False
    """Stop after the first launch: what that alone shows. Never a pass, since the other checks lack evidence."""

    def __post_init__(self) -> None:
        if self.repeats < 2:
            raise VerificationError("verify", [Reason("repeats", repr(self.repeats), "2 or more")])
        if self.role not in ROLES:
            raise VerificationError("verify", [Reason("role", repr(self.role), ", ".join(ROLES))])


@dataclass(frozen=True)
class Phase:
    """One launch: what it wrote, and what it should not have touched."""

    contents: Contents
    mode: str
    """`eager` or `graph`."""
    outputs: Tensors
    unwritten: Tensors
    """Boolean per output: the poison still stands."""
    broken_guards: dict[str, int]
    """Output name to elements written outside of it; intact outputs are absent."""
    changed_inputs: tuple[str, ...]
    """Inputs that are not bit-identical to what was put there."""


@dataclass
class Observation:
    """All phases of one arm on one capture; phases that were not reached are absent."""

    reference: Reference
    phases: dict[str, Phase] = field(default_factory=dict)
    failure: str = ""
    """Stage and words of what stopped the arm; empty when nothing did."""
    fixed_lengths: bool = False
    """The arm fixes lengths when it is bound, and its role allows that."""
    state: dict[str, int] | None = None
    """State tensor to its non-zero elements after the last launch; None when not reached."""


def observe(arm: Arm, reference: Reference, settings: Settings) -> Observation:
    """Run the arm through its phases. A failure of the arm ends the run and is recorded, never raised."""
    seen = Observation(reference)
    seen.fixed_lengths = settings.role != "candidate" and not arm.reads_live_lengths
    try:
        _run_phases(arm, seen, settings)
    except ArmFailure as failure:
        seen.failure = str(failure)
    return seen


def _run_phases(arm: Arm, seen: Observation, settings: Settings) -> None:
    bench = _Bench(seen.reference)
    device = seen.reference.call.device
    launcher = bind_one(arm, bench.call(), device, may_prepare=settings.role not in READS_EVERYTHING)
    for turn in range(settings.repeats):
        name = "first" if turn == 0 else f"repeat_{turn}"
        seen.phases[name] = bench.launch(name, seen.reference.original, launcher, "eager")
        if settings.first_only:
            return
    if not seen.fixed_lengths:
        # What was prepared on the host (a scale read beforehand) is baked into a graph: such a launcher runs eagerly.
        graphs = device.type == "cuda" and settings.graphs and preparation_of(launcher) is None
        mode = "graph" if graphs else "eager"
        _run_changed(bench, seen, launcher, mode, decoy=settings.role in READS_EVERYTHING)
    seen.state = run_arm("state_tensors", lambda: nonzero_state(arm), device)


def _run_changed(bench: _Bench, seen: Observation, launcher: Launcher, mode: str, decoy: bool) -> None:
    """Refill in place and launch. A decoy first: the first change with other values at its addresses, not judged.

    An arm that remembers its answer by addresses and lengths then gives the decoy's.
    """
    before = seen.reference.original
    for number, contents in enumerate(seen.reference.changed):
        launch = launcher
        if mode == "graph":
            bench.refill(before)
            launch = run_arm(
                f"capture before {contents.name}", lambda: graph.capture(launcher, bench.device), bench.device
            )
        if decoy and number == 0:
            bench.launch(f"decoy of {contents.name}", _negated(contents), launch, mode)
        seen.phases[contents.name] = bench.launch(contents.name, contents, launch, mode)
        before = contents


def _negated(contents: Contents) -> Contents:
    """The contents with every floating-point input negated: same lengths, other answer, NaN where NaN was.

    One-byte floats are codes of a quantised format, such as block scales that have no sign: they stay.
    """
    inputs = {n: -t if t.is_floating_point() and t.element_size() > 1 else t for n, t in contents.inputs.items()}
    return replace(contents, inputs=inputs)


class _Bench:
    """The buffers that an arm is bound to, and the only code that refills and reads them."""

    def __init__(self, reference: Reference) -> None:
        self.device = reference.call.device
        self._call = reference.call
        self._inputs = {n: copy_strided(t) for n, t in reference.call.inputs.items()}
        self._outputs = {n: GuardedBuffer(t) for n, t in reference.call.outputs.items()}
        self._turn = 0

    def call(self) -> Call:
        """The call for the arm: new tensor objects over our memory, so that no resize reaches ours."""
        inputs = {n: t.detach() for n, t in self._inputs.items()}
        outputs = {n: buffer.view() for n, buffer in self._outputs.items()}
        return self._call.with_inputs(**inputs).with_outputs(**outputs)

    def refill(self, contents: Contents) -> None:
        """Write contents into the bound input buffers, in place."""
        for name, tensor in self._inputs.items():
            tensor.copy_(contents.inputs[name])

    def launch(self, name: str, contents: Contents, launcher: Launcher, mode: str) -> Phase:
        """Refill, poison, restore what is updated in place, launch once, wait, and take down what is there now."""
        self.refill(contents)
        for buffer in self._outputs.values():
            buffer.poison(self._turn)
        self.call().restore()
        self._turn += 1
        # Again before each launch, outside of what a graph holds: contents may be others than at the bind.
        preparation = preparation_of(launcher)
        if preparation is not None:
            run_arm(f"prepare {name}", preparation, self.device)
        # Work on a stream of the arm's own must not overtake the refill and the poison.
        wait(self.device)
        run_arm(name, launcher, self.device)
        broken = {n: b.broken_guards() for n, b in self._outputs.items()}
        return Phase(
            contents=contents,
            mode=mode,
            outputs={n: b.view().clone() for n, b in self._outputs.items()},
            unwritten={n: b.unwritten() for n, b in self._outputs.items()},
            broken_guards={n: count for n, count in broken.items() if count},
            changed_inputs=tuple(n for n, t in self._inputs.items() if not same_bits(t, contents.inputs[n])),
        )
