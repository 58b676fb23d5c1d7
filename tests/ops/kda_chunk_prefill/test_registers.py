"""The candidate: right at the edges, whatever the lengths, within its contract, and refusing what lies outside."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.kda_chunk_prefill import cases, gates, oracle
from kda_lab.ops.protocol import Call
from kda_lab.ops.registry import load_op
from kda_lab.verify import replay
from kda_lab.verify.launching import one_thread
from kda_lab.verify.metrics import element_max, rel_l2, row_max

OP = load_op("kda.chunk_prefill")
FILE = Path(__file__).parents[3] / "notebooks" / "candidates" / "kda.chunk_prefill" / "registers.py"
ARM = candidate_arm(FILE)
EDGES = cases.edge_calls(3)


def run(call: Call) -> dict[str, torch.Tensor]:
    """Outputs of one launch on poisoned memory."""
    call.outputs["out"].fill_(float("nan"))
    call.restore()
    ARM.bind([call])[0]()
    return call.outputs


def assert_right(call: Call) -> None:
    exact = oracle.oracle_fp64(call)
    found, allowed = run(call), oracle.allowance(call, exact)
    limits = gates.limits("synthetic", 0.0)
    assert rel_l2(found["out"], exact["out"]) < limits.error
    for name in exact:
        assert torch.isfinite(found[name]).all()
        assert element_max(found[name], exact[name], allowed[name]) < 1


@pytest.mark.parametrize("name", EDGES)
def test_it_is_right_at_the_edges(name: str) -> None:
    """Padding, empty sequences, zero rows, one key for all, decays to nothing, whole chunks, one token."""
    assert_right(EDGES[name])


@settings(max_examples=3)
@given(
    counts=st.lists(st.integers(0, 70), min_size=1, max_size=3).filter(sum),
    gate=st.sampled_from(["safe", "steep"]),
    seed=st.integers(0, 99),
)
def test_any_lengths(counts: list[int], gate: str, seed: int) -> None:
    """Ragged sequences, both gates, two value heads a query head."""
    assert_right(
        cases.synthesise(
            cases.row("any", {"HV": 2, "H": 1, "K": 32, "V": 32, "lengths": tuple(counts), "gate": gate}), seed
        )
    )


def test_it_passes_every_check_of_the_referee() -> None:
    """Poison, guards, repeated bits, other operands and lengths, without a GPU; padding and strided slots among them."""
    call = cases.synthesise(cases.capture_rows()[0], 0)
    capture = SimpleNamespace(name="padded", kind="synthetic", call=call, pinned={}, sha256="0" * 64)
    with one_thread(torch.device("cpu")):
        done = replay(OP, ARM, capture, "cpu")
    assert done.failed == ()


@pytest.mark.parametrize("gate", sorted(cases.GATES))
def test_no_gate_costs_more_than_rounding(gate: str) -> None:
    """Under every gate output and states are as near to FP64 as BF16 operands bring them."""
    call = cases.synthesise(
        cases.row("rows", {"HV": 2, "H": 1, "K": 64, "V": 64, "lengths": (128, 37), "gate": gate}), 0
    )
    exact, emulated = oracle.oracle_fp64(call), oracle.emulate(call)
    found = run(call)
    for name in exact:
        floor = rel_l2(emulated[name], exact[name])
        assert rel_l2(found[name], exact[name]) < gates.FLOOR_FACTOR * floor


@pytest.mark.parametrize("turn", [16, 18, 32, 50])
def test_a_bounded_gate_may_open_and_close_anywhere(turn: int) -> None:
    """Tokens that decay all the way beside tokens that keep everything: exponents reach their ends on both sides."""
    call = cases.synthesise(cases.row("steps", {"HV": 1, "K": 32, "V": 32, "lengths": (128,)}), 5)
    for sign in (1.0, -1.0):
        closed = (torch.arange(128) % 64 < turn)[:, None]
        steps = torch.where(closed, 40.0 * sign, -40.0 * sign).expand_as(call.inputs["a"])
        assert_right(call.with_inputs(a=steps.to(torch.bfloat16).clone(), a_log=torch.ones_like(call.inputs["a_log"])))


def test_both_gates_launch_the_declared_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three launches whatever the gate, each of a function that the compile units name."""
    seen: list[str] = []
    names = {unit["function"] for unit in ARM.module.CONTRACT["compile_units"]}
    for name in names:
        kernel = getattr(ARM.module, name)

        class Counted:
            def __getitem__(self, grid: Any, kernel: Any = kernel, name: str = name) -> Any:
                seen.append(name)
                return kernel[grid]

        monkeypatch.setattr(ARM.module, name, Counted())
    for gate in sorted(cases.GATES):
        seen.clear()
        run(cases.synthesise(cases.row("launches", {"HV": 1, "K": 32, "V": 32, "lengths": (5,), "gate": gate}), 0))
        assert set(seen) == names and len(seen) == ARM.module.CONTRACT["kernels_per_call"]


def test_the_state_pass_is_the_same_in_every_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """V blocks are independent: their size changes nothing but the order in which the CPU's product adds up."""
    call = cases.synthesise(cases.row("blocks", {"HV": 1, "K": 32, "V": 64, "lengths": (70,)}), 0)
    wide = {n: t.clone() for n, t in run(call).items()}
    monkeypatch.setattr(ARM.module, "NARROW", (32, 4, 1))
    narrow = run(call)
    assert rel_l2(wide["out"], narrow["out"]) < 1e-4 and rel_l2(wide["state"], narrow["state"]) < 1e-4


def test_a_bool_and_a_byte_say_the_same() -> None:
    """has_state may be bool or uint8."""
    call = cases.synthesise(cases.row("bytes", {"HV": 1, "K": 32, "V": 32, "lengths": (5, 3)}), 0)
    one = {n: t.clone() for n, t in run(call).items()}
    two = run(call.with_inputs(has_state=call.inputs["has_state"].to(torch.uint8)))
    assert all(torch.equal(one[n], two[n]) for n in one)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: {"q": i["q"].float()}, "must be contiguous bfloat16"),
        (lambda i: {"v": i["v"][:-1]}, r"v must be \[T, HV, V\] with HV a multiple of H"),
        (lambda i: {"state": i["state"].transpose(-1, -2)}, "state must be float32"),
        (lambda i: {"cu_seqlens": i["cu_seqlens"].long()}, r"cu_seqlens must be int32 \[N \+ 1\]"),
        (lambda i: {"q": i["q"][0]}, r"q and k must be \[T, H, K\]"),
        (lambda i: {"q": i["q"][..., :16], "k": i["k"][..., :16]}, "K and V are 16 and 32; allowed: 32, 64, 128"),
    ],
    ids=["dtype", "tokens", "orientation", "offsets", "rank", "width"],
)
def test_calls_outside_of_the_contract_are_refused(change: Any, message: str) -> None:
    """Each with what is allowed; nothing is launched."""
    call = cases.synthesise(cases.row("refused", {"HV": 1, "K": 64, "V": 32, "lengths": (5,)}), 0)
    given = {**call.inputs, **change(call.inputs)}
    with pytest.raises(ValueError, match=message):
        ARM.module.chunk_prefill(*(given[name] for name in OP.spec.tensors), lower_bound=-5.0)


@pytest.mark.parametrize("bound", [-5.5, 0.0, 1.0])
def test_bounds_that_overflow_are_refused(bound: float) -> None:
    """One reference for half a chunk is safe from -5 on."""
    call = cases.synthesise(cases.row("bound", {"HV": 1, "K": 32, "V": 32, "lengths": (5,)}), 0)
    tensors = [call.inputs[name] for name in OP.spec.tensors]
    with pytest.raises(ValueError, match=rf"lower_bound is {bound}; allowed: None, or -5.0 <= lower_bound < 0"):
        ARM.module.chunk_prefill(*tensors, lower_bound=bound)


@pytest.mark.gpu
@pytest.mark.parametrize("gate", sorted(cases.GATES))
@pytest.mark.parametrize(
    ("heads", "counts"), [(3, (200, 64, 1, 129)), (96, (130,)), (12, (1500,)), (1, (1, 7, 65) * 80)]
)
def test_it_is_right_on_the_gpu(heads: int, counts: tuple[int, ...], gate: str) -> None:
    """Both schedules, all gates, many short sequences; twice with the same bits."""
    call = cases.synthesise(cases.row("gpu", {"HV": heads, "lengths": counts, "gate": gate}), 1, "cuda")
    first = {n: t.clone() for n, t in run(call).items()}
    exact = oracle.oracle_fp64(call)
    assert rel_l2(first["out"], exact["out"]) < gates.ERROR
    assert row_max(first["out"], exact["out"]) < 0.1
    assert rel_l2(first["state"], exact["state"]) < gates.STATE_ERROR
    again = run(call)
    assert all(torch.equal(again[n], first[n]) for n in first)
