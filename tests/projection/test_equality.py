"""Equality of the arms and laws of the builders: right ones pass, broken ones are named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kda_lab.projection import arms, equality, fp8
from kda_lab.projection.arms import CONTROL, SIDE, SideRule
from kda_lab.projection.inputs import DRAWN, RealRows
from kda_lab.projection.plan import ARMS
from kda_lab.projection.sizes import SMALL, splits

CPU = torch.device("cpu")
SIZE = splits(8, SMALL)
RULE = SideRule(None, 64, lambda: False)
REAL = RealRows("smollm", "a model", 15, torch.linspace(-9, 9, 8 * 64).reshape(8, 64).bfloat16(), "abc")


def test_every_arm_is_right_on_small_sizes() -> None:
    """A row an arm and number of tokens, with errors of BF16 size and the strides of views."""
    rows = equality.compare_arms(SIZE, (1, 6), RULE, CPU, 0)
    assert [(r.tokens, r.arm) for r in rows] == [(n, arm) for n in (1, 6) for arm in ARMS]
    assert equality.equality_faults(rows) == []
    assert all(0 < r.error < 5e-3 for r in rows)
    assert equality.control_repeats(rows)
    side = next(r for r in rows if (r.arm, r.tokens) == (SIDE, 6))
    assert side.row_strides == {"qkv": SIZE.qkvg, "gate": SIZE.qkvg, "b": SIZE.padded_bfa, "a": SIZE.projection}


def test_a_wrong_arm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fused arm that hands out the gate for a is named; a control with other bits is no repetition."""
    real = arms.three
    monkeypatch.setattr(arms, "three", lambda x, w: replace(real(x, w), a=real(x, w).gate))
    rows = equality.compare_arms(SIZE, (4,), RULE, CPU, 0)
    assert [fault.split(":")[0] for fault in equality.equality_faults(rows)] == [
        "three at 4 tokens of random x",
        "three_side at 4 tokens of random x",
    ]
    control = next(r for r in rows if r.arm == CONTROL)
    assert not equality.control_repeats([replace(control, bits={"qkv": False})])
    assert equality.equality_faults([replace(control, error=float("nan"))]) != []


def test_every_kind_of_rows_is_compared() -> None:
    """Drawn and real x on the same weights, each with its own extent; records say which is which and that weights are drawn."""
    rows = equality.compare_arms(SIZE, (1, 6), RULE, CPU, 0, (DRAWN, REAL))
    assert [(r.x.label, r.tokens) for r in rows[:: len(ARMS)]] == [
        ("random", 1), ("random", 6), ("layer 15", 1), ("layer 15", 6)
    ]  # fmt: skip
    assert equality.equality_faults(rows) == [] == equality.missing_faults(rows, (DRAWN, REAL))
    assert rows[-1].extent.largest == float(REAL.states[:6].abs().max())
    record = rows[-1].record()
    assert (record["x"]["source"], record["x"]["layer"], record["weights"]) == ("smollm", 15, "random")
    assert record["x"]["largest"] == rows[-1].extent.largest and record["limit"] == 5e-3
    assert rows[0].record()["x"]["source"] == "random"


def test_rows_that_were_not_compared_are_named() -> None:
    """A kind of rows that is missing fails, as does one arm of it, and as does no comparison at all."""
    rows = equality.compare_arms(SIZE, (4,), RULE, CPU, 0)
    assert equality.missing_faults(rows, (DRAWN, REAL)) == [f"{arm} was not compared on layer 15 x" for arm in ARMS]
    assert equality.missing_faults(rows[1:], (DRAWN,)) == ["five was not compared on random x"]
    assert len(equality.missing_faults([], (DRAWN,))) == len(ARMS)


def test_the_worst_of_a_source_is_its_own() -> None:
    """Errors and extents of other sources do not count; a source without rows has none."""
    rows = equality.compare_arms(SIZE, (4,), RULE, CPU, 0, (DRAWN, REAL))
    rows = [replace(r, error=0.5) if r.x is REAL else r for r in rows]
    assert equality.worst_of(rows, "smollm") == (0.5, rows[-1].extent.peak)
    assert equality.worst_of(rows, "random")[0] < 5e-3
    assert all(value != value for value in equality.worst_of(rows, "gemma"))


def test_the_builders_laws_hold() -> None:
    """Shared memory, zero padding, one set of bytes, the low-rank form, dequantised weights."""
    assert equality.law_faults(SIZE, CPU, 0) == []


@pytest.mark.parametrize(
    ("broken", "words"),
    [("copies", "does not share the memory"), ("padding", "padding of the merged weight is not zero"),
     ("low rank", "low-rank gate: error"), ("scales", "dequantised weights are not rounded")],
)  # fmt: skip
def test_broken_laws_are_named(broken: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second copy, garbage in the padding, exchanged gates, scales left out."""
    real, low, plain = equality.draw, arms.low_rank, fp8.dequantise

    def drawn(*given: object) -> object:
        made = real(*given)
        if broken == "copies":
            return replace(made, bfa=replace(made.bfa, b=made.bfa.b.clone()))
        if broken == "padding":
            made.bfa.buffer[-1] = 1
        return made

    monkeypatch.setattr(equality, "draw", drawn)
    if broken == "low rank":
        monkeypatch.setattr(arms, "low_rank", lambda x, w: replace(low(x, w), gate=low(x, w).a))
    if broken == "scales":
        monkeypatch.setattr(fp8, "dequantise", lambda n, w, s, **k: plain(n, w, torch.ones_like(s), **k))
    found = equality.law_faults(splits(16, SMALL), CPU, 0)
    assert any(words in fault for fault in found)
