"""Inputs of the verify ops: settled values, free strides, padding, dead slots."""

from __future__ import annotations

import pytest
import torch

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
