"""Rows, synthetic selections, guards and changes of the compaction: what they promise, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa_compact_kv import cases, oracle
from kda_lab.verify.guarded import same_bits


def drawn(kind: str = "target", live: str = "mixed", B: int = 8, seed: int = 1):
    return cases.synthesise(cases.make_row("tp2", B, kind, live, 23), seed)


def test_rows_have_labels_of_their_own_and_say_their_axes() -> None:
    """One label a row; draft rows are 2055 wide, target rows 2051."""
    rows = cases.rows()
    assert len({row.label for row in rows}) == len(rows) == 2 * 5 * 2 * 3
    assert rows[0].parameters == {"HKV": 2, "B": 1, "W": 2051, "kind": "target", "lengths": "short"}
    assert {row.parameters["W"] for row in rows if row.parameters["kind"] == "draft"} == {2055}
    assert cases.make_row("tp2", 2, "holes", "mixed", 23).label == "tp2-B2-holes-mixed-w23"


def test_a_draw_is_repeatable() -> None:
    """Same label and seed, same bits; another seed, other bits."""
    one, two, other = drawn(), drawn(), drawn(seed=2)
    assert all(same_bits(one.inputs[name], two.inputs[name]) for name in one.inputs)
    assert not same_bits(one.inputs["k_pool"], other.inputs["k_pool"])


def test_kinds_are_what_their_names_say() -> None:
    """Target rows are contiguous, draft rows end in newer tokens behind a hole, holes are anywhere, shared is one request."""
    calls = {kind: drawn(kind) for kind in cases.KINDS}
    valid = {kind: oracle.is_valid(call) for kind, call in calls.items()}
    assert bool((valid["target"].int().diff() <= 0).all())
    late = valid["draft"].int().diff() > 0
    assert bool(late[:, 18].any()) and not bool(late[:, :18].any())
    assert bool((valid["holes"].int().diff() > 0).any())
    assert bool((calls["holes"].inputs["tokens"] >= calls["holes"].inputs["lengths"][:, None]).any())
    assert calls["shared"].inputs["requests"].unique().numel() == 1
    assert not torch.equal(calls["target"].inputs["requests"], torch.arange(8, dtype=torch.int32))


@pytest.mark.parametrize("kind", cases.KINDS)
def test_slots_of_a_request_are_its_own(kind: str) -> None:
    """No two tokens of the live requests share a slot, every slot is in the pool, pages are scattered."""
    call = drawn(kind)
    i = call.inputs
    owners = {int(r): int(n) for r, n in zip(i["requests"], i["lengths"], strict=True)}
    owners = {r: max(int(n) for q, n in zip(i["requests"], i["lengths"], strict=True) if int(q) == r) for r in owners}
    slots = torch.cat([i["req_to_slot"][r, :n] for r, n in owners.items()])
    assert slots.unique().numel() == slots.numel()
    assert int(slots.min()) >= 0 and int(slots.max()) < i["k_pool"].shape[0]
    assert call.facts["counts"] == oracle.live_counts(call)


def test_guards_are_nan_in_every_slot_that_no_token_names() -> None:
    """Named slots keep their bits; all others, and the added ones, hold NaN."""
    call = drawn("holes")
    guarded = cases.with_guard_rows(call, 2048)
    named = cases._named_slots(call)
    assert guarded.inputs["k_pool"].shape[0] == call.inputs["k_pool"].shape[0] + 64
    assert same_bits(guarded.inputs["v_pool"][named], call.inputs["v_pool"][named])
    rest = torch.ones(guarded.inputs["k_pool"].shape[0], dtype=torch.bool)
    rest[named] = False
    assert bool(guarded.inputs["k_pool"][rest].isnan().all())


@pytest.mark.parametrize("kind", cases.KINDS)
@pytest.mark.parametrize("which", ["shorter", "longer"])
@pytest.mark.parametrize("from_source", [False, True])
def test_changed_contents_fit_and_can_be_packed(kind: str, which: str, from_source: bool) -> None:
    """Same shapes and dtypes, other counts, and the oracle packs them into finite rows."""
    call = drawn(kind)
    new = cases.changed(call, which, 2, call if from_source else None)
    assert {n: (t.shape, t.dtype) for n, t in new.items()} == {n: (t.shape, t.dtype) for n, t in call.inputs.items()}
    sign = 1 if which == "longer" else -1
    assert bool((sign * (new["lengths"] - call.inputs["lengths"]) >= 0).all())
    assert int(new["lengths"].sum()) != int(call.inputs["lengths"].sum())
    assert bool(oracle.oracle_fp32(call.with_inputs(**new))["packed_k"].isfinite().all())


def test_an_empty_source_gives_zeros() -> None:
    """Where no slot is named there is no row to reuse."""
    empty = cases.edge_calls(1)["no_tokens"]
    new = cases.changed(empty, "longer", 1, empty)
    assert bool((new["k_pool"].nan_to_num(0.0) == 0).all())


def test_a_shuffle_moves_slots_and_keeps_the_answer() -> None:
    """Table and pools move together: what is packed stays the same, where it lies does not."""
    call = drawn("holes")
    moved = call.with_inputs(**cases.shuffled(call, 3))
    assert not torch.equal(moved.inputs["req_to_slot"], call.inputs["req_to_slot"])
    before, after = oracle.oracle_fp32(call), oracle.oracle_fp32(moved)
    assert all(same_bits(before[name], after[name]) for name in before)


def test_sets_share_their_selection_and_differ_in_their_rows() -> None:
    """Timing sets have one geometry and pools of their own."""
    sets = cases.make_sets(cases.make_row("tp1", 2, "target", "short", 23), 2, 1, "cpu")
    assert torch.equal(sets[0].inputs["tokens"], sets[1].inputs["tokens"])
    assert not torch.equal(sets[0].inputs["k_pool"], sets[1].inputs["k_pool"])
    assert sets[0].outputs["packed_k"].data_ptr() != sets[1].outputs["packed_k"].data_ptr()


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda: cases.make_row("tp3", 1), "topology is 'tp3'; allowed: 'tp1', 'tp2'"),
        (lambda: cases.make_row("tp1", 1, "odd"), "kind is 'odd'; allowed: 'target', 'draft', 'holes', 'shared'"),
        (lambda: cases.make_row("tp1", 1, W=4), r"B and W is \(1, 4\); allowed: 1 or more, and 5 or more"),
        (lambda: cases.make_row("tp1", 1, live="long"), "lengths is 'long'; allowed: 'short', 'medium'"),
        (lambda: cases.changed(drawn(), "wider", 1), "which is 'wider'; allowed: 'shorter', 'longer'"),
        (
            lambda: cases._longer((64, 64), 64, 128, "target"),
            "which is 'longer'; allowed: 'shorter', since 128 slots and 64 table columns are all in use",
        ),
    ],
)
def test_refusals_name_the_field(action, words: str) -> None:
    """Unknown names and impossible changes are refused with what is allowed."""
    with pytest.raises(ParameterError, match=words):
        action()
