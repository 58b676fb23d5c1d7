"""Suites on what lasts longer than a launch: graphs, counters, scratch, streams, and the proof of one kernel a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from kda_lab.ops.protocol import Call, Launcher
from kda_lab.ops.qsa_packed_decode.cases import TARGET_WIDTH, TOPOLOGIES, changed, with_capacity
from kda_lab.suites.bench import Bench
from kda_lab.suites.suite import Case, Outcome
from kda_lab.timing.activity import profile_call
from kda_lab.verify.guarded import same_bits
from kda_lab.verify.launching import run_arm, wait
from kda_lab.verify.reference import make_reference
from kda_lab.verify.stress import stress

TP1, TP2 = TOPOLOGIES["tp1"], TOPOLOGIES["tp2"]
GRAPHS = (
    (TP2, (17, 65, 511), (64, 2051, 1024)),
    (TP2, (64, 511, 861, 2051), (2051, 1307, 511, 64)),
    (TP1, (64, 511, 861, 2051), (2051, 1307, 511, 64)),
    (TP1, (2051, 2051, 2051), (1, 1, 1)),
)
"""Heads, lengths when the graph is captured, lengths when it is replayed; the first two are the source thread's."""
ALTERNATING = (1, 128, 2, 64, 3, 100, 1, 16)
COUNTED = ((TP1, (1537,) * 17), (TP2, (2051,) * 4))
"""Launches of the thread's counter tests: each row is split, in more slots than an earlier workspace had."""
UNSAFE = "must not overlap"
"""Words with which a contract says that graphs of one device may not run side by side."""
REPLAYS_A_CASE = 50


def graph_lengths(bench: Bench) -> list[Case]:
    """A graph captured at some lengths and replayed at others, its buffers refilled in place, gives the new answer."""
    return [
        Case(
            f"{heads[0]}/{heads[1]}: {list(first)} to {list(second)}", partial(_regraphed, bench, heads, first, second)
        )
        for heads, first, second in GRAPHS
    ]


def lengths_each_replay(bench: Bench) -> list[Case]:
    """One graph, replayed with other lengths each time by a device-side write; every fiftieth answer is judged."""
    walk = _Walk(bench)
    cases = bench.count(20, 2)
    return [Case(f"replays {REPLAYS_A_CASE * i} to {REPLAYS_A_CASE * (i + 1)}", walk.go) for i in range(cases)]


def alternating_batches(bench: Bench) -> list[Case]:
    """Launches of other batches and heads in turn: a slot of the scratch never keeps what it meant before."""
    return [
        Case(f"B {batch}, {heads[0]}/{heads[1]}, round {turn}", partial(_alternated, bench, batch, heads))
        for turn in range(2)
        for batch in ALTERNATING
        for heads in TOPOLOGIES.values()
    ]


def two_graphs(bench: Bench) -> list[Case]:
    """Two graphs in turn on one stream are both right; on two streams too, or the contract says they must not overlap."""
    pairs = [((64, 511, 861, 2051), (2051, 1307, 511, 64)), ((2051,), (858,))]
    return [
        Case(f"{name}, {heads[0]}/{heads[1]}, {len(pair[0])} rows", partial(_interleaved, bench, heads, pair, streams))
        for pair in pairs
        for heads in TOPOLOGIES.values()
        for name, streams in (("one stream", 1), ("two streams", 2))
    ]


def counters(bench: Bench) -> list[Case]:
    """A hundred launches that all split their rows leave every counter at zero and the right answer."""
    return [
        Case(f"{len(live)} x {live[0]}, {heads[0]}/{heads[1]}", partial(_counted, bench, heads, live))
        for heads, live in reversed(COUNTED)
    ]


def stressed_captures(bench: Bench) -> list[Case]:
    """Each capture, launched ten thousand times: the same bits every time, and no state left."""
    return [Case(name, partial(_stressed, bench, name)) for name in bench.captures.names()]


def flat_memory(bench: Bench) -> list[Case]:
    """A thousand launches, eager and as graph replays, allocate nothing that stays."""
    shapes = ((TP1, (2051,) * 4), (TP2, (858,)), (TP1, (227,) * 128))
    modes: tuple[tuple[str, Callable[[Call], Launcher]], ...] = (("eager", bench.bind), ("graph", bench.captured))
    return [
        Case(f"{name}, {heads[0]}/{heads[1]}, {len(live)} rows", partial(_flat, bench, heads, live, make))
        for heads, live in shapes
        for name, make in modes
    ]


def one_activity(bench: Bench) -> list[Case]:
    """The profiler sees as many kernels, copies and fills a call as the contract declares, which is one."""
    shapes = ((1,), (2051,), (64, 861, 1307, 2051), (227,) * 16, (1280,) * 64, (2051,) * 128)
    return [
        Case(f"{heads[0]}/{heads[1]}, {len(live)} rows", partial(_profiled, bench, heads, live))
        for live in shapes
        for heads in TOPOLOGIES.values()
    ]


def _refill(call: Call, contents: dict[str, torch.Tensor]) -> None:
    for name, tensor in contents.items():
        call.inputs[name].copy_(tensor)


def _regraphed(bench: Bench, heads: tuple[int, int], first: Sequence[int], second: Sequence[int]) -> Outcome:
    call = with_capacity(bench.call(first, heads, guard_rows=0), len(first) * TARGET_WIDTH)
    replay = bench.captured(call)
    fault = bench.fault(call, bench.run(call, replay))
    if fault:
        return Outcome(f"at the lengths of the capture: {fault}")
    _refill(call, changed(call, second, bench.seed + 1))
    fault = bench.fault(call, bench.run(call, replay))
    return Outcome(fault or bench.state_fault())


@dataclass
class _Walk:
    """One graph and a table of lengths that its replays run through; made when the first case is run."""

    bench: Bench
    call: Call | None = None
    replay: Launcher | None = None
    step: int = 0

    def go(self) -> Outcome:
        """Replay fifty times more, each time with the next lengths, and judge the last."""
        if self.call is None or self.replay is None:
            self.call = self.bench.call((700, 31, 900, 1), TP1, guard_rows=0)
            self.replay = self.bench.captured(self.call)
        ends = self._ends(self.call)[-self.bench.count(REPLAYS_A_CASE, 2) :]
        for now in ends[:-1]:
            self.call.inputs["cu_seqlens_k"].copy_(now)
            run_arm("replay", self.replay, self.bench.device)
        self.call.inputs["cu_seqlens_k"].copy_(ends[-1])
        self.step += 1
        return Outcome(self.bench.fault(self.call, self.bench.run(self.call, self.replay)) or self.bench.state_fault())

    def _ends(self, call: Call) -> list[torch.Tensor]:
        """Fifty ends of rows: four cuts of the rows that are there, in order."""
        rows = call.inputs["k"].shape[0]
        generator = torch.Generator().manual_seed(self.bench.seed + self.step)
        cuts = torch.randint(0, rows + 1, (REPLAYS_A_CASE, 4), generator=generator).sort(dim=1).values
        ends = torch.nn.functional.pad(cuts, (1, 0)).to(torch.int32)
        return list(ends.to(self.bench.device))


def _alternated(bench: Bench, batch: int, heads: tuple[int, int]) -> Outcome:
    rows = bench.count(batch, min(batch, 8))
    live = tuple(1 + (97 * r + batch) % bench.count(700, 40) for r in range(rows))
    return Outcome(bench.judged(bench.call(live, heads)) or bench.state_fault())


def _interleaved(
    bench: Bench, heads: tuple[int, int], pair: tuple[Sequence[int], Sequence[int]], streams: int
) -> Outcome:
    calls = [bench.call(live, heads) for live in pair]
    replays = [bench.captured(call) for call in calls]
    wanted = [bench.run(call, replay) for call, replay in zip(calls, replays, strict=True)]
    fault = next(filter(None, map(bench.fault, calls, wanted)), "")
    if fault:
        return Outcome(f"before they were interleaved: {fault}")
    lanes = [torch.cuda.Stream(bench.device) for _ in range(streams)]
    rounds, wrong = 100, 0
    for _ in range(rounds):
        for call in calls:
            call.outputs["out"].fill_(float("nan"))
        wait(bench.device)
        run_arm("interleaved replays", partial(_replay_both, replays, lanes), bench.device)
        wrong += not all(same_bits(c.outputs["out"], w) for c, w in zip(calls, wanted, strict=True))
    return _judge_overlap(bench, streams, wrong, rounds)


def _replay_both(replays: Sequence[Launcher], lanes: Sequence[torch.cuda.Stream]) -> None:
    # Several each, so that the two streams run side by side and not just one behind the other.
    for _ in range(4):
        for number, replay in enumerate(replays):
            with torch.cuda.stream(lanes[number % len(lanes)]):
                replay()


def _judge_overlap(bench: Bench, streams: int, wrong: int, rounds: int) -> Outcome:
    state = bench.state_fault()
    said = UNSAFE in bench.concurrency
    found = f"{wrong} of {rounds} rounds gave other bits{'; ' + state if state else ''}"
    if streams == 1:
        return Outcome(f"{found}; allowed: 0" if wrong or state else "")
    if state:
        bench.reset()
    if not wrong and not state:
        return Outcome(
            note=f"right in {rounds} rounds on two streams; the contract {'forbids' if said else 'allows'} it"
        )
    remedy = f"allowed: 0, or a contract whose state.concurrency says {UNSAFE!r}"
    return Outcome(note=f"{found}, which the contract forbids") if said else Outcome(f"{found}; {remedy}")


def _counted(bench: Bench, heads: tuple[int, int], live: Sequence[int]) -> Outcome:
    call = bench.call(live, heads)
    launch = bench.bind(call)
    for _ in range(bench.count(100, 2) - 1):
        run_arm("launch", launch, bench.device)
    fault = bench.fault(call, bench.run(call, launch)) or bench.state_fault()
    has_state = hasattr(bench.arm, "state_tensors") and bool(bench.arm.state_tensors())
    return Outcome(fault, "" if has_state else "the arm shows no state")


def _stressed(bench: Bench, name: str) -> Outcome:
    reference = make_reference(bench.op, bench.captures.load(name), bench.device)
    found = stress(bench.arm, reference, bench.count(bench.stress_launches, 1))
    bench.launches += found.launches + 1
    if found.passed:
        return Outcome()
    return Outcome(
        found.failure or f"{found.differing} of {found.launches} launches gave other bits; state {found.nonzero_state}"
    )


def _flat(bench: Bench, heads: tuple[int, int], live: Sequence[int], make: Callable[[Call], Launcher]) -> Outcome:
    call = bench.call(live, heads)
    launch = make(call)
    for _ in range(3):
        run_arm("launch", launch, bench.device)
    before = torch.cuda.memory_allocated(bench.device)
    run_arm("launch", lambda: [launch() for _ in range(1000)], bench.device)
    grown = torch.cuda.memory_allocated(bench.device) - before
    return Outcome(f"memory grew by {grown} bytes in 1000 launches; allowed: 0" if grown else "")


def _profiled(bench: Bench, heads: tuple[int, int], live: Sequence[int]) -> Outcome:
    launch = bench.bind(bench.call(live, heads))
    seen = run_arm("profile", lambda: profile_call(launch, bench.device), bench.device)
    declaration = getattr(bench.arm, "declaration", None)
    wanted = declaration.kernels_per_call if declaration is not None else 1
    if seen.kernels is None:
        return Outcome(f"nothing was seen: {seen.reason}")
    count = sum(seen.kernels.values())
    return Outcome(f"{count} activities a call, {seen.kernels}; allowed: {wanted}" if count != wanted else "")
