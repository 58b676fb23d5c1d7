"""Rows, synthetic calls, guard rows, changed contents and input sets of the fused decode."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.kda_fused_decode import cases, oracle
from kda_lab.ops.kda_fused_decode.spec import SPEC

ROWS = cases.capture_rows()
PADDED = cases.synthesise(ROWS[0], 0)


def test_benchmark_rows_cover_heads_and_batches() -> None:
    """27 rows of the published widths, with every axis of the contract."""
    rows = cases.rows()
    assert [len(rows), rows[0].label, rows[-1].label] == [27, "HV12-B1", "HV96-B256"]
    assert rows[0].parameters == {
        "V": 128, "gate": "safe", "state": "float32", "padding": False, "HV": 12, "B": 1, "P": 1536, "C": 4608,
    }  # fmt: skip


def test_captures_are_small_and_cover_the_conventions() -> None:
    """Under 500 kB in all; padding, both gates, both dtypes of the state, odd and full widths."""
    calls = [cases.synthesise(row, 0) for row in ROWS]
    assert sum(t.numel() * t.element_size() for call in calls for t in call.inputs.values()) < 480_000
    facts = [call.facts for call in calls]
    assert any(f["live"] < f["B"] for f in facts)
    assert {f["gate"] for f in facts} == {"safe", "softplus"}
    assert {f["state"] for f in facts} == {"float32", "bfloat16"}
    assert {20, 128} <= {f["V"] for f in facts}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_a_call_has_its_shapes(row: object) -> None:
    """Inputs in the order of the signature with the shapes of the row; both pools begin as the inputs."""
    call = cases.synthesise(row, 0)
    f, i = call.facts, call.inputs
    assert tuple(i) == SPEC.tensors
    assert i["conv_state"].shape == (f["B"] + 1, 3, f["C"])
    assert i["conv_weight"].shape == (4, f["C"])
    assert i["state"].shape == (f["B"] + 1, f["HV"], f["V"], f["V"])
    assert call.outputs["out"].shape == i["gate"].shape == (f["B"], f["P"])
    assert call.updated == ("conv_state", "state")
    assert all(torch.equal(call.outputs[n], i[n]) for n in call.updated)
    assert all(t.data_ptr() % 16 == 0 for t in (*i.values(), *call.outputs.values()))


def test_some_outputs_are_so_small_that_epsilon_counts() -> None:
    """The last head of every third request reads with a tiny query."""
    x = oracle.step_operands(PADDED, torch.float64)
    sizes = (x.q * x.q.shape[-1] ** 0.5).norm(dim=-1)
    tiny = sizes < 0.1
    assert tiny.nonzero().tolist() == [[x.rows.tolist().index(3), 3]]


def test_the_same_seed_gives_the_same_call() -> None:
    """Label and seed alone decide the contents."""
    again, other = cases.synthesise(ROWS[0], 0), cases.synthesise(ROWS[0], 1)
    assert all(torch.equal(PADDED.inputs[n], again.inputs[n]) for n in PADDED.inputs)
    assert not torch.equal(PADDED.inputs["gate"], other.inputs["gate"])


def test_sets_have_pools_of_their_own() -> None:
    """No set shares memory with another, and every tensor starts on a line, at odd widths too."""
    sets = cases.make_sets(cases.row("odd", {"HV": 3, "V": 12, "B": 3}), 3, 0, "cpu")
    for name in ("conv_state", "state"):
        assert len({call.outputs[name].data_ptr() for call in sets} | {c.inputs[name].data_ptr() for c in sets}) == 6
    assert all(t.data_ptr() % 16 == 0 for call in sets for t in (*call.inputs.values(), *call.outputs.values()))


def test_guarded_calls_have_gaps_and_the_same_answer() -> None:
    """Rows and slots lie apart, a spare slot holds numbers, and the oracle does not notice."""
    call = cases.with_guard_rows(PADDED, 64)
    for name in cases.OPERANDS:
        assert call.inputs[name].stride(0) == call.inputs[name].shape[1] + 64
    for name in cases.POOLS:
        given = call.inputs[name]
        assert given.stride() == call.outputs[name].stride() != given.contiguous().stride()
        assert given.shape[0] == PADDED.inputs[name].shape[0] + 1
        assert torch.isfinite(given).all()
    assert torch.equal(oracle.oracle_fp64(call)["out"], oracle.oracle_fp64(PADDED)["out"])
    assert cases.with_guard_rows(PADDED, 0) is PADDED


@pytest.mark.parametrize("source", [None, PADDED], ids=["drawn", "reused"])
@pytest.mark.parametrize("which", cases.CHANGES)
def test_changed_contents_fit(which: str, source: object) -> None:
    """Shapes and dtypes stay; operands and pools are others; only `slots` moves the requests, to distinct slots."""
    new = cases.changed(PADDED, which, 1, source)
    for name, tensor in new.items():
        old = PADDED.inputs[name]
        assert (tensor.shape, tensor.dtype) == (old.shape, old.dtype)
        assert not torch.equal(tensor, old)
    assert ("state_indices" in new) == (which == "slots")
    found = oracle.oracle_fp32(PADDED.with_inputs(**new))
    assert all(torch.isfinite(t).all() for t in found.values())


def test_shuffled_contents_are_others() -> None:
    """Every floating-point input turns, weights among them; indices stay."""
    new = cases.shuffled(PADDED, 3)
    assert set(new) == set(SPEC.tensors) - {"state_indices"}
    assert all(t.shape == PADDED.inputs[n].shape and not torch.equal(t, PADDED.inputs[n]) for n, t in new.items())


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"HV": 4, "B": 0}, "of 1 or more"),
        ({"B": 4}, "of 1 or more"),
        ({"HV": 4, "B": 1, "gate": "hard"}, "'hard'"),
        ({"HV": 4, "B": 1, "state": "float16"}, "'float16'"),
        ({"HV": 4, "B": 1, "H": 2}, r"axes is \['H'\]"),
    ],
)
def test_rows_outside_the_op_are_refused(axes: dict, words: str) -> None:
    """A row that no call can have is named with what may be given."""
    with pytest.raises(ParameterError, match=words):
        cases.row("bad", axes)


def test_unknown_changes_are_refused() -> None:
    """Only the two named changes exist."""
    with pytest.raises(ParameterError, match=r"which is 'lengths'; allowed: 'operands', 'slots'"):
        cases.changed(PADDED, "lengths", 0)
