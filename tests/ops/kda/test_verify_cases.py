"""Inputs of the verify ops: settled values, free strides, padding, dead slots."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.kda import verify_cases as cases
from kda_lab.ops.kda.speculative import drafted
from kda_lab.ops.kda_verify_ring.cases import synthesise
from kda_lab.ops.protocol import Row

AXES = {"HV": 2, "H": 1, "K": 16, "V": 24, "B": 3, "T": 3, "lower_bound": -5.0}
CALL = synthesise(Row("kda.verify_ring", "cases", {**AXES, "wide": True}), 0)


def test_the_convolution_rounds_alike_in_fp32_and_fp64() -> None:
    """No drawn value lies where the two would round to different BF16 values."""
    narrow, wide = (drafted(CALL.inputs, -5.0, dtype) for dtype in (torch.float32, torch.float64))
    for name in ("q", "k", "v"):
        assert torch.equal(getattr(narrow, name).double(), getattr(wide, name))


SEEDS = (*range(2026, 2041), *(20261130 + trial + twin for trial in range(8) for twin in (0, 500009)))
SMALL = {
    row.label: row for row in (*cases.capture_rows("kda.verify_ring"), *cases.rows("kda.verify_ring", batches=(1,)))
}


@given(label=st.sampled_from(sorted(SMALL)), seed=st.sampled_from(SEEDS))
@example(label="softplus-padded", seed=2026)
@example(label="softplus-padded", seed=2039)
@example(label="hv12-B1-T4", seed=2027)
def test_every_row_settles_from_every_seed(label: str, seed: int) -> None:
    """Also where the newest weight of a channel is near zero, or its older terms are far below zero."""
    inputs, scalars, _ = cases.drawn(SMALL[label], seed)
    narrow, wide = (drafted(inputs, scalars["lower_bound"], dtype) for dtype in (torch.float32, torch.float64))
    for name in ("q", "k", "v"):
        assert torch.equal(getattr(narrow, name).double(), getattr(wide, name))


def test_a_channel_that_its_newest_element_cannot_move_is_drawn_anew() -> None:
    """With a last weight of zero the past of the channel changes too; the other channels keep their bits."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.tensor([[0.5, 0.5], [0.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    past, qkv = torch.zeros(1, 3, 2).bfloat16(), torch.zeros(1, 1, 2).bfloat16()
    # SiLU of -8 is so small that FP32's error spans whole steps of BF16.
    past[0, 0, 0] = -16
    before = past.clone()
    cases.settle(qkv, past, weight, torch.ones(1, 2), generator)
    assert not torch.equal(past[..., 0], before[..., 0])
    assert torch.equal(past[..., 1], before[..., 1])


def test_values_that_do_not_settle_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of redraws is named, and another seed is asked for."""
    monkeypatch.setattr(cases, "MOST_REDRAWS", 3)
    past, qkv = torch.full((1, 3, 1), -9.0).bfloat16(), torch.zeros(1, 1, 1).bfloat16()
    with pytest.raises(ParameterError, match=r"inputs is unsettled after 3 redraws; allowed: another seed"):
        cases.settle(qkv, past, torch.ones(4, 1), torch.zeros(1, 1), torch.Generator().manual_seed(0))


def test_one_head_has_tiny_keys() -> None:
    """Their sum of squares is about epsilon, so that its place is seen."""
    squares = drafted(CALL.inputs, -5.0, torch.float64).k.square().sum(-1)
    assert 1e-8 < float(squares[1, :, 0].max()) < 1e-5


def test_strides_are_free_and_dead_slots_hold_nan() -> None:
    """Rows and slots lie apart; slots that no request names are NaN; the last request is padding."""
    i = CALL.inputs
    assert i["mixed_qkv"].stride(1) == i["mixed_qkv"].shape[2] + cases.WIDE
    assert i["state"].stride(0) == i["state"][0].numel() + 4 * cases.WIDE
    assert i["state_indices"].tolist()[-1] == -1
    named = i["state_indices"][:-1].long()
    dead = i["state"].isnan().flatten(1).all(1)
    assert not dead[named].any()
    assert int(dead.sum()) == i["state"].shape[0] - 2


def test_guard_slots_keep_the_strides() -> None:
    """A copy has lost its gaps; the guarded call has them again, and two more slots of NaN."""
    guarded = cases.with_guard_slots(CALL.to("cpu"), 64)
    assert guarded.inputs["state"].shape[0] == CALL.inputs["state"].shape[0] + 2
    assert guarded.inputs["state"].stride(0) == CALL.inputs["state"].stride(0)
    assert guarded.inputs["state"][-2:].isnan().all()
    assert guarded.inputs["a"].stride(1) == CALL.inputs["a"].stride(1)


@pytest.mark.parametrize("which", cases.CHANGES)
def test_changed_contents_fit_their_buffers(which: str) -> None:
    """Same shapes and dtypes, other values; `slots` moves the requests, `tokens` does not."""
    fresh = cases.changed(CALL, which, 1)
    for name, tensor in CALL.inputs.items():
        assert (fresh[name].shape, fresh[name].dtype) == (tensor.shape, tensor.dtype)
    assert not torch.equal(fresh["mixed_qkv"], CALL.inputs["mixed_qkv"])
    moved = not torch.equal(fresh["state_indices"], CALL.inputs["state_indices"])
    assert moved == (which == "slots")


def test_an_unknown_change_is_refused() -> None:
    """The two changes are named."""
    with pytest.raises(ParameterError, match=r"which is 'weights'; allowed: 'tokens', 'slots'"):
        cases.changed(CALL, "weights", 0)
