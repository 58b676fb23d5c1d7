"""Observing an arm: phases, buffers, settings."""

from __future__ import annotations

import pytest
import torch
from toy_op import BoundArm, make_capture, make_op, reference, replace, write

from kda_lab.errors import VerificationError
from kda_lab.ops.protocol import FunctionArm
from kda_lab.verify.observation import Settings, observe
from kda_lab.verify.reference import make_reference


def test_phases_in_order() -> None:
    """First, repeat, shorter, longer: eager on a CPU, all of one bound launcher."""
    binds: list[int] = []

    def bind(call):
        binds.append(1)
        return lambda: write(call)

    seen = observe(BoundArm("right", bind), reference(), Settings())
    assert list(seen.phases) == ["first", "repeat_1", "shorter", "longer"]
    assert {phase.mode for phase in seen.phases.values()} == {"eager"}
    assert (len(binds), seen.failure, seen.state) == (1, "", {})


def test_more_repeats() -> None:
    """Each further launch of the same contents is a phase."""
    seen = observe(FunctionArm("right", write), reference(), Settings(repeats=4))
    assert list(seen.phases)[:4] == ["first", "repeat_1", "repeat_2", "repeat_3"]


def test_first_only_stops_after_one_launch() -> None:
    """The quick look at a mutant is one launch, and nothing of its state."""
    seen = observe(FunctionArm("right", write), reference(), Settings(first_only=True))
    assert (list(seen.phases), seen.state) == (["first"], None)


def test_buffers_keep_their_addresses() -> None:
    """All phases run over the same memory: contents change in place."""
    addresses = set()

    def run(call) -> None:
        addresses.add((call.inputs["x"].data_ptr(), call.inputs["cu"].data_ptr(), call.outputs["out"].data_ptr()))
        write(call)

    observe(FunctionArm("right", run), reference(), Settings())
    assert len(addresses) == 1


def test_the_reference_is_out_of_reach() -> None:
    """An arm gets other memory than the reference's, and its damage does not last into the next phase."""
    ref = reference()
    before = {n: t.clone() for n, t in ref.original.inputs.items()}

    def spoiling(call) -> None:
        write(call)
        call.inputs["x"].fill_(0)

    seen = observe(FunctionArm("spoiling", spoiling), ref, Settings())
    assert all(torch.equal(before[n].nan_to_num(), t.nan_to_num()) for n, t in ref.original.inputs.items())
    assert torch.equal(seen.phases["first"].outputs["out"], seen.phases["repeat_1"].outputs["out"])


def test_outputs_are_kept_per_phase() -> None:
    """A phase's outputs are copies: later launches do not change them."""
    seen = observe(FunctionArm("right", write), reference(), Settings())
    assert not torch.equal(seen.phases["first"].outputs["out"], seen.phases["shorter"].outputs["out"])


@pytest.mark.parametrize("role, others", [("candidate", True), ("baseline", False), ("peer", False)])
def test_only_a_candidate_must_read_live_lengths(role: str, others: bool) -> None:
    """A baseline or peer that fixes lengths when bound is not replayed on others; a candidate is."""
    arm = FunctionArm("planned", write, reads_live_lengths=False)
    seen = observe(arm, reference(), Settings(role=role))
    assert ("shorter" in seen.phases, seen.fixed_lengths) == (others, not others)


def test_a_failure_keeps_what_was_seen_before() -> None:
    """Phases before the failure stay; those after it are absent."""

    def run(call) -> None:
        if int(call.inputs["cu"][-1]) > 57:
            raise ValueError("too long")
        write(call)

    seen = observe(FunctionArm("short", run), reference(), Settings())
    assert list(seen.phases) == ["first", "repeat_1", "shorter"]
    assert seen.failure == "longer: ValueError: too long"
    assert seen.state is None


def test_one_launch_is_too_few() -> None:
    """Determinism needs two launches."""
    with pytest.raises(VerificationError, match=r"verify: repeats is 1; allowed: 2 or more."):
        Settings(repeats=1)


def test_unknown_role() -> None:
    """A role outside of the list is refused with the list."""
    with pytest.raises(
        VerificationError, match=r"role is 'judge'; allowed: candidate, baseline, peer, control, mutant."
    ):
        Settings(role="judge")


@pytest.mark.gpu
def test_changed_contents_are_graph_replays_on_a_gpu() -> None:
    """On CUDA the changed contents go through graphs that were captured over other contents."""

    ref = make_reference(make_op(), make_capture(), torch.device("cuda"))

    def run(call) -> None:
        cu, x = call.inputs["cu"].long(), torch.nan_to_num(call.inputs["x"].float())
        rows = torch.arange(x.shape[0], device=x.device)[:, None]
        mine = ((rows >= cu[:-1]) & (rows < cu[1:])).float()
        total = torch.einsum("nb,nhd->bhd", mine, x)
        call.outputs["out"].copy_(total / cu.diff().clamp(min=1)[:, None, None] * 0.75)
        call.outputs["count"].copy_(cu.diff())

    seen = observe(FunctionArm("right", run), ref, Settings())
    assert seen.failure == ""
    assert [seen.phases[n].mode for n in ("first", "shorter", "longer")] == ["eager", "graph", "graph"]
    assert seen.phases["longer"].contents.error(seen.phases["longer"].outputs) < ref.changed[1].limit_error


def test_the_decoy_leaves_codes_alone() -> None:
    """Only floats of two bytes and more are negated in the decoy: one-byte floats are codes without a sign."""
    seen: list[tuple[float, int]] = []

    def run(call) -> None:
        seen.append((float(call.inputs["x"][0, 0, 0]), int(call.inputs["codes"].view(torch.uint8)[0])))
        write(call)

    op, capture = make_op(), make_capture()
    plain = op.cases.changed
    codes = torch.full((4,), 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)
    op.cases.changed = lambda call, name, seed, source=None: {**plain(call, name, seed), "codes": codes}
    capture = replace(capture, call=capture.call.with_inputs(codes=codes))
    observe(FunctionArm("right", run), make_reference(op, capture, torch.device("cpu")), Settings())
    decoy, first = seen[2], seen[3]
    assert decoy == (-first[0], 0x38)
    assert {code for _, code in seen} == {0x38}


def test_prepared_launchers_prepare_before_each_launch() -> None:
    """A peer's prepare() runs after every refill and before the launch, once a phase, decoys excluded for peers."""
    log: list[str] = []

    class Prepared:
        def __init__(self, call) -> None:
            self.call = call

        def prepare(self) -> None:
            log.append(f"prepare {int(self.call.inputs['cu'][-1])}")

        def __call__(self) -> None:
            log.append(f"launch {int(self.call.inputs['cu'][-1])}")
            write(self.call)

    seen = observe(BoundArm("prepared", Prepared), reference(), Settings(role="peer"))
    assert (seen.failure, len(log)) == ("", 8)
    assert [line.split()[0] for line in log] == ["prepare", "launch"] * 4
    assert [a.split()[1] for a in log[::2]] == [b.split()[1] for b in log[1::2]]


@pytest.mark.gpu
def test_prepared_launchers_run_eagerly_on_a_gpu() -> None:
    """What was read on the host in prepare() would be baked into a graph, so such a launcher is not captured."""

    class Prepared:
        def __init__(self, call) -> None:
            self.call = call
            self.prepare()

        def prepare(self) -> None:
            host = self.call.to("cpu")
            write(host)
            self.answer = {n: t.to("cuda") for n, t in host.outputs.items()}

        def __call__(self) -> None:
            for name, value in self.answer.items():
                self.call.outputs[name].copy_(value)

    ref = make_reference(make_op(), make_capture(), torch.device("cuda"))
    seen = observe(BoundArm("prepared", Prepared), ref, Settings(role="baseline"))
    assert (seen.failure, {phase.mode for phase in seen.phases.values()}) == ("", {"eager"})
