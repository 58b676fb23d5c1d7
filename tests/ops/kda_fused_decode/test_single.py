"""The candidate `single`: right at the edges, in every schedule, over steps, equal to its parts, sound in its refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.kda_fused_decode import cases, oracle
from kda_lab.ops.protocol import Call
from kda_lab.verify.metrics import rel_l2

CANDIDATES = Path(__file__).parents[3] / "notebooks" / "candidates"
SINGLE = candidate_arm(CANDIDATES / "kda.fused_decode" / "single.py")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EDGES = cases.edge_calls(5, DEVICE)
CALLS = [cases.synthesise(row, 0, DEVICE) for row in cases.capture_rows()]
PADDED = CALLS[0]
SMALL = cases.synthesise(cases.row("small", {"HV": 2, "V": 32, "B": 3, "padding": True}), 0, DEVICE)
"""Of few programs, which the interpreter runs one after another."""


def run(call: Call) -> dict[str, torch.Tensor]:
    """Outputs of one launch on restored memory; the row buffer holds NaN before it."""
    call.restore()
    call.outputs["out"].fill_(float("nan"))
    SINGLE.bind([call])[0]()
    return {name: tensor.clone() for name, tensor in call.outputs.items()}


@pytest.mark.parametrize("call", [*EDGES.values(), *CALLS], ids=lambda call: call.label)
def test_right_at_the_edges_and_on_captures(call: Call, is_right: Callable[..., bool]) -> None:
    """Every element within its allowance, in memory with gaps; windows, padding and other slots exactly."""
    guarded = cases.with_guard_rows(call, 1)
    assert is_right(guarded, run(guarded))


@pytest.mark.parametrize("shape", [(4, 1), (8, 2), (16, 4)], ids=str)
def test_every_tiling_gives_the_same_windows_and_states(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch, is_right: Callable[..., bool]
) -> None:
    """A row of the state is computed alike whatever tile it lies in; the norm adds the tiles in another order."""
    right = run(SMALL)
    monkeypatch.setattr(SINGLE.module, "SCHEDULES", ((1 << 62, SINGLE.module.Schedule(*shape)),))
    found = run(SMALL)
    assert is_right(SMALL, found)
    assert torch.equal(found["conv_state"], right["conv_state"])
    assert DEVICE == "cuda" or torch.equal(found["state"], right["state"])
    assert is_right(EDGES["odd_width"], run(EDGES["odd_width"]))


def test_two_steps_follow_each_other() -> None:
    """Windows and states of the first launch are what the second one works on."""
    SINGLE.bind([SMALL])
    SMALL.restore()
    pools = {n: SMALL.inputs[n] for n in cases.POOLS}
    for seed in range(2):
        new = cases.changed(SMALL, "operands", seed)
        call = SMALL.with_inputs(**{n: t for n, t in new.items() if n not in cases.POOLS})
        SINGLE.bind([call])[0]()
        right = oracle.oracle_fp64(call.with_inputs(**pools))
        pools = {n: right[n] for n in cases.POOLS}
        assert rel_l2(call.outputs["out"], right["out"]) < 2.5e-3
        assert torch.equal(call.outputs["conv_state"], right["conv_state"])
        assert rel_l2(call.outputs["state"], right["state"]) < 1e-5


def test_it_is_the_packed_kernel_between_convolution_and_norm() -> None:
    """Given the same convolved rows the packed kernel leaves the same states: to the bit in the interpreter."""
    packed = candidate_arm(CANDIDATES / "kda.packed_decode" / "tiled.py").module
    found = run(SMALL)
    rows = oracle.convolved(SMALL, torch.float32).to(torch.bfloat16)
    inner = oracle.packed_call(SMALL, rows)
    pool = SMALL.inputs["state"].clone()
    o = packed.packed_decode(**{**inner.inputs, "state": pool}, **inner.scalars)
    assert rel_l2(found["state"], pool) < (1e-5 if DEVICE == "cuda" else 1e-7)
    x = oracle.step_operands(SMALL, torch.float32)
    # The packed kernel rounds its output to BF16, the fused one does not.
    shown = oracle.shown(SMALL, x, o[x.rows, 0].float())
    assert rel_l2(found["out"][x.rows], shown.flatten(1)) < 5e-3


def test_an_output_is_made_where_none_is_given() -> None:
    """Returned, with the op's shape and dtype, and equal to the given one."""
    right = run(SMALL)["out"]
    SMALL.restore()
    tensors = {**SMALL.inputs, **{n: SMALL.outputs[n] for n in cases.POOLS}}
    assert torch.equal(SINGLE.module.fused_decode(**tensors, **SMALL.scalars), right)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mixed_qkv": lambda t: t[:, :-1]}, "mixed_qkv must be 384 wide, a and gate 128, b 4"),
        ({"conv_weight": lambda t: t[:3]}, r"conv_weight must be \[4, 384\]"),
        ({"norm_weight": lambda t: t.bfloat16()}, "weights float32"),
        ({"gate": lambda t: t[:-1]}, "B is 5; allowed: 1 to 65535, the same for all rows"),
        ({"conv_state": lambda t: t.float()}, "rows and conv_state must be bfloat16"),
        ({"conv_state": lambda t: t[:, :2]}, r"conv_state \(6, 2, 384\); allowed: K = V, 3 x 3P"),
        ({"state": lambda t: t.half()}, "state must be float32 or bfloat16, state_indices int32"),
        ({"state": lambda t: t.transpose(-1, -2)}, "rows and slots must be contiguous; their strides are free"),
        ({"state_indices": lambda t: t.repeat_interleave(2)[::2]}, "weights and state_indices must be contiguous"),
        ({"state": lambda t: t[0]}, r"rows must be \[B, …\]"),
    ],
)
def test_the_kernel_refuses_by_itself(change: dict, words: str) -> None:
    """Lifted out of this project it still says what it cannot take."""
    tensors = {**PADDED.inputs, **{name: make(PADDED.inputs[name]) for name, make in change.items()}}
    with pytest.raises(ValueError, match=words):
        SINGLE.module.fused_decode(**tensors, **PADDED.scalars)


@pytest.mark.parametrize("bound", [0.0, -5.5, float("nan")])
def test_bounds_outside_the_gate_are_refused(bound: float) -> None:
    """The safe gate has a bound from -5 to below 0."""
    with pytest.raises(ValueError, match=r"lower_bound is .*; allowed: None, or -5\.0 <= lower_bound < 0"):
        SINGLE.module.fused_decode(**PADDED.inputs, lower_bound=bound)


def test_an_output_of_another_shape_is_refused() -> None:
    """out is [B, P] and contiguous."""
    with pytest.raises(ValueError, match=r"out is \(5, 127\); allowed: contiguous \(5, 128\)"):
        SINGLE.module.fused_decode(**PADDED.inputs, **PADDED.scalars, out=PADDED.outputs["out"][:, :-1])
