"""The predicate on `nvfp4.gemm`: containers, divided axes, transposed strides and dtypes, by example and as laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.contracts.facts import CallFacts, TensorFacts, call_facts
from kda_lab.contracts.imagined import imagined_call
from kda_lab.contracts.model import Declaration
from kda_lab.contracts.predicate import check, show
from kda_lab.ops.nvfp4_gemm.spec import SPEC

Change = Callable[[Any, CallFacts], CallFacts]

REJECTED: dict[str, tuple[Change, list[str]]] = {
    "container-rows": (
        lambda c, f: c.change(f, x_sf={"shape": (120, 8), "strides": (8, 1)}),
        ["x_sf.shape[0] is 120; allowed: 128, which is ceil128(M) with M=8 from x_fp4.shape[0]."],
    ),
    "container-columns": (
        lambda c, f: c.change(f, weight_sf={"shape": (6, 128), "strides": (1, 6)}),
        ["weight_sf.shape[0] is 6; allowed: 8, which is ceil4(K/16) with K=128 from x_fp4.shape[1]."],
    ),
    "k-of-the-weight": (
        lambda c, f: c.change(f, weight={"shape": (63, 48), "strides": (1, 63)}),
        ["weight.shape[0] is 63; allowed: 64, which is K/2 with K=128 from x_fp4.shape[1]."],
    ),
    "weight-row-major": (
        lambda c, f: c.change(f, weight={"strides": (48, 1)}),
        [
            "weight.strides is (48, 1); allowed: (1, 64), the transposed view of a contiguous tensor. Store weight "
            "row-major with its last two dimensions swapped, and pass its transpose."
        ],
    ),
    "weight-slice": (
        lambda c, f: c.change(f, weight={"strides": (1, 128)}),
        ["weight.strides is (1, 128); allowed: (1, 64), the transposed view of a contiguous tensor."],
    ),
    "scales-row-major": (
        lambda c, f: c.change(f, weight_sf={"strides": (128, 1)}),
        ["weight_sf.strides is (128, 1); allowed: (1, 8), the transposed view of a contiguous tensor."],
    ),
    "x-slice": (
        lambda c, f: c.change(f, x_fp4={"strides": (128, 1)}),
        ["x_fp4.strides is (128, 1); allowed: contiguous strides for (8, 64)."],
    ),
    "x-int8": (lambda c, f: c.change(f, x_fp4={"dtype": "int8"}), ["x_fp4.dtype is torch.int8; allowed: torch.uint8."]),
    "scales-e5m2": (
        lambda c, f: c.change(f, x_sf={"dtype": "float8_e5m2"}),
        ["x_sf.dtype is torch.float8_e5m2; allowed: torch.uint8, torch.float8_e4m3fn."],
    ),
    "misaligned": (
        lambda c, f: c.change(f, weight={"alignment": 8}),
        ["weight.alignment is 8 bytes; allowed: a multiple of 16 bytes."],
    ),
    "alpha-0d": (
        lambda c, f: c.change(f, alpha={"shape": (), "strides": ()}),
        ["alpha.shape is (); allowed: 1 dimensions [1]."],
    ),
    "alpha-two": (
        lambda c, f: c.change(f, alpha={"shape": (2,), "strides": (1,)}),
        ["alpha.shape[0] is 2; allowed: 1."],
    ),
    "out-dtype-fp16": (
        lambda c, f: c.scalars(f, out_dtype=torch.float16),
        ["out_dtype is torch.float16; allowed: torch.bfloat16, torch.float32."],
    ),
    "out-dtype-name": (
        lambda c, f: c.scalars(f, out_dtype="bfloat16"),
        ["out_dtype is 'bfloat16'; allowed: torch.bfloat16, torch.float32."],
    ),
    "out-dtype-int": (
        lambda c, f: c.scalars(f, out_dtype=1),
        ["out_dtype is 1; allowed: torch.bfloat16, torch.float32."],
    ),
    "out-dtype-none": (
        lambda c, f: c.scalars(f, out_dtype=None),
        ["out_dtype is None; allowed: torch.bfloat16, torch.float32."],
    ),
}


def call(declaration: Declaration, m: int = 8, n: int = 48, k: int = 128, dtype: str = "bfloat16") -> CallFacts:
    """Facts of a call that lies inside the declaration when its extents do."""
    return imagined_call(declaration, {"M": m, "N": n, "K": k}, {"out_dtype": dtype}, (9, 0))


@pytest.mark.parametrize("case", REJECTED)
def test_one_wrong_field_is_named_with_what_is_allowed(case: str, gemm_declaration: Declaration, calls: Any) -> None:
    """Each spoilt fact gives its reasons, and no other."""
    change, words = REJECTED[case]
    reasons = [str(r) for r in check(gemm_declaration, change(calls, call(gemm_declaration))).reasons]
    assert len(reasons) == len(words)
    for reason, expected in zip(reasons, words, strict=True):
        assert reason.startswith(expected)


def test_a_k_of_odd_groups_is_refused_by_the_rule(gemm_declaration: Declaration) -> None:
    """Forty values of k are two groups and a half: the reason is about K, not about the container."""
    shapes = {"x_fp4": (8, 20), "weight": (20, 48), "x_sf": (128, 4), "weight_sf": (4, 128)}
    facts = call(gemm_declaration)
    strides = {"x_fp4": (20, 1), "weight": (1, 20), "x_sf": (4, 1), "weight_sf": (1, 4)}
    tensors = {
        n: replace(t, shape=shapes.get(n, t.shape), strides=strides.get(n, t.strides)) for n, t in facts.tensors.items()
    }
    (reason,) = check(gemm_declaration, replace(facts, tensors=tensors)).reasons
    assert str(reason).startswith(
        "x_fp4.shape[1] (K, from K/2) is 40; allowed: 64..1048576 (multiples of 64). Callable: M=1..16 "
    )


def test_an_optional_dtype_may_be_absent(gemm_values: dict[str, Any]) -> None:
    """None is accepted where the gate says so, and the refusal of anything else offers it."""
    gate = {"kind": "dtype", "allowed": ["bfloat16"], "optional": True}
    declaration = Declaration.model_validate({**gemm_values, "scalars": {"out_dtype": gate}})
    facts = call(declaration)
    assert check(declaration, replace(facts, scalars={"out_dtype": None})).ok
    (reason,) = check(declaration, replace(facts, scalars={"out_dtype": torch.int8})).reasons
    assert str(reason) == "out_dtype is torch.int8; allowed: torch.bfloat16 or None."


def test_a_dtype_is_no_number(contract: Any, calls: Any) -> None:
    """A dtype in place of an int is shown by its name and refused."""
    (reason,) = check(contract, calls.scalars(calls.good(), max_seqlen_k=torch.int8)).reasons
    assert str(reason).startswith("max_seqlen_k is torch.int8; allowed: an int >= 1")
    assert show(torch.float8_e4m3fn) == "torch.float8_e4m3fn"


@given(
    m=st.integers(0, 20),
    n=st.integers(0, 66),
    k=st.integers(0, 70),
    dtype=st.sampled_from(["bfloat16", "float32", "float16"]),
)
def test_ok_exactly_inside_the_declaration(m: int, n: int, k: int, dtype: str, gemm_declaration: Declaration) -> None:
    """The predicate agrees with the declaration written out as one condition, whatever container a K needs."""
    facts = call(gemm_declaration, m, n, 2 * k, dtype)
    expected = 1 <= m <= 16 and n >= 16 and n % 16 == 0 and k >= 32 and k % 32 == 0 and dtype != "float16"
    assert check(gemm_declaration, facts).ok == expected


@given(
    m=st.integers(1, 16),
    n=st.integers(1, 20),
    k=st.integers(1, 9),
    rows=st.integers(0, 300),
    columns=st.integers(0, 40),
)
def test_one_container_fits_one_call(
    m: int, n: int, k: int, rows: int, columns: int, gemm_declaration: Declaration, calls: Any
) -> None:
    """Of all containers of the weight's scales exactly the one that its formula gives is taken."""
    facts = call(gemm_declaration, m, 16 * n, 64 * k)
    changed = calls.change(facts, weight_sf={"shape": (columns, rows), "strides": (1, columns)})
    fits = (columns, rows) == (4 * k, -(-16 * n // 128) * 128)
    assert check(gemm_declaration, changed).ok == fits


@given(swap=st.booleans(), name=st.sampled_from(["weight", "weight_sf"]), m=st.integers(1, 16), n=st.integers(1, 9))
def test_real_views_are_judged_as_torch_lays_them_out(
    swap: bool, name: str, m: int, n: int, gemm_declaration: Declaration
) -> None:
    """Tensors made by torch pass as transposed views and fail once one of them is made contiguous."""
    k, width = 128, 16 * n
    tensors = {
        "x_fp4": torch.zeros(m, k // 2, dtype=torch.uint8),
        "weight": torch.zeros(width, k // 2, dtype=torch.uint8).t(),
        "x_sf": torch.zeros(128, k // 16, dtype=torch.uint8),
        "weight_sf": torch.zeros(-(-width // 128) * 128, k // 16, dtype=torch.uint8).t(),
        "alpha": torch.zeros(1),
    }
    if swap:
        tensors[name] = tensors[name].contiguous()
    facts = call_facts(SPEC, tensors, {"out_dtype": torch.bfloat16}, {"out": None})
    moved = {n: replace(t, device_type="cuda", device_index=0) for n, t in facts.tensors.items()}
    fields = [r.field for r in check(gemm_declaration, replace(facts, tensors=moved)).reasons]
    assert fields == ([f"{name}.strides"] if swap else [])


ANY_TENSOR = st.builds(
    TensorFacts,
    dtype=st.sampled_from(["uint8", "float32", "bfloat16", "nonsense"]),
    shape=st.lists(st.integers(0, 300), max_size=3).map(tuple),
    strides=st.lists(st.integers(0, 300), max_size=3).map(tuple),
    device_type=st.sampled_from(["cuda", "cpu"]),
    device_index=st.sampled_from([None, 0]),
    alignment=st.sampled_from([1, 16, 256]),
)
ANY_FACTS = st.builds(
    CallFacts,
    tensors=st.dictionaries(st.sampled_from([*SPEC.tensors, *SPEC.outputs]), ANY_TENSOR),
    scalars=st.dictionaries(
        st.just("out_dtype"), st.sampled_from([torch.bfloat16, torch.int8, "bfloat16", None, 1, object()])
    ),
    capability=st.sampled_from([None, (9, 0)]),
)


@given(facts=ANY_FACTS)
def test_arbitrary_facts_never_raise_and_never_pass(facts: CallFacts, gemm_declaration: Declaration) -> None:
    """Whatever the shapes, strides and ranks, the predicate answers with readable reasons."""
    reasons = check(gemm_declaration, facts).reasons
    assert reasons
    assert all(f"{r.field} is {r.given}; allowed: {r.allowed}." in str(r) for r in reasons)
