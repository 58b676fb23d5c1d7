"""Rows, synthetic calls, changed contents, input sets and edges of attention residuals."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.kda_attn_residuals import cases, oracle

ROW = cases.rows((7,), (5,), ("add_write",), cases.SMALL_WIDTH)[0]
CALL = cases.synthesise(ROW, 1)


def test_rows_are_labelled_and_ordered() -> None:
    """One row a number of tokens, of snapshots and kind, in that order; another width is said."""
    labels = [row.label for row in cases.rows((1, 8), (0, 4), ("mix", "write"))]
    assert labels[:4] == ["T1-valid0-mix", "T1-valid0-write", "T1-valid4-mix", "T1-valid4-write"]
    assert len(labels) == 8
    assert ROW.label == "T7-valid5-add_write-D256"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((1,), (1,), ("sum",)), r"kind is 'sum'; allowed: 'mix', 'add', 'write', 'add_write'"),
        (((1,), (8,), ("write",)), r"tokens, valid is \(1, 8\); allowed: 0 or more tokens, 0 to 7 valid snapshots"),
        (((-1,), (8,)), r"tokens, valid is \(-1, 8\); allowed: 0 or more tokens, 0 to 8"),
    ],
)
def test_impossible_rows_are_refused(arguments: tuple[object, ...], message: str) -> None:
    """Kinds and numbers outside the op are refused with what there is."""
    with pytest.raises(ParameterError, match=message):
        cases.rows(*arguments)


def test_a_call_has_its_shapes_facts_and_a_tiny_token() -> None:
    """Shapes and dtypes of a row; token 3 is small enough for epsilon; slots that do not count are large."""
    i, size = CALL.inputs, CALL.inputs["prefix"].float().square().mean(1)
    assert {n: (tuple(t.shape), t.dtype) for n, t in i.items()} == {
        "bank": ((7, 8, 256), torch.bfloat16), "prefix": ((7, 256), torch.bfloat16), "delta": ((7, 256), torch.bfloat16),
        "score_weight": ((256,), torch.float32), "out_weight": ((256,), torch.float32),
    }  # fmt: skip
    assert CALL.facts == {"T": 7, "NB": 8, "D": 256, "valid": 5, "kind": "add_write"}
    assert CALL.scalars == {"valid": 5, "write_prefix": True, "add_delta": True, "epsilon": 1e-6}
    assert (size < 1e-6).tolist() == [False, False, False, True, False, False, False]
    assert float(i["bank"][0, 5:].float().square().mean().sqrt()) > 10
    assert torch.isfinite(i["bank"]).all()


def test_the_memory_that_is_updated_begins_as_the_inputs() -> None:
    """Outputs of the same names hold the inputs' bits on memory of their own."""
    for name in ("bank", "prefix"):
        assert torch.equal(CALL.outputs[name], CALL.inputs[name])
        assert CALL.outputs[name].data_ptr() != CALL.inputs[name].data_ptr()


def test_scores_differ_enough_to_be_seen() -> None:
    """No row takes all the weight and rows do not weigh the same: a wrong score shows."""
    rows = oracle.rows_of(CALL.inputs["bank"], oracle.stream(CALL), 5).double()
    weights = torch.softmax(oracle.rms_norm(rows, CALL.inputs["score_weight"], 1e-6).sum(-1), -1)
    assert float(weights.amax(1).median()) < 0.9
    assert float((weights.amax(1) / weights.amin(1)).median()) > 3


def test_the_same_seed_gives_the_same_call() -> None:
    """Label and seed alone decide the contents."""
    again, other = cases.synthesise(ROW, 1), cases.synthesise(ROW, 2)
    assert all(torch.equal(CALL.inputs[n], again.inputs[n]) for n in CALL.inputs)
    assert not torch.equal(CALL.inputs["bank"], other.inputs["bank"])


def test_input_sets_are_distinct_calls_on_their_own_memory() -> None:
    """Every set has its own memory and contents, what is updated in place too."""
    sets = cases.make_sets(ROW, 3, 5, "cpu")
    memory = [t.data_ptr() for call in sets for t in (*call.inputs.values(), *call.outputs.values())]
    assert len(set(memory)) == 3 * 8
    assert not torch.equal(sets[0].inputs["bank"], sets[1].inputs["bank"])
    assert all(t.data_ptr() % 16 == 0 for call in sets for t in call.inputs.values())


@pytest.mark.parametrize("source", [None, CALL], ids=["drawn", "turned"])
@pytest.mark.parametrize("which", cases.CHANGES)
def test_changed_contents_fit_their_buffers(which: str, source: object) -> None:
    """Shapes and dtypes stay; rows change always, weights only where they are asked for."""
    fresh = cases.changed(CALL, which, 3, source)
    assert set(fresh) == set(CALL.inputs) if which == "weights" else set(fresh) == {"bank", "prefix", "delta"}
    for name, new in fresh.items():
        assert (new.shape, new.dtype) == (CALL.inputs[name].shape, CALL.inputs[name].dtype)
        assert not torch.equal(new, CALL.inputs[name])


def test_an_unknown_change_is_refused() -> None:
    """Only the contents that change in place have a name."""
    with pytest.raises(ParameterError, match=r"which is 'lengths'; allowed: 'rows', 'weights'"):
        cases.changed(CALL, "lengths", 0)


def test_a_timing_copy_is_another_call() -> None:
    """Every tensor is turned, and weights not by the turn of the rows, or nothing would change."""
    copy = cases.shuffled(CALL, 4)
    assert all(not torch.equal(copy[n], CALL.inputs[n]) for n in CALL.inputs)
    turned = cases.replaced(CALL, copy)
    assert not torch.allclose(
        oracle.oracle_fp64(turned)["out"].sort(1).values, oracle.oracle_fp64(CALL)["out"].sort(1).values
    )


def test_guard_rows_change_nothing() -> None:
    """The whole bank is a result, so there is no memory behind its live rows."""
    assert cases.with_guard_rows(CALL, 64) is CALL


def test_captures_are_small_and_cover_every_kind() -> None:
    """Less than half a megabyte in all, every kind once, and one call of the model's width."""
    rows = cases.capture_rows()
    sizes = [sum(t.numel() * t.element_size() for t in cases.synthesise(r, 0).inputs.values()) for r in rows]
    assert sum(sizes) < 500_000
    assert {r.parameters["kind"] for r in rows} == set(cases.KINDS)
    assert 7168 in {r.parameters["D"] for r in rows}
    assert {r.parameters["valid"] for r in rows} == {0, 3, 5, 8}


def test_edges_are_finite_and_what_they_say() -> None:
    """Large rows stay finite, one score takes all the weight, the bank is full or has one slot."""
    edges = cases.edge_calls(2)
    assert all(torch.isfinite(t).all() for call in edges.values() for t in oracle.oracle_fp32(call).values())
    assert edges["one_slot"].inputs["bank"].shape[1] == 1
    assert edges["full_bank"].scalars["valid"] == edges["full_bank"].inputs["bank"].shape[1] == 4
    assert float(edges["large"].inputs["prefix"].abs().amax()) > 1e4
