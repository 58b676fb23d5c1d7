"""Building blocks of a call: facts, scattered pools, and a packed call turned into a paged one."""

from __future__ import annotations

import torch

from kda_lab.ops.qsa_packed_decode import cases as packed
from kda_lab.ops.qsa_packed_decode import oracle as packed_oracle
from kda_lab.ops.qsa_paged_decode import calls, cases, oracle


def packed_call() -> object:
    """Two rows of 70 and 9 keys."""
    return packed.with_capacity(packed._peaky("real", (24, 2), (70, 9), "test", 0, "cpu"), 100)


def test_a_packed_call_and_its_paged_forms_are_one_attention() -> None:
    """Both forms give the packed call's answer; one has its valid columns first, the other has holes."""
    call = packed_call()
    right = packed_oracle.oracle_fp64(call)["out"]
    plain, holes = calls.from_packed(call, 1)
    for form in (plain, holes):
        assert torch.allclose(oracle.oracle_fp64(form)["out"], right, atol=1e-12)
        assert form.facts["lengths"] == [70, 9]
        assert form.scalars == {"softmax_scale": call.scalars["softmax_scale"]}
    assert (plain.label, holes.label) == ("real", "real-draft")
    assert (plain.facts["W"], holes.facts["W"]) == (2051, 2055)
    assert oracle.valid_columns(plain)[0, :70].all()
    assert not oracle.valid_columns(holes)[0, 69:2051].any()


def test_the_forms_share_their_pool_and_its_dead_slots_hold_nan() -> None:
    """Same pool and table, so that a capture set keeps them once; token t is packed row t."""
    call = packed_call()
    plain, holes = calls.from_packed(call, 1)
    i = plain.inputs
    for name in ("k_pool", "v_pool", "req_to_slot"):
        assert torch.equal(i[name].nan_to_num(), holes.inputs[name].nan_to_num())
    slots = i["req_to_slot"][i["requests"][1].long(), :9].long()
    assert torch.equal(i["k_pool"][slots], call.inputs["k"][70:79])
    assert int((~i["v_pool"].isnan().all(-1).all(-1)).sum()) == 79


def test_facts_count_shared_tokens_once() -> None:
    """Rows of one request name 67 distinct slots with 262 columns."""
    facts = cases.drawn("shared", (12, 1), (64, 65, 66, 67), "verify", 0).facts
    assert facts == {
        "B": 4, "HQ": 12, "HKV": 1, "W": 2051, "lengths": [64, 65, 66, 67], "kind": "verify", "pool_rows": 67
    }  # fmt: skip


def test_the_heaviest_token_moves_to_the_last_column() -> None:
    """Cutting off the last valid column of a row then changes its output; the set of tokens stays."""
    call = cases.drawn("heavy", (12, 1), (30, 0), "draft", 0)
    flat = call.with_inputs(q=torch.zeros_like(call.inputs["q"]))
    slot = oracle.geometry(flat).slots[0][3]
    flat.inputs["q"][0] = flat.inputs["k_pool"][slot, 0] * 4
    moved = calls.weightiest_last(flat)
    assert oracle.geometry(moved).slots[0][-1] == slot
    assert sorted(oracle.geometry(moved).slots[0].tolist()) == sorted(oracle.geometry(flat).slots[0].tolist())


def test_nothing_is_reused_of_an_empty_source() -> None:
    """A source without selected rows leaves the synthetic contents."""
    call = cases.drawn("source", (12, 1), (5,), "short", 0)
    empty = call.with_inputs(lengths=torch.zeros_like(call.inputs["lengths"]))
    assert calls.reordered(empty, call, 0) == {}
