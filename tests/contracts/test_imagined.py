"""Imagined calls: facts made of numbers lie inside the contract they were made from."""

from __future__ import annotations

import pytest
import torch

from kda_lab.contracts.imagined import imagined_call
from kda_lab.contracts.model import Contract, Declaration
from kda_lab.contracts.predicate import axes_of, check
from kda_lab.errors import ParameterError

SCALARS = {"out_dtype": "bfloat16"}


def test_an_imagined_gemm_is_accepted(gemm_declaration: Declaration) -> None:
    """Rounded shapes, transposed strides and a dtype by name give a call that the declaration takes."""
    facts = imagined_call(gemm_declaration, {"M": 9, "N": 48, "K": 128}, SCALARS, (9, 0))
    assert check(gemm_declaration, facts).reasons == ()
    assert axes_of(gemm_declaration, facts) == {"M": 9, "N": 48, "K": 128}
    assert (facts.tensors["weight"].shape, facts.tensors["weight"].strides) == ((64, 48), (1, 64))
    assert (facts.tensors["x_sf"].shape, facts.scalars["out_dtype"]) == ((128, 8), torch.bfloat16)


def test_an_outer_dimension_keeps_its_stride(gemm_declaration: Declaration) -> None:
    """Of three dimensions only the last two are swapped."""
    gate = {"dtypes": ["uint8"], "shape": ["E", "K", "N"], "transposed": True}
    values = gemm_declaration.model_dump() | {"tensors": {"weight": gate}, "scalars": {}, "callable": [{"axes": {}}]}
    declaration = Declaration.model_validate(values)
    facts = imagined_call(declaration, {"E": 3, "K": 4, "N": 5}, {}, None)
    assert facts.tensors["weight"].strides == (20, 1, 4)
    assert check(declaration, facts).ok


def test_another_float_dtype_can_be_asked_for(contract: Contract) -> None:
    """Only tensors of floats take it, so that the answer is about that dtype."""
    axes = {"B": 4, "HQ": 24, "HKV": 2, "N": 8}
    scalars = {"max_seqlen_k": 9, "max_seqlen_q": 1}
    facts = imagined_call(contract, axes, scalars, (12, 1), "float16")
    assert [r.field for r in check(contract, facts).reasons] == ["q.dtype", "k.dtype", "v.dtype", "out.dtype"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_scalar_names_the_dtype_of_its_tensor(dtype: str, gemm_declaration: Declaration) -> None:
    """The output that is imagined has the dtype that is asked of the op; the others keep theirs."""
    facts = imagined_call(gemm_declaration, {"M": 9, "N": 48, "K": 128}, {"out_dtype": dtype}, (9, 0))
    assert (facts.tensors["out"].dtype, facts.tensors["x_fp4"].dtype) == (dtype, "uint8")


def test_an_unknown_name_stays_a_string(gemm_declaration: Declaration) -> None:
    """A name that is no dtype of torch is refused by the predicate, in its words."""
    facts = imagined_call(gemm_declaration, {"M": 1, "N": 16, "K": 64}, {"out_dtype": "nn"}, (9, 0))
    (reason,) = check(gemm_declaration, facts).reasons
    assert str(reason) == "out_dtype is 'nn'; allowed: torch.bfloat16, torch.float32."


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"M": 1, "N": 16}, r"axes is {'M': 1, 'N': 16}; allowed: extents for x_fp4 \('M', 'K/2'\)\. 'K'"),
        ({"M": 1, "N": 16, "K": 33}, r"K is 33; allowed: a multiple of 2, for K/2"),
    ],
)
def test_impossible_axes_are_refused(axes: dict[str, int], words: str, gemm_declaration: Declaration) -> None:
    """An axis that is missing, or that a shape cannot divide, is named."""
    with pytest.raises(ParameterError, match=words):
        imagined_call(gemm_declaration, axes, SCALARS, (9, 0))
