"""The CUDA C++ candidate for fused decode: right at the edges, in every cut, over steps, sound in its refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.kda_fused_decode import cases, oracle
from kda_lab.ops.protocol import Call, Row
from kda_lab.ops.registry import load_op
from kda_lab.verify import replay
from kda_lab.verify.launching import one_thread
from kda_lab.verify.metrics import rel_l2

STAGED = candidate_arm(Path(__file__).parents[3] / "notebooks" / "candidates" / "kda.fused_decode" / "staged.py")
MODULE = STAGED.module
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EDGES = cases.edge_calls(5, DEVICE)
ROWS = cases.capture_rows()
CALLS = [cases.synthesise(row, 0, DEVICE) for row in ROWS]
PADDED, WIDE = CALLS[0], CALLS[3]
SM_BYTES, RESERVED_BYTES = 228 * 1024, 1024


def run(call: Call) -> dict[str, torch.Tensor]:
    """Outputs of one launch on restored memory; the row buffer holds NaN before it."""
    call.restore()
    call.outputs["out"].fill_(float("nan"))
    STAGED.bind([call])[0]()
    return {name: tensor.clone() for name, tensor in call.outputs.items()}


def operands(call: Call) -> object:
    """A call's inputs as the candidate orders them."""
    return MODULE.Operands(**{name: call.inputs[name] for name in MODULE.Operands._fields})


def apart(call: Call, gap: int) -> Call:
    """The call with `gap` elements of NaN behind each row and slot."""

    def spaced(t: torch.Tensor) -> torch.Tensor:
        room = torch.full((t.shape[0], t[0].numel() + gap), float("nan"), dtype=t.dtype, device=t.device)
        view = room[:, :-gap].unflatten(1, t.shape[1:])
        return view.copy_(t)

    pools = {name: spaced(call.inputs[name]) for name in cases.POOLS}
    rows = {name: spaced(call.inputs[name]) for name in cases.OPERANDS}
    return call.with_inputs(**rows, **pools).with_outputs(**{n: spaced(t) for n, t in pools.items()})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_it_passes_every_check_of_the_referee(row: Row) -> None:
    """Poison, guards, repeated bits, other tokens and slots: on both gates, both dtypes of the state, padding."""
    call = cases.synthesise(row, 0)
    capture = SimpleNamespace(name="fused", kind="synthetic", call=call, pinned={}, sha256="0" * 64)
    with one_thread(torch.device("cpu")):
        assert replay(load_op("kda.fused_decode"), STAGED, capture, "cpu").failed == ()


@pytest.mark.parametrize("call", [*EDGES.values(), *CALLS], ids=lambda call: call.label)
def test_right_at_the_edges_and_on_captures(call: Call, is_right: Callable[..., bool]) -> None:
    """Every element within its allowance, in memory with gaps; windows, padding and other slots exactly."""
    assert is_right(call, run(call))
    guarded = cases.with_guard_rows(call, 1)
    assert is_right(guarded, run(guarded))


def test_two_steps_follow_each_other() -> None:
    """Windows and states of the first launch are what the second one works on."""
    PADDED.restore()
    pools = {n: PADDED.inputs[n] for n in cases.POOLS}
    for seed in range(2):
        new = cases.changed(PADDED, "operands", seed)
        call = PADDED.with_inputs(**{n: t for n, t in new.items() if n not in cases.POOLS})
        STAGED.bind([call])[0]()
        right = oracle.oracle_fp64(call.with_inputs(**pools))
        pools = {n: right[n] for n in cases.POOLS}
        assert rel_l2(call.outputs["out"], right["out"]) < 2.5e-3
        assert torch.equal(call.outputs["conv_state"], right["conv_state"])
        assert rel_l2(call.outputs["state"], right["state"]) < 1e-5


def test_an_output_is_made_where_none_is_given() -> None:
    """Returned, with the op's shape and dtype, and equal to the given one."""
    right = run(PADDED)["out"]
    PADDED.restore()
    tensors = {**PADDED.inputs, **{n: PADDED.outputs[n] for n in cases.POOLS}}
    assert torch.equal(MODULE.fused_decode(**tensors, **PADDED.scalars), right)


def test_strides_and_addresses_choose_the_loads() -> None:
    """Gaps of whole vectors leave them wide; other gaps, and weights that begin at any element, do not."""
    assert MODULE._wide(operands(PADDED)) and MODULE._wide(operands(apart(PADDED, 8)))
    assert not MODULE._wide(operands(apart(PADDED, 6)))
    shifted = torch.cat([PADDED.inputs["dt_bias"][:1], PADDED.inputs["dt_bias"]])[1:]
    assert not MODULE._wide(operands(PADDED.with_inputs(dt_bias=shifted)))
    half = CALLS[2]
    assert MODULE._wide(operands(apart(half, 8))) and not MODULE._wide(operands(apart(half, 4)))


def test_few_heads_are_shared_by_clusters() -> None:
    """As many CTAs as fill the GPU; other widths than the model's are never shared."""
    assert [MODULE.ranks_for(heads, 128) for heads in (12, 33, 96, 384, 12_288)] == [4, 4, 2, 1, 1]
    assert MODULE.ranks_for(1, 64) == 1


def test_three_ctas_of_a_whole_head_share_an_sm() -> None:
    """Of any width; both files agree on how many rows are held at once."""
    for width in MODULE.WIDTHS:
        variant = MODULE.Variant(width, 1, True, True, False)
        assert 3 * (variant.shared_bytes + RESERVED_BYTES) <= SM_BYTES
    assert int(re.search(r"MOST_HELD = (\d+);", MODULE.CUDA_SOURCE)[1]) == MODULE.HELD


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mixed_qkv": lambda t: t[:, :-1]}, "mixed_qkv must be 384 wide, a and gate 128, b 4"),
        ({"conv_weight": lambda t: t[:3]}, r"conv_weight must be \[4, 384\]"),
        ({"norm_weight": lambda t: t.bfloat16()}, "weights float32"),
        ({"gate": lambda t: t[:-1]}, "B is 5; allowed: 1 to 65535, the same for all rows"),
        ({"conv_state": lambda t: t[:, :2]}, r"conv_state \(6, 2, 384\); allowed: K = V, 3 x 3P"),
        ({"state": lambda t: t.half()}, "state must be float32 or bfloat16, state_indices int32"),
        ({"state": lambda t: t.transpose(-1, -2)}, "rows and slots must be contiguous; their strides are free"),
        ({"state_indices": lambda t: t.repeat_interleave(2)[::2]}, "weights and state_indices must be contiguous"),
        ({"state": lambda t: t[0]}, r"rows must be \[B, …\]"),
        ({"a": lambda t: t.to("meta")}, "all tensors must be on one device"),
        ({"state": lambda t: t[..., :24, :24].contiguous()}, "V is 24; allowed: 16, 20, 32"),
        ({"state": lambda t: t[..., :0, :0].contiguous()}, "V is 0; allowed: 16, 20, 32"),
        ({"state": lambda t: t[:, :0].contiguous()}, "HV is 0; allowed: at least 1"),
        ({"gate": lambda t: None, "b": lambda t: 1.0}, "b is float; allowed: a tensor; gate is NoneType; allowed"),
    ],
)
def test_the_kernel_refuses_by_itself(change: dict, words: str) -> None:
    """Lifted out of this project it still says what it cannot take."""
    tensors = {**PADDED.inputs, **{name: make(PADDED.inputs[name]) for name, make in change.items()}}
    with pytest.raises(ValueError, match=words):
        MODULE.fused_decode(**tensors, **PADDED.scalars)


@pytest.mark.parametrize("bound", [0.0, -5.5, float("nan")])
def test_bounds_outside_the_gate_are_refused(bound: float) -> None:
    """The safe gate has a bound from -5 to below 0."""
    with pytest.raises(ValueError, match=r"lower_bound is .*; allowed: None, or -5\.0 <= lower_bound < 0"):
        MODULE.fused_decode(**PADDED.inputs, lower_bound=bound)


@pytest.mark.parametrize("epsilon", [-1e-5, 1.5, float("nan")])
def test_an_epsilon_outside_its_range_is_refused(epsilon: float) -> None:
    """From 0 to 1."""
    with pytest.raises(ValueError, match=r"epsilon is .*; allowed: 0 <= epsilon <= 1"):
        MODULE.fused_decode(**PADDED.inputs, **{**PADDED.scalars, "epsilon": epsilon})


def beside_an_element(t: torch.Tensor) -> torch.Tensor:
    """A row buffer of t's shape that begins in the middle of an element."""
    return torch.frombuffer(bytearray(2 * t.numel() + 16), dtype=t.dtype, offset=1, count=t.numel()).view(t.shape)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t[:, :-1], r"out is \(5, 127\) torch\.bfloat16; allowed: \(5, 128\) torch\.bfloat16, contiguous"),
        (lambda t: t.float(), r"out is \(5, 128\) torch\.float32; allowed"),
        (lambda t: t[:1].expand(t.shape), "contiguous, aligned"),
        (lambda t: t.to("meta"), "out must be on the device of the other tensors"),
        (lambda t: 1.0, "out is float; allowed: a tensor, or None"),
    ],
    ids=["shape", "dtype", "strides", "device", "number"],
)
def test_an_output_that_does_not_fit_is_refused(change: Callable, words: str) -> None:
    """out is [B, P], bf16, contiguous and where the other tensors are."""
    with pytest.raises(ValueError, match=words):
        MODULE.fused_decode(**PADDED.inputs, **PADDED.scalars, out=change(PADDED.outputs["out"]))


def test_an_output_at_an_odd_address_is_refused() -> None:
    """No element of it could be stored at once."""
    call = cases.synthesise(ROWS[0], 0)
    with pytest.raises(ValueError, match="contiguous, aligned"):
        MODULE.fused_decode(**call.inputs, **call.scalars, out=beside_an_element(call.outputs["out"]))


def test_rows_may_be_written_over_the_gate() -> None:
    """All of it is read before."""
    right = run(PADDED)["out"]
    PADDED.restore()
    tensors = {**PADDED.inputs, **{n: PADDED.outputs[n] for n in cases.POOLS}, "gate": PADDED.inputs["gate"].clone()}
    assert torch.equal(MODULE.fused_decode(**tensors, **PADDED.scalars, out=tensors["gate"]), right)


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("state", ["float32", "bfloat16"])
@pytest.mark.parametrize("gate", ["safe", "softplus"])
def test_every_cut_is_right_on_the_gpu(
    gate: str, state: str, ranks: int, monkeypatch: pytest.MonkeyPatch, is_right: Callable[..., bool]
) -> None:
    """However many CTAs share a head: the same windows and states, wherever rows begin, and the same bits again."""
    axes = {"HV": 3, "B": 7, "gate": gate, "state": state, "padding": True}
    call = cases.synthesise(cases.row(f"cut-{gate}-{state}", axes), 0, "cuda")
    alone = run(call)
    monkeypatch.setattr(MODULE, "ranks_for", lambda heads, width: ranks)
    for gap in (0, 8, 3):
        found = run(apart(call, gap) if gap else call)
        assert is_right(call, found)
        assert all(torch.equal(found[name], alone[name]) for name in cases.POOLS)
        again = run(apart(call, gap) if gap else call)
        assert all(torch.equal(found[name], again[name]) for name in found)


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "batch"), [(12, 1), (12, 8), (12, 32), (12, 128), (96, 1), (96, 8)])
def test_benchmark_rows_are_right_on_the_gpu(heads: int, batch: int, is_right: Callable[..., bool]) -> None:
    """Rows of the model's sizes, each in the cut that it gets, launch after launch on the same memory."""
    call = cases.synthesise(cases.rows((heads,), (batch,))[0], 0, "cuda")
    found = run(call)
    assert is_right(call, found)
    for _ in range(3):
        again = run(call)
        assert all(torch.equal(found[name], again[name]) for name in found)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [16, 20, 64, 80, 96])
@pytest.mark.parametrize("state", ["float32", "bfloat16"])
def test_other_widths_are_right_on_the_gpu(width: int, state: str, is_right: Callable[..., bool]) -> None:
    """Widths that no capture has, copied in bulk and loaded element by element."""
    axes = {"HV": 2, "B": 3, "V": width, "state": state, "padding": True}
    call = cases.synthesise(cases.row(f"wide-{width}-{state}", axes), 0, "cuda")
    assert is_right(call, run(call)) and is_right(call, run(apart(call, 3)))
