"""The candidate `tiled`: right at the edges, in every schedule, over many steps, and on its own in its refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.kda_packed_decode import cases, oracle
from kda_lab.ops.protocol import Call
from kda_lab.verify.metrics import rel_l2

ROOT = Path(__file__).parents[3]
TILED = candidate_arm(ROOT / "notebooks" / "candidates" / "kda.packed_decode" / "tiled.py")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EDGES = cases.edge_calls(5, DEVICE)
CALLS = [cases.synthesise(row, 0, DEVICE) for row in cases.capture_rows()]
SHARED = CALLS[0]
SMALL_ROW = cases.row("small", {"HV": 2, "H": 1, "K": 32, "V": 16, "B": 3, "padding": True})
SMALL = cases.synthesise(SMALL_ROW, 0, DEVICE)
"""Of few programs, which the interpreter runs one after another."""


def run(call: Call) -> dict[str, torch.Tensor]:
    """Outputs of one launch on restored memory; the row buffer holds NaN before it."""
    call.restore()
    call.outputs["out"].fill_(float("nan"))
    TILED.bind([call])[0]()
    return {name: tensor.clone() for name, tensor in call.outputs.items()}


@pytest.mark.parametrize("call", [*EDGES.values(), *CALLS], ids=lambda call: call.label)
def test_right_at_the_edges_and_on_captures(call: Call, is_right: Callable[..., bool]) -> None:
    """Every element within its allowance, in memory with gaps; padding and other slots exactly."""
    guarded = cases.with_guard_rows(call, 1)
    assert is_right(guarded, run(guarded))


@pytest.mark.parametrize("shape", [(4, 1, 1), (8, 1, 4), (16, 2, 2), (64, 4, 1)], ids=str)
def test_every_schedule_gives_the_same_bits(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch, is_right: Callable[..., bool]
) -> None:
    """A row of the state is computed alike whatever tile it lies in."""
    right = run(SMALL)
    block_v, warps, tiles = shape
    schedule = TILED.module.Schedule(block_v, warps, tiles)
    monkeypatch.setattr(TILED.module, "SCHEDULES", ((1 << 62, schedule),))
    found = run(SMALL)
    assert is_right(SMALL, found)
    assert DEVICE == "cuda" or all(torch.equal(found[n], right[n]) for n in right)
    assert is_right(EDGES["odd_widths"], run(EDGES["odd_widths"]))


def test_steps_are_the_recurrence() -> None:
    """Three launches on one pool follow the FP64 recurrence: the state to FP32 noise, each output to one rounding."""
    pool, exact = SMALL.outputs["state"], SMALL.inputs["state"].double()
    SMALL.restore()
    for seed in range(3):
        new = {n: t for n, t in cases.changed(SMALL, "operands", seed).items() if n != "state"}
        call = SMALL.with_inputs(**new)
        TILED.bind([call])[0]()
        right = oracle.oracle_fp64(call.with_inputs(state=exact))
        exact = right["state"]
        assert rel_l2(call.outputs["out"], right["out"]) < 2.5e-3
        assert rel_l2(pool, exact) < 1e-6


def test_one_gate_a_head_and_a_shared_query_head(is_right: Callable[..., bool]) -> None:
    """The gated delta rule with grouped heads is a special case that the kernel meets."""
    K = SMALL.facts["K"]
    gate = SMALL.inputs["a"].unflatten(1, (-1, K))[..., :1].expand(-1, -1, K).flatten(1)
    call = SMALL.with_inputs(a=gate.contiguous(), dt_bias=torch.zeros_like(SMALL.inputs["dt_bias"]))
    assert is_right(call, run(call))


def test_schedules_serve_every_size() -> None:
    """Each launch size finds a schedule, and each schedule serves some size."""
    module = TILED.module
    assert {module.schedule_for(1 << n) for n in range(24)} == {schedule for _, schedule in module.SCHEDULES}


def test_an_output_is_made_where_none_is_given() -> None:
    """Returned, with the op's shape and dtype, and equal to the given one."""
    right = run(SMALL)["out"]
    SMALL.restore()
    tensors = {**SMALL.inputs, "state": SMALL.outputs["state"]}
    out = TILED.module.packed_decode(**tensors, **SMALL.scalars)
    assert torch.equal(out, right)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mixed_qkv": lambda t: t[:, :-1]}, r"mixed_qkv is 191 wide; allowed: 2·H·32 \+ 64 with H dividing 4"),
        ({"a": lambda t: t[:, :-1]}, "a and dt_bias must be 128 wide, b and a_log 4"),
        ({"b": lambda t: t[:-1]}, "B is 5; allowed: 1 to 65535, the same for mixed_qkv, a and b"),
        ({"b": lambda t: t.float()}, "mixed_qkv, a and b must be bfloat16"),
        ({"state": lambda t: t.half()}, "state must be float32 or bfloat16, state_indices int32"),
        ({"state_indices": lambda t: t.long()}, "state_indices int32"),
        ({"state": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2)}, "heads of a slot must be contiguous"),
        ({"mixed_qkv": lambda t: t.t().contiguous().t()}, "rows of mixed_qkv, a, b"),
        ({"a_log": lambda t: t.repeat_interleave(2)[::2]}, "must be contiguous"),
        ({"state": lambda t: t[0]}, r"state \[slots, HV, V, K\]"),
    ],
)
def test_the_kernel_refuses_by_itself(change: dict, words: str) -> None:
    """Lifted out of this project it still says what it cannot take."""
    tensors = {**SHARED.inputs, **{name: make(SHARED.inputs[name]) for name, make in change.items()}}
    with pytest.raises(ValueError, match=words):
        TILED.module.packed_decode(**tensors, **SHARED.scalars)


@pytest.mark.parametrize("bound", [0.0, -5.5, 1.0, float("nan")])
def test_bounds_outside_the_gate_are_refused(bound: float) -> None:
    """The safe gate has a bound from -5 to below 0."""
    with pytest.raises(ValueError, match=r"lower_bound is .*; allowed: None, or -5\.0 <= lower_bound < 0"):
        TILED.module.packed_decode(**SHARED.inputs, lower_bound=bound)


def test_an_output_of_another_shape_is_refused() -> None:
    """out is [B, 1, HV, V] and contiguous."""
    with pytest.raises(ValueError, match=r"out is \(5, 4, 16\); allowed: contiguous \(5, 1, 4, 16\)"):
        TILED.module.packed_decode(**SHARED.inputs, **SHARED.scalars, out=SHARED.outputs["out"][:, 0])


@pytest.mark.gpu
def test_slots_beyond_32_bits(is_right: Callable[..., bool]) -> None:
    """A slot whose offset passes 2^31 elements is found, as in a pool of many layers."""
    call = cases.synthesise(cases.row("far", {"HV": 1, "B": 2}), 0, "cuda")
    stride = (1 << 30) + 512
    pool = torch.empty_strided((3, 1, 128, 128), (stride, 128 * 128, 128, 1), dtype=torch.float32, device="cuda")
    far = call.with_outputs(state=pool)
    far.inputs["state_indices"].copy_(torch.tensor([2, 0]))
    assert is_right(far, run(far))
