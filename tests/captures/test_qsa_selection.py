"""Block selection: the scores are the model's own attention mass, and the tokens follow the QSA rule."""

from __future__ import annotations

import pytest
import torch

from kda_lab.captures.qsa_selection import block_mass, effective_keys, folded_queries, selected_tokens

SCALE = 1 / 16


def tensors(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """q [n, 4, 16] and k [n, 16]."""
    generator = torch.Generator().manual_seed(seed)
    q = 4 * torch.randn(n, 4, 16, generator=generator)
    return q.bfloat16(), (4 * torch.randn(n, 16, generator=generator)).bfloat16()


def test_the_twelve_heads_are_three_positions_of_four_heads() -> None:
    """Head 4j+h is head h at position p-2+j."""
    q, _ = tensors(9)
    folded = folded_queries(q, 7)
    assert folded.shape == (12, 16)
    for j in range(3):
        for h in range(4):
            assert torch.equal(folded[4 * j + h], q[5 + j, h])


@pytest.mark.parametrize("n", [8, 9, 10, 11, 40])
def test_block_mass_is_the_causal_softmax_summed_by_hand(n: int) -> None:
    """Head by head and token by token, in FP64, each head up to its own position."""
    q, k = tensors(n)
    queries = folded_queries(q, n - 1)
    wanted = torch.zeros(n, dtype=torch.float64)
    for head in range(12):
        visible = n - 2 + head // 4
        scores = torch.tensor([float(queries[head].double() @ k[i].double()) * SCALE for i in range(visible)])
        wanted[:visible] += torch.softmax(scores.double(), 0)
    blocks = wanted[: n // 4 * 4].view(-1, 4).sum(1)
    torch.testing.assert_close(block_mass(queries, k, SCALE).double(), blocks, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [3, 4, 64, 2047, 2048, 2051])
def test_a_row_within_the_budget_attends_to_everything(n: int) -> None:
    """Up to 2051 tokens every block is selected and the tail is added."""
    q, k = tensors(n)
    assert torch.equal(selected_tokens(folded_queries(q, n - 1), k, SCALE), torch.arange(n))


@pytest.mark.parametrize(("n", "count"), [(2052, 2048), (2053, 2049), (2054, 2050), (2055, 2051), (3000, 2048)])
def test_a_longer_row_attends_to_512_blocks_and_the_tail(n: int, count: int) -> None:
    """The heaviest blocks, whole and ascending, and every token of the incomplete block."""
    q, k = tensors(n)
    queries = folded_queries(q, n - 1)
    tokens = selected_tokens(queries, k, SCALE)
    assert len(tokens) == count and bool((tokens[1:] > tokens[:-1]).all())
    assert tokens[2048:].tolist() == list(range(n // 4 * 4, n))
    blocks = tokens[:2048].view(512, 4)
    assert bool((blocks % 4 == torch.arange(4)).all())
    mass = block_mass(queries, k, SCALE)
    chosen = torch.zeros(n // 4, dtype=torch.bool)
    chosen[blocks[:, 0] // 4] = True
    assert mass[chosen].min() >= mass[~chosen].max()


def test_of_equal_blocks_the_earlier_wins() -> None:
    """Ties are decided the same way on every machine."""
    keys = torch.zeros(2100, 16).bfloat16()
    tokens = selected_tokens(torch.ones(12, 16).bfloat16(), keys, SCALE)
    # Heads at the two earlier positions do not see the last block whole, so that one is lighter, not tied.
    assert torch.equal(tokens[:2048], torch.arange(2048))


def test_effective_keys_count_what_carries_weight() -> None:
    """All keys alike give their number; one dominant key gives one; two equal ones give two."""
    queries = torch.ones(1, 16)
    keys = torch.zeros(100, 16)
    assert effective_keys(queries, keys, 1.0).item() == pytest.approx(100.0, rel=1e-4)
    keys[7] = 10.0
    assert effective_keys(queries, keys, 1.0).item() == pytest.approx(1.0, rel=1e-4)
    keys[50] = 10.0
    assert effective_keys(queries, keys, 1.0).item() == pytest.approx(2.0, rel=1e-4)
