"""Agreement of two recordings: the same set agrees fully, and each kind of difference shows in its own number."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kda_lab.captures.agreement import agreement, relative_l2
from kda_lab.captures.format import Producer, Source
from kda_lab.captures.store import CaptureDraft, CaptureSet, PoolRows, write_set
from kda_lab.errors import CaptureError
from kda_lab.ops.protocol import Call

POOL = torch.arange(80.0).view(20, 4) + 1


def made(
    path: Path, index: torch.Tensor, pool: torch.Tensor = POOL, op: str = "test.op", gather: bool = True
) -> CaptureSet:
    """A set of one packed call of lengths 3 and 2 whose K and V are rows of a pool; q and out are 1 and 2."""
    rows = pool[index.long()]
    inputs = {"q": torch.ones(2, 12, 4), "k": rows, "v": 2 * rows}
    call = Call(op, inputs, {}, {"out": torch.zeros(2, 12, 4)}, label="a", facts={"lengths": [3, 2]})
    draft = CaptureDraft(
        name="a",
        kind="synthetic",
        call=call,
        source=Source(),
        licence="CC0-1.0",
        recorded="drawn",
        folded="nothing",
        seed=1,
        pinned={"out": torch.full((2, 12, 4), 2.0)},
        producer=Producer(name="test"),
        gathers={n: PoolRows("pool.safetensors", n, index) for n in ("k", "v")} if gather else {},
    )
    write_set(path, op, [draft], pools={"pool.safetensors": {"k": pool, "v": 2 * pool}})
    return CaptureSet.open(path)


INDEX = torch.tensor([[0], [4], [8], [1], [3]], dtype=torch.int32)


def test_a_set_agrees_with_itself(tmp_path: Path) -> None:
    """Overlap 1, errors 0, the same bits."""
    captures = made(tmp_path / "a", INDEX)
    (found,) = agreement(captures, captures)
    assert (found.name, found.selection_overlap, found.same_bits) == ("a", 1.0, True)
    assert (found.q, found.k, found.v, found.out) == (0.0, 0.0, 0.0, 0.0)


def test_another_order_of_the_same_rows_is_full_overlap(tmp_path: Path) -> None:
    """Rows are compared by the pool row they hold, not by their place."""
    turned = INDEX[[2, 0, 1, 4, 3]]
    (found,) = agreement(made(tmp_path / "a", turned), made(tmp_path / "b", INDEX))
    assert (found.selection_overlap, found.k, found.v, found.same_bits) == (1.0, 0.0, 0.0, False)


def test_the_overlap_is_that_of_the_worst_row(tmp_path: Path) -> None:
    """One of three rows differs in the first segment, one of two in the second."""
    other = torch.tensor([[0], [4], [9], [1], [2]], dtype=torch.int32)
    (found,) = agreement(made(tmp_path / "a", other), made(tmp_path / "b", INDEX))
    assert (found.selection_overlap, found.k) == (0.5, 0.0)


@pytest.mark.parametrize("gather", [True, False], ids=["gathered", "plain"])
def test_errors_are_relative_to_the_right_set(tmp_path: Path, gather: bool) -> None:
    """Keys one percent larger give 0.01, whether they are gathered or kept as they are."""
    (found,) = agreement(
        made(tmp_path / "a", INDEX, 1.01 * POOL, gather=gather), made(tmp_path / "b", INDEX, gather=gather)
    )
    assert found.k == pytest.approx(0.01, rel=1e-4) and found.v == pytest.approx(0.01, rel=1e-4)
    assert (found.q, found.selection_overlap) == (0.0, 1.0)


def test_sets_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    """Other op, no common name, other lengths: each its own refusal."""
    one = made(tmp_path / "a", INDEX)
    with pytest.raises(CaptureError, match=r"op is 'test.op'; allowed: 'other.op'"):
        agreement(one, made(tmp_path / "b", INDEX, op="other.op"))
    empty = CaptureSet(one.path, one.manifest.model_copy(update={"captures": ()}))
    with pytest.raises(CaptureError, match=r"names is \['a'\]; allowed: at least one of \[\]"):
        agreement(one, empty)
    entry = one.entry("a").model_copy(update={"facts": {"lengths": [5]}})
    other = replace(one, manifest=one.manifest.model_copy(update={"captures": (entry,)}))
    with pytest.raises(CaptureError, match=r"a: lengths is \[3, 2\]; allowed: \[5\]"):
        agreement(one, other)


def test_the_relative_error_of_nothing_is_zero_or_infinite() -> None:
    """Division by zero is decided, not NaN."""
    zero = torch.zeros(3)
    assert relative_l2(zero, zero) == 0.0
    assert math.isinf(relative_l2(zero + 1, zero))
