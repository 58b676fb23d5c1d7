"""Rows, synthetic calls, guard rows, changed contents and input sets of the packed decode."""

from __future__ import annotations

import itertools

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.kda_packed_decode import cases, oracle
from kda_lab.ops.kda_packed_decode.spec import SPEC

ROWS = cases.capture_rows()
SHARED = cases.synthesise(ROWS[0], 0)


def test_benchmark_rows_cover_heads_and_batches() -> None:
    """27 rows of the published widths, with every axis of the contract."""
    rows = cases.rows()
    assert len(rows) == 27
    assert rows[0].label == "HV12-B1"
    assert rows[-1].parameters == {
        "H": 96, "K": 128, "V": 128, "gate": "safe", "state": "float32", "padding": False, "HV": 96, "B": 256,
        "C": 36864, "G": 12288,
    }  # fmt: skip


def test_captures_are_small_and_cover_the_conventions() -> None:
    """Under 500 kB in all; K ≠ V, shared query heads, padding, both gates, both dtypes of the state, full width."""
    calls = [cases.synthesise(row, 0) for row in ROWS]
    assert sum(t.numel() * t.element_size() for call in calls for t in call.inputs.values()) < 480_000
    facts = [call.facts for call in calls]
    assert any(f["K"] != f["V"] for f in facts)
    assert any(1 < f["H"] < f["HV"] for f in facts)
    assert any(f["live"] < f["B"] for f in facts)
    assert {f["gate"] for f in facts} == {"safe", "softplus"}
    assert {f["state"] for f in facts} == {"float32", "bfloat16"}
    assert any(f["K"] == f["V"] == 128 for f in facts)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_a_call_has_its_shapes(row: object) -> None:
    """Inputs in the order of the signature with the shapes of the row; the memory to update begins as the input."""
    call = cases.synthesise(row, 0)
    f, i = call.facts, call.inputs
    assert tuple(i) == SPEC.tensors
    assert i["mixed_qkv"].shape == (f["B"], 2 * f["H"] * f["K"] + f["HV"] * f["V"])
    assert i["state"].shape == (f["B"] + 1, f["HV"], f["V"], f["K"])
    assert call.outputs["out"].shape == (f["B"], 1, f["HV"], f["V"])
    assert call.updated == ("state",)
    assert torch.equal(call.outputs["state"], i["state"])
    assert call.outputs["state"].data_ptr() != i["state"].data_ptr()
    assert len(oracle.live_rows(i["state_indices"])) == f["live"]
    assert all(t.data_ptr() % 16 == 0 for t in (*i.values(), *call.outputs.values()))


def test_tiny_rows_are_there() -> None:
    """The key of the last head of every third request is so small that epsilon counts, and no other."""
    sums = oracle.split_heads(SHARED)[1].float().square().sum(-1)
    tiny = sums < 1e-4
    assert tiny.nonzero().tolist() == [[0, 1], [3, 1]]


def test_the_same_seed_gives_the_same_call() -> None:
    """Label and seed alone decide the contents."""
    again, other = cases.synthesise(ROWS[0], 0), cases.synthesise(ROWS[0], 1)
    assert all(torch.equal(SHARED.inputs[n], again.inputs[n]) for n in SHARED.inputs)
    assert not torch.equal(SHARED.inputs["state"], other.inputs["state"])


def test_sets_have_pools_of_their_own() -> None:
    """No set shares memory with another, contents differ, and every tensor starts on a line."""
    sets = cases.make_sets(cases.row("odd", {"HV": 3, "H": 1, "K": 20, "V": 12, "B": 3}), 3, 0, "cpu")
    starts = [call.outputs["state"].data_ptr() for call in sets]
    size = sets[0].inputs["state"].numel() * 4
    assert min(b - a for a, b in itertools.pairwise(starts)) >= size
    assert not torch.equal(sets[0].inputs["b"], sets[1].inputs["b"])
    assert all(t.data_ptr() % 16 == 0 for call in sets for t in (*call.inputs.values(), *call.outputs.values()))


def test_guarded_calls_have_gaps_and_the_same_answer() -> None:
    """Rows and slots lie apart with NaN between, a spare slot holds numbers, and the oracle does not notice."""
    call = cases.with_guard_rows(SHARED, 64)
    for name in cases.OPERANDS:
        given = call.inputs[name]
        assert given.stride(0) == given.shape[1] + 64
        gap = given.as_strided((1, 64), (1, 1), given.storage_offset() + given.shape[1])
        assert gap.isnan().all()
    state = call.inputs["state"]
    assert state.shape[0] == SHARED.inputs["state"].shape[0] + 1
    assert state.stride() == call.outputs["state"].stride() != state.contiguous().stride()
    assert torch.isfinite(state).all()
    assert torch.equal(oracle.oracle_fp64(call)["out"], oracle.oracle_fp64(SHARED)["out"])
    assert cases.with_guard_rows(SHARED, 0) is SHARED


@pytest.mark.parametrize("source", [None, SHARED], ids=["drawn", "reused"])
@pytest.mark.parametrize("which", cases.CHANGES)
def test_changed_contents_fit(which: str, source: object) -> None:
    """Shapes and dtypes stay; operands and states are others; only `slots` moves the requests, to distinct slots."""
    new = cases.changed(SHARED, which, 1, source)
    for name, tensor in new.items():
        old = SHARED.inputs[name]
        assert (tensor.shape, tensor.dtype) == (old.shape, old.dtype)
        assert not torch.equal(tensor, old)
    assert ("state_indices" in new) == (which == "slots")
    found = oracle.oracle_fp32(SHARED.with_inputs(**new))
    assert all(torch.isfinite(t).all() for t in found.values())


def test_redrawn_operands_keep_tiny_rows() -> None:
    """Epsilon counts in changed contents too."""
    new = cases.changed(SHARED, "operands", 1)["mixed_qkv"]
    sums = oracle.split_heads(SHARED.with_inputs(mixed_qkv=new))[1].float().square().sum(-1)
    assert (sums[::3, -1] < 1e-4).all()


def test_shuffled_contents_are_others() -> None:
    """Every floating-point input turns, weights among them; indices stay."""
    new = cases.shuffled(SHARED, 3)
    assert set(new) == set(SPEC.tensors) - {"state_indices"}
    assert all(t.shape == SHARED.inputs[n].shape and not torch.equal(t, SHARED.inputs[n]) for n, t in new.items())


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"HV": 4, "H": 3, "B": 1}, "HV a multiple of H"),
        ({"HV": 4, "B": 0}, "of 1 or more"),
        ({"HV": 4}, "of 1 or more"),
        ({"HV": 4, "B": 1, "gate": "hard"}, "'hard'"),
        ({"HV": 4, "B": 1, "state": "float16"}, "'float16'"),
        ({"HV": 4, "B": 1, "T": 3}, r"axes is \['T'\]"),
    ],
)
def test_rows_outside_the_op_are_refused(axes: dict, words: str) -> None:
    """A row that no call can have is named with what may be given."""
    with pytest.raises(ParameterError, match=words):
        cases.row("bad", axes)


def test_unknown_changes_are_refused() -> None:
    """Only the two named changes exist."""
    with pytest.raises(ParameterError, match=r"which is 'lengths'; allowed: 'operands', 'slots'"):
        cases.changed(SHARED, "lengths", 0)
