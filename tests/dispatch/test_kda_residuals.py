"""Attention residuals in torch: a softmax by hand, what is written where, and no host read."""

from __future__ import annotations

import math

import pytest
import torch

from kda_lab import kda
from kda_lab.dispatch.kda_residuals import attn_residuals
from kda_lab.errors import ContractError

T, NB, D = 3, 4, 16
FLAGS = {"write_prefix": False, "add_delta": False}


def drawn() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(4)
    bank = torch.randn(T, NB, D, generator=draw).bfloat16()
    prefix, delta = torch.randn(2, T, D, generator=draw).bfloat16()
    weights = 1 + 0.1 * torch.randn(2, D, generator=draw)
    return [bank, prefix, delta, *weights]


def by_hand(rows: list[torch.Tensor], score_weight: torch.Tensor, out_weight: torch.Tensor) -> torch.Tensor:
    """One token's output in FP64, row by row."""
    rows = [row.double() for row in rows]
    scores = [(row * score_weight.double()).sum() / (row.square().mean() + 1e-6).sqrt() for row in rows]
    weights = [math.exp(score) for score in scores]
    mix = sum((w / sum(weights)) * row for w, row in zip(weights, rows, strict=True))
    return mix * out_weight.double() / (mix.square().mean() + 1e-6).sqrt()


@pytest.mark.parametrize("valid", [0, 1, 3, 4])
def test_it_mixes_the_valid_rows_and_the_stream(valid: int) -> None:
    """Snapshots behind the valid ones count for nothing, even NaN; without a snapshot it is the stream's norm."""
    bank, prefix, delta, score, weight = drawn()
    bank[:, valid:] = float("nan")
    before = [t.clone() for t in (bank, prefix)]
    out = attn_residuals(bank, prefix, delta, score, weight, valid=valid, **FLAGS)
    for t in range(T):
        wanted = by_hand([*bank[t, :valid], prefix[t]], score, weight)
        torch.testing.assert_close(out[t].double(), wanted, rtol=2**-8, atol=1e-5)
    assert all(
        torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in zip((bank, prefix), before, strict=True)
    )


def test_the_pending_add_comes_first_and_the_snapshot_is_the_streams_bits() -> None:
    """The stream becomes bf16(prefix + delta), is mixed as such, and goes to the next snapshot; others keep their bits."""
    bank, prefix, delta, score, weight = drawn()
    before, summed = bank.clone(), prefix + delta
    out = attn_residuals(bank, prefix, delta, score, weight, valid=2, write_prefix=True, add_delta=True)
    assert torch.equal(prefix, summed) and torch.equal(bank[:, 2], summed)
    assert torch.equal(bank[:, [0, 1, 3]], before[:, [0, 1, 3]])
    wanted = torch.stack([by_hand([*before[t, :2], summed[t]], score, weight) for t in range(T)])
    torch.testing.assert_close(out.double(), wanted, rtol=2**-8, atol=1e-5)


def test_nothing_is_read_on_the_host() -> None:
    """On tensors without data it runs to its end, and a given output is returned."""
    given = [t.to("meta") for t in drawn()]
    out = torch.empty_like(given[1])
    assert attn_residuals(*given, valid=2, write_prefix=True, add_delta=True, out=out) is out


@pytest.mark.parametrize("epsilon", [-1e-6, float("nan")])
def test_the_door_refuses_an_epsilon_below_zero(epsilon: float) -> None:
    """A root of a negative number would be a NaN that no one is told of."""
    with pytest.raises(ContractError, match=f"epsilon is {epsilon!r}"):
        kda.attn_residuals(*drawn(), valid=2, **FLAGS, epsilon=epsilon)
