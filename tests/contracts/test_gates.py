"""Gates of tensors and scalars: what their writers may not say."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from kda_lab.contracts.gates import ScalarGate, TensorGate


@pytest.mark.parametrize(
    ("shape", "contiguous"), [(["K"], True), (["K", "N"], False)], ids=["one-dimension", "any-strides"]
)
def test_transposed_needs_two_dimensions_and_a_layout(shape: list[str], contiguous: bool) -> None:
    """A vector has nothing to swap, and any strides at all cannot be transposed ones."""
    with pytest.raises(
        ValidationError, match=r"transposed is True with contiguous .*; allowed: contiguous True and two"
    ):
        TensorGate.model_validate({"dtypes": ["uint8"], "shape": shape, "contiguous": contiguous, "transposed": True})


@pytest.mark.parametrize(
    "others", [{"contiguous": False}, {"transposed": True}, {"shape": ["B"]}], ids=["any", "transposed", "all-free"]
)
def test_free_leading_strides_leave_a_layout_behind_them(others: dict[str, Any]) -> None:
    """Strides are freed in front of dimensions that stay row-major: not beside any strides, nor all of them."""
    gate = {"dtypes": ["bfloat16"], "shape": ["B", "C"], "free_leading": 1}
    assert TensorGate.model_validate(gate).free_leading == 1
    with pytest.raises(ValidationError, match=r"free_leading is 1 with contiguous .*; allowed: contiguous True, trans"):
        TensorGate.model_validate({**gate, **others})


def test_a_gate_is_not_transposed_by_default() -> None:
    """Contracts that were written before the field exists mean what they meant."""
    assert not TensorGate(dtypes=("uint8",), shape=("K", "N")).transposed


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        ({"kind": "int", "allowed": ["one"]}, "names are for kind 'dtype'"),
        ({"kind": "dtype"}, "allowed: names of dtypes such as 'bfloat16', and no bounds"),
        ({"kind": "dtype", "allowed": []}, "allowed: names of dtypes"),
        ({"kind": "dtype", "allowed": ["bfloat16", 1]}, "allowed: names of dtypes"),
        ({"kind": "dtype", "allowed": ["bfloat16"], "minimum": 1}, "with bounds 1.0 and None for kind 'dtype'"),
        ({"kind": "float", "minimum": 2, "maximum": 1}, "minimum 2 is above maximum 1"),
    ],
)
def test_a_scalar_gate_without_sense_is_refused(gate: dict[str, Any], words: str) -> None:
    """Names are for dtypes and dtypes have names, and bounds are in order."""
    with pytest.raises(ValidationError, match=words):
        ScalarGate.model_validate(gate)


def test_values_keep_their_kind() -> None:
    """A number stays a number and a name a name when a contract is read from JSON."""
    assert ScalarGate.model_validate_json('{"kind": "int", "allowed": [1, 2]}').allowed == (1, 2)
    assert ScalarGate.model_validate_json('{"kind": "dtype", "allowed": ["bfloat16"]}').allowed == ("bfloat16",)


@pytest.mark.parametrize("name", ["bfloat17", "half", "float", "torch.bfloat16", "", "Tensor", "float\u00b2"])
def test_a_dtype_is_called_as_torch_calls_it(name: str) -> None:
    """A name that torch does not know, or an alias that no tensor tells, could never match a call."""
    with pytest.raises(ValidationError, match=r"a dtype is '.*'; allowed: torch's own name of one, such as 'bfloat16'"):
        TensorGate.model_validate({"dtypes": ["float16", name], "shape": ["K"]})
    with pytest.raises(ValidationError, match=r"a dtype is '.*'; allowed: torch's own name of one"):
        ScalarGate.model_validate({"kind": "dtype", "allowed": ["float16", name]})
