"""The chunked form is the recurrence, for any length and gate, and stays finite where a plain factoring overflows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.kda import chunked
from kda_lab.ops.kda.gate import log_decay
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q, recurrent

HV, K, V = 2, 12, 5


def drawn(count: int, seed: int, gate: str = "safe") -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """A state and `count` tokens in FP64; `steep` decays are those of A_log ~ N(1.5, 0.5)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    a_log = 0.5 * normal(HV) + 1.5 if gate == "steep" else 0.2 * normal(HV)
    g = log_decay(normal(count, HV * K) - 1, a_log, normal(HV * K), -5.0 if gate == "safe" else None)
    q, k, v = normalise_q(normal(count, HV, K)), normalise_k(normal(count, HV, K)), normal(count, HV, V)
    return normal(HV, V, K), (q, k, v, g, torch.sigmoid(normal(count, HV)))


@settings(max_examples=10)
@given(
    count=st.integers(0, 150),
    gate=st.sampled_from(["safe", "softplus", "steep"]),
    chunk=st.sampled_from([1, 16, 32, 64]),
    seed=st.integers(0, 99),
)
def test_chunks_equal_the_recurrence(count: int, gate: str, chunk: int, seed: int) -> None:
    """Ragged lengths, both gates, any chunk: outputs and state to FP64 rounding."""
    state, tokens = drawn(count, seed, gate)
    out, last = chunked.chunked(state, tokens, chunk=chunk)
    right, right_last = recurrent(state, *tokens)
    assert torch.allclose(out, right, rtol=0, atol=1e-12)
    assert torch.allclose(last, right_last, rtol=0, atol=1e-12)


@pytest.mark.parametrize("decay", [-5.0, -60.0, -1e4, 0.0])
def test_it_is_finite_and_right_in_fp32_at_any_decay(decay: float) -> None:
    """exp(-G) would be inf from 18 tokens at -5 on; here FP32 and BF16 operands stay finite and close."""
    state, (q, k, v, g, beta) = drawn(130, 3)
    tokens = (q, k, v, torch.full_like(g, decay), beta)
    right, right_last = recurrent(state, *tokens)
    narrow = tuple(x.float() for x in tokens)
    for operand, limit in ((None, 1e-5), (torch.bfloat16, 1e-2)):
        out, last = chunked.chunked(state.float(), narrow, operand=operand)
        assert torch.isfinite(out).all()
        assert torch.isfinite(last).all()
        assert float((out - right).norm() / right.norm()) < limit
        assert float((last - right_last).norm()) <= limit * max(1.0, float(right_last.norm()))


def test_repeated_keys_do_not_blow_up() -> None:
    """One key, no decay, strength 1: a power series of the 64x64 matrix would cancel from 1e18; the doubling does not."""
    state, (q, k, v, g, beta) = drawn(64, 5)
    tokens = (q, k[:1].expand_as(k), v, torch.zeros_like(g), torch.ones_like(beta))
    out, _ = chunked.chunked(state.float(), tuple(x.float() for x in tokens))
    right, _ = recurrent(state, *tokens)
    assert float((out - right).norm() / right.norm()) < 1e-5


def test_scores_are_the_definition() -> None:
    """sum_c x_ic k_jc exp(G_ic - G_jc) below the diagonal, element by element, and zero elsewhere."""
    _, (q, k, _, g, _) = drawn(16, 1)
    q, k, total = q.transpose(0, 1), k.transpose(0, 1), g.cumsum(0).transpose(0, 1)
    found = chunked.scores(q, k, total, lambda x: x)
    for i in range(16):
        for j in range(16):
            wanted = (q[:, i] * k[:, j] * (total[:, i] - total[:, j]).exp()).sum(-1) if i > j else torch.zeros(HV)
            assert torch.allclose(found[:, i, j], wanted.double(), atol=1e-14)


def test_the_halves_cover_the_lower_triangle_once() -> None:
    """Every pair of a later and an earlier token belongs to exactly one level."""
    levels = torch.stack([chunked.halves(64, half) for half in (32, 16, 8, 4, 2, 1)])
    assert torch.equal(levels.sum(0), torch.ones(64, 64, dtype=torch.int64).tril(-1))


def test_the_inverse_is_one() -> None:
    """(I + L) times its inverse is I, with two leading axes."""
    lower = torch.randn(3, 2, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).tril(-1) * 0.3
    eye = torch.eye(32, dtype=torch.float64)
    assert torch.allclose((eye + lower) @ chunked.unit_inverse(lower, lambda x: x), eye.expand(3, 2, 32, 32), atol=1e-9)


@pytest.mark.parametrize("chunk", [0, 48, -64])
def test_chunks_of_other_lengths_are_refused(chunk: int) -> None:
    """Halving needs a power of two."""
    state, tokens = drawn(3, 0)
    with pytest.raises(ParameterError, match=rf"kda: chunk is {chunk}; allowed: a power of two"):
        chunked.chunked(state, tokens, chunk=chunk)
