"""Rows, synthetic calls, guard rows, changed contents and input sets of the prefill."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.kda_chunk_prefill import cases, oracle
from kda_lab.ops.kda_chunk_prefill.spec import SPEC

SMALL = cases.row("small", {"HV": 4, "H": 2, "K": 32, "V": 16, "lengths": (9, 0, 70, 3), "padding": True})


def test_rows_are_labelled_and_have_the_published_widths() -> None:
    """One row a head count, length and kind; K = V = 128 and one query head a value head."""
    found = cases.rows((12, 96), (1024,), ("one", "mixed"))
    assert [r.label for r in found] == ["HV12-T1024-one", "HV12-T1024-mixed", "HV96-T1024-one", "HV96-T1024-mixed"]
    assert found[0].parameters | {"lengths": None} == {
        "HV": 12, "H": 12, "K": 128, "V": 128, "T": 1024, "N": 1, "P": 1536, "gate": "safe", "padding": False,
        "lengths": None,
    }  # fmt: skip
    assert len(cases.rows()) == 9


def test_mixed_lengths_add_up_and_are_ragged() -> None:
    """Eight sequences, the longest eight times the shortest, whatever the total is."""
    assert cases.lengths("one", 8192) == (8192,)
    assert cases.lengths("mixed", 8192) == (227, 455, 683, 910, 1138, 1365, 1593, 1821)
    assert sum(cases.lengths("mixed", 1000)) == 1000


@pytest.mark.parametrize("given", [("two", 64), ("mixed", 7)])
def test_unknown_lengths_are_refused(given: tuple[str, int]) -> None:
    """Kinds outside of the op, and fewer tokens than sequences."""
    with pytest.raises(ParameterError, match=r"kind, tokens is .*; allowed: \('one', 'mixed'\) with 8 tokens or more"):
        cases.lengths(*given)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"HV": 2, "lengths": (3,), "B": 1}, r"axes is \['B'\]; allowed: H, HV, K, V, gate, lengths, padding"),
        ({"HV": 3, "H": 2, "lengths": (3,)}, r"HV a multiple of H"),
        ({"HV": 2, "lengths": ()}, r"lengths of 0 or more"),
        ({"HV": 2, "lengths": (3, -1)}, r"lengths of 0 or more"),
        ({"HV": 2, "lengths": (3,), "gate": "loose"}, r"gate is 'loose'; allowed: 'safe', 'softplus', 'steep'"),
    ],
)
def test_axes_that_do_not_fit_are_refused(axes: dict[str, object], message: str) -> None:
    """Each wrong axis by its name, with what is allowed."""
    with pytest.raises(ParameterError, match=message):
        cases.row("wrong", {**axes})


def test_a_synthetic_call_has_its_shapes_and_facts() -> None:
    """Every tensor of the signature, and host-side facts that agree with the tensors."""
    call = cases.synthesise(SMALL, 0)
    i = call.inputs
    assert tuple(i) == SPEC.tensors
    assert (i["q"].shape, i["v"].shape, i["a"].shape) == ((82, 2, 32), (82, 4, 16), (82, 128))
    assert i["state"].shape == call.outputs["state"].shape == (5, 4, 16, 32)
    assert i["cu_seqlens"].tolist() == [0, 9, 9, 79, 82]
    assert i["state_indices"].tolist()[-1] == -1
    live = [one for one in oracle.sequences(call) if one.is_live]
    assert (call.facts["live"], call.facts["starting"]) == (len(live), sum(one.has_state for one in live)) == (2, 2)
    assert call.scalars == {"lower_bound": -5.0}


def test_epsilon_counts_somewhere_and_states_that_stay_are_small() -> None:
    """Every fifth token has a tiny query and key; the states that sequences replace are of size 1, the others small."""
    call = cases.synthesise(SMALL, 0)
    norms = call.inputs["k"].float().square().sum(-1)
    assert (norms[::5, -1] < 1e-5).all()
    assert (norms[1::5] > 1).all()
    live = [one.slot for one in oracle.sequences(call) if one.is_live]
    sizes = call.inputs["state"].square().mean((1, 2, 3)).sqrt()
    assert all((size > 0.5) == (slot in live) for slot, size in enumerate(sizes.tolist()))


def test_the_same_seed_gives_the_same_call() -> None:
    """Label and seed alone decide the contents."""
    first, again, other = (cases.synthesise(SMALL, seed) for seed in (1, 1, 2))
    assert all(torch.equal(first.inputs[n], again.inputs[n]) for n in first.inputs)
    assert not torch.equal(first.inputs["q"], other.inputs["q"])


def test_guard_rows_put_nan_between_slots() -> None:
    """Slots are further apart with NaN between them, one more is at the end, and contents stay."""
    call = cases.synthesise(SMALL, 0)
    grown = cases.with_guard_rows(call, 64)
    for pool in (grown.inputs["state"], grown.outputs["state"]):
        assert pool.shape[0] == 6
        assert pool.stride(0) == 4 * 16 * 32 + cases.SLOT_GAP
        gap = pool.as_strided((5, cases.SLOT_GAP), (pool.stride(0), 1), 4 * 16 * 32)
        assert gap.isnan().all()
    assert torch.equal(grown.inputs["state"][:5], call.inputs["state"])
    assert cases.with_guard_rows(call, 0) is call


@pytest.mark.parametrize("with_source", [False, True])
@pytest.mark.parametrize("which", cases.CHANGES)
def test_changed_contents_fit_their_buffers(which: str, with_source: bool) -> None:
    """Shapes and dtypes stay; another cut of the tokens is still one that means something."""
    call = cases.synthesise(SMALL, 0)
    new = cases.changed(call, which, 3, call if with_source else None)
    assert {n: (t.shape, t.dtype) for n, t in new.items()} == {
        n: (call.inputs[n].shape, call.inputs[n].dtype) for n in new
    }
    assert not torch.equal(new["q"], call.inputs["q"])
    assert (new["beta"] > 0).all()
    assert (new["beta"] < 1).all()
    found = oracle.sequences(call.with_inputs(**new))
    if which == "sequences":
        assert [one.last - one.first for one in found] == [3, 70, 0, 9]
        assert [one.has_state for one in found] == [False, True, False, True]
        assert {one.slot for one in found if one.is_live} != {one.slot for one in oracle.sequences(call) if one.is_live}


def test_an_unknown_change_is_refused() -> None:
    """With the names there are."""
    with pytest.raises(ParameterError, match=r"which is 'longer'; allowed: 'operands', 'sequences'"):
        cases.changed(cases.synthesise(SMALL, 0), "longer", 0)


def test_shuffled_weights_are_others() -> None:
    """What neither change replaces is turned for a timing copy."""
    call = cases.synthesise(SMALL, 0)
    new = cases.shuffled(call, 1)
    assert {"a_log", "dt_bias"} < set(new)
    assert all(not torch.equal(t, call.inputs[n]) and t.shape == call.inputs[n].shape for n, t in new.items())


def test_input_sets_are_distinct_and_have_pools_of_their_own() -> None:
    """No two sets share memory, and each is a call that means something."""
    sets = cases.make_sets(SMALL, 3, 1, "cpu")
    pointers = [t.data_ptr() for call in sets for t in (*call.inputs.values(), *call.outputs.values())]
    assert len(set(pointers)) == len(pointers)
    assert not torch.equal(sets[0].inputs["q"], sets[1].inputs["q"])
    assert all(oracle.sequences(call) for call in sets)


def test_captures_fit_into_half_a_megabyte() -> None:
    """All inputs of the committed rows together."""
    calls = [cases.synthesise(row, 0) for row in cases.capture_rows()]
    assert sum(t.numel() * t.element_size() for call in calls for t in call.inputs.values()) < 500_000
