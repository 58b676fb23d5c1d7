"""The recurrence against other forms of it: the paper's orientation, one gate a head, one token at a time."""

from __future__ import annotations

import pytest
import torch

from kda_lab.ops.kda.gate import beta, log_decay
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q, recurrent, step

T, HV, V, K = 7, 3, 5, 8
Tensors = tuple[torch.Tensor, ...]


def drawn(bound: float | None = -5.0, tokens: int = T) -> tuple[torch.Tensor, Tensors]:
    """A state [HV, V, K] and (q, k, v, g, beta) of `tokens` tokens, FP64; K is not V."""
    random = torch.Generator().manual_seed(tokens)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    q, k, v = normalise_q(normal(tokens, HV, K)), normalise_k(normal(tokens, HV, K)), normal(tokens, HV, V)
    g = log_decay(normal(tokens, HV * K) - 1, normal(HV), normal(HV * K), bound)
    return normal(HV, V, K), (q, k, v, g, beta(normal(tokens, HV)))


@pytest.mark.parametrize("bound", [None, -5.0])
def test_the_papers_orientation_is_the_same(bound: float | None) -> None:
    """S [K, V] <- (I - beta k kT) Diag(exp g) S + beta k vT, o = ST q: equal to FP64's last bits."""
    state, tokens = drawn(bound)
    out, end = recurrent(state, *tokens)
    other = state.transpose(-1, -2)
    identity = torch.eye(K, dtype=torch.float64)
    for t, (q, k, v, g, b) in enumerate(zip(*tokens, strict=True)):
        keep = identity - b[:, None, None] * k[:, :, None] * k[:, None, :]
        other = keep @ (g.exp()[:, :, None] * other) + b[:, None, None] * k[:, :, None] * v[:, None, :]
        assert torch.allclose(out[t], (other.transpose(-1, -2) @ q[:, :, None])[..., 0], atol=1e-14, rtol=0)
    assert torch.allclose(end, other.transpose(-1, -2), atol=1e-14, rtol=0)


def test_one_gate_a_head_is_the_gated_delta_rule() -> None:
    """With g broadcast over K it is the scalar-gated recurrence: a g of one channel gives the same bits."""
    state, (q, k, v, g, b) = drawn()
    single = g[..., :1]
    wide = recurrent(state, q, k, v, single.expand_as(g), b)
    narrow = recurrent(state, q, k, v, single, b)
    assert all(torch.equal(x, y) for x, y in zip(wide, narrow, strict=True))
    gdn = state
    for t in range(T):
        gdn = gdn * single[t, :, 0].exp()[:, None, None]
        delta = b[t][:, None] * (v[t] - torch.einsum("hvk,hk->hv", gdn, k[t]))
        gdn = gdn + torch.einsum("hv,hk->hvk", delta, k[t])
        assert torch.allclose(torch.einsum("hvk,hk->hv", gdn, q[t]), wide[0][t], atol=1e-14, rtol=0)


def test_tokens_in_two_parts_are_tokens_in_one() -> None:
    """The state carries everything: bits are equal wherever the sequence is cut."""
    state, tokens = drawn()
    out, end = recurrent(state, *tokens)
    first, middle = recurrent(state, *(x[:3] for x in tokens))
    second, last = recurrent(middle, *(x[3:] for x in tokens))
    assert torch.equal(torch.cat([first, second]), out)
    assert torch.equal(last, end)


def test_no_tokens_leave_the_state() -> None:
    """An empty sequence has no outputs and keeps the very bits."""
    state, tokens = drawn()
    out, end = recurrent(state, *(x[:0] for x in tokens))
    assert out.shape == (0, HV, V)
    assert torch.equal(end, state)


def test_a_full_write_replaces_what_the_key_held() -> None:
    """beta = 1 without decay: reading with the same unit key gives v, in this read and not in the next."""
    state, (_, k, v, g, _) = drawn()
    unit = k[0] / k[0].norm(dim=-1, keepdim=True)
    out, end = step(state, unit, unit, v[0], torch.zeros_like(g[0]), torch.ones(HV, dtype=torch.float64))
    assert torch.allclose(out, v[0], atol=1e-14, rtol=0)
    assert torch.allclose((end * unit[:, None]).sum(-1), v[0], atol=1e-14, rtol=0)
    assert not torch.allclose((state * unit[:, None]).sum(-1), v[0], atol=1e-3, rtol=0)


def test_arguments_stay() -> None:
    """Nothing is written in place."""
    state, tokens = drawn()
    before = [x.clone() for x in (state, *tokens)]
    recurrent(state, *tokens)
    assert all(torch.equal(x, y) for x, y in zip((state, *tokens), before, strict=True))


def test_epsilon_is_inside_the_root() -> None:
    """A tiny row is damped as x / sqrt(sum + 1e-6), a zero row stays zero; queries carry 1/sqrt(K) or a given scale."""
    tiny = torch.full((1, 4), 5e-4, dtype=torch.float64)
    assert torch.allclose(normalise_k(tiny), tiny / (2e-6) ** 0.5, atol=1e-15, rtol=0)
    assert torch.count_nonzero(normalise_k(torch.zeros(2, 4))) == 0
    assert torch.allclose(normalise_q(tiny), normalise_k(tiny) * 0.5, atol=1e-15, rtol=0)
    assert torch.equal(normalise_q(tiny, 3.0), normalise_k(tiny) * 3.0)
