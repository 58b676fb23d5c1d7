"""Two recordings of products: small differences agree, another weight, text or scale does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kda_lab.captures.format import Producer, Source
from kda_lab.captures.nvfp4_agreement import GemmAgreement, gemm_agreement
from kda_lab.captures.store import CaptureDraft, CaptureSet, write_set
from kda_lab.errors import CaptureError
from kda_lab.ops.protocol import Call
from kda_lab.ops.registry import load_op

SAME = GemmAgreement("a", True, 0.0, 0.0, 0.0, True)
OP = load_op("nvfp4.gemm")
CALL = OP.cases.synthesise(OP.cases.rows(("tiny_c",), (4,), ("random",))[0], 3, "cpu")


def one_set(path: Path, call: Call, name: str = "a", op: str = "nvfp4.gemm") -> CaptureSet:
    """A set of one call with its emulated output pinned."""
    draft = CaptureDraft(
        name=name,
        kind="synthetic",
        call=call,
        source=Source(),
        licence="CC0-1.0",
        recorded="drawn",
        folded="nothing",
        seed=3,
        pinned=OP.oracle.emulate(call),
        producer=Producer(name="test"),
    )
    return CaptureSet.open(write_set(path, op, [draft]))


def test_a_set_agrees_with_itself(tmp_path: Path) -> None:
    """Every error is zero and the bytes are the same."""
    captures = one_set(tmp_path / "set", CALL)
    assert gemm_agreement(captures, captures) == [SAME]
    assert SAME.disagreement == ""


def test_a_changed_operand_shows_where_it_was_changed(tmp_path: Path) -> None:
    """A negated activation, one byte of a weight, a doubled alpha: each moves its own number and disagrees."""
    right = one_set(tmp_path / "right", CALL)
    weight = CALL.inputs["weight"].t().clone()
    weight[0, 0] ^= 1
    changes = {
        "x": CALL.with_inputs(x_fp4=CALL.inputs["x_fp4"] ^ 0x88),
        "weight": CALL.with_inputs(weight=weight.t()),
        "alpha": CALL.with_inputs(alpha=CALL.inputs["alpha"] * 2),
    }
    found = {n: gemm_agreement(one_set(tmp_path / n, c), right)[0] for n, c in changes.items()}
    assert (found["x"].x, found["x"].same_weight, found["x"].alpha) == (2.0, True, 0.0)
    assert (found["weight"].same_weight, found["weight"].x) == (False, 0.0)
    assert found["alpha"].alpha == found["alpha"].x == 1.0
    assert all("relative errors x" in record.disagreement and not record.same_bits for record in found.values())


@pytest.mark.parametrize(
    "changes",
    [{"same_weight": False}, {"x": 0.06}, {"out": 0.06}, {"out": float("nan")}, {"alpha": 0.02}],
    ids=str,
)
def test_every_number_can_disagree(changes: dict[str, float]) -> None:
    """NaN is no agreement."""
    assert replace(SAME, **changes).disagreement.startswith("a: weight ")


def test_small_differences_of_another_cpu_agree() -> None:
    """Below the limits nothing is said; the bytes may differ."""
    assert replace(SAME, x=0.04, out=0.04, alpha=0.009, same_bits=False).disagreement == ""


def test_sets_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    """Another op, no name in common, other shapes."""
    captures = one_set(tmp_path / "set", CALL)
    with pytest.raises(CaptureError, match=r"op is 'nvfp4\.gemm'; allowed: 'test.op'"):
        gemm_agreement(captures, one_set(tmp_path / "op", CALL, op="test.op"))
    with pytest.raises(CaptureError, match=r"names is \['a'\]; allowed: at least one of \['b'\]"):
        gemm_agreement(captures, one_set(tmp_path / "name", CALL, name="b"))
    other = OP.cases.synthesise(OP.cases.rows(("tiny_c",), (2,), ("random",))[0], 3, "cpu")
    with pytest.raises(CaptureError, match=r"a: shapes is .*; allowed: "):
        gemm_agreement(captures, one_set(tmp_path / "shape", other))


def test_without_a_pinned_output_there_is_no_agreement(tmp_path: Path) -> None:
    """The error is NaN, which no limit lets pass."""
    captures = one_set(tmp_path / "set", CALL)
    entry = captures.manifest.captures[0]
    bare = replace(
        captures,
        manifest=captures.manifest.model_copy(
            update={"captures": (entry.model_copy(update={"pinned": {}, "producer": None}),)}
        ),
    )
    record = gemm_agreement(bare, captures)[0]
    assert torch.tensor(record.out).isnan() and record.disagreement
