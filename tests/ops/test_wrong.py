"""The mistakes that every op's mutants share are mistakes indeed."""

from __future__ import annotations

import torch

from kda_lab.ops.protocol import Call
from kda_lab.ops.wrong import StatefulArm, all_zero, baked, untouched


def doubling() -> Call:
    """A call of an op that doubles x."""
    return Call("test.double", {"x": torch.ones(3)}, {}, {"y": torch.full((3,), 7.0)})


def double(call: Call) -> None:
    """The right computation."""
    call.outputs["y"].copy_(2 * call.inputs["x"])


def test_all_zero_writes_every_output() -> None:
    """Zeros stand in every output afterwards."""
    call = doubling()
    all_zero(call)
    assert not call.outputs["y"].any()


def test_untouched_leaves_what_was_there() -> None:
    """The outputs keep their old contents."""
    call = doubling()
    untouched(call)
    assert torch.equal(call.outputs["y"], torch.full((3,), 7.0))


def test_a_baked_input_is_never_read_again() -> None:
    """The launcher computes with the contents of the time of `bind`, whatever is written into the input since."""
    call = doubling()
    (launch,) = baked("x_baked", ("x",), double).bind([call])
    call.inputs["x"].fill_(5.0)
    launch()
    assert torch.equal(call.outputs["y"], torch.full((3,), 2.0))


def test_each_call_has_a_memory_of_its_own() -> None:
    """A stateful arm makes one launcher a call."""
    seen: list[Call] = []
    arm = StatefulArm("stateful", lambda call: lambda: seen.append(call))
    calls = [doubling(), doubling()]
    for launch in arm.bind(calls):
        launch()
    assert [id(call) for call in seen] == [id(call) for call in calls]
    assert arm.unavailable(torch.device("cpu")) == ""
