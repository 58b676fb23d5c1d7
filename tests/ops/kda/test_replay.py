"""A checkpoint and a ring are the recurrence, whatever their length and form, in FP64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.kda import replay
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q, recurrent
from kda_lab.ops.kda.replay import Memory, Modes, Token

HV, V, K, TOKENS = 2, 5, 6, 40
STALE = 1e4


def tokens(seed: int = 0) -> tuple[torch.Tensor, Token]:
    """A state and forty tokens [T, HV, ...]."""
    g = torch.Generator().manual_seed(seed)
    n = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    keys = (normalise_q(n(TOKENS, HV, K)), normalise_k(n(TOKENS, HV, K)), n(TOKENS, HV, V))
    gates = (-5 * torch.sigmoid(n(TOKENS, HV, K)), torch.sigmoid(n(TOKENS, HV)))
    return n(HV, V, K), Token(*keys, *gates)


def at(token: Token, t: int) -> Token:
    """One of the tokens."""
    return Token(token.q[t], token.k[t], token.v[t], token.g[t], token.beta[t])


def empty(state: torch.Tensor, length: int) -> Memory:
    """A checkpoint with a ring of stale places."""
    return Memory(state, *(torch.full((HV, length, n), STALE, dtype=torch.float64) for n in (V, K, K)), 0)


STATE, ALL = tokens()
RIGHT, LAST = recurrent(STATE, ALL.q, ALL.k, ALL.v, ALL.g, ALL.beta)


@pytest.mark.parametrize("length", range(1, 17))
@pytest.mark.parametrize("circular", [False, True], ids=["full", "circular"])
@pytest.mark.parametrize("predecayed", [False, True], ids=["raw", "predecayed"])
def test_it_is_the_recurrence(length: int, circular: bool, predecayed: bool) -> None:
    """Forty tokens with two forced flushes: every output and the last state."""
    memory = empty(STATE, length)
    for t in range(TOKENS):
        out, memory = replay.decode(memory, at(ALL, t), Modes(circular, predecayed, t in (7, 23)))
        assert torch.allclose(out, RIGHT[t], atol=1e-12), t
    assert torch.allclose(replay.present_state(memory, predecayed), LAST, atol=1e-12)


@settings(max_examples=25)
@given(length=st.integers(1, 6), forced=st.sets(st.integers(0, 11)), circular=st.booleans())
def test_flushes_may_be_forced_anywhere(length: int, forced: set[int], circular: bool) -> None:
    """Whatever is forced: the recurrence, and a position that stays inside of the ring."""
    memory = empty(STATE, length)
    for t in range(12):
        out, memory = replay.decode(memory, at(ALL, t), Modes(circular, False, t in forced))
        assert 0 <= memory.position < max(2, length)
        assert torch.allclose(out, RIGHT[t], atol=1e-12)


def test_the_two_conventions_of_a_flush() -> None:
    """Full: the state takes the token and the ring is empty. Circular: the state before it, the token in record 0."""
    memory = empty(STATE, 3)
    for t in range(2):
        _, memory = replay.decode(memory, at(ALL, t), Modes())
        assert torch.equal(memory.state, STATE)
    before, third = replay.present_state(memory), at(ALL, 2)
    _, full = replay.decode(memory, third, Modes())
    _, circular = replay.decode(memory, third, Modes(circular=True))
    _, forced = replay.decode(memory, third, Modes(circular=True, force_flush=True))
    assert (full.position, circular.position, forced.position) == (0, 1, 0)
    assert torch.equal(circular.state, before)
    assert torch.equal(circular.k[:, 0], third.k)
    assert torch.equal(circular.g[:, 0], third.g)
    assert torch.equal(full.state, forced.state)
    assert torch.equal(full.d, memory.d)


def test_other_places_keep_their_bits() -> None:
    """A record changes its own place only; the spare place never holds one."""
    memory = empty(STATE, 4)
    _, after = replay.decode(memory, at(ALL, 0), Modes())
    for name in ("d", "k", "g"):
        assert torch.equal(getattr(after, name)[:, 1:], getattr(memory, name)[:, 1:])
    for t in range(1, 9):
        _, after = replay.decode(after, at(ALL, t), Modes(circular=True))
    assert bool((after.k[:, 3] == STALE).all())


@pytest.mark.parametrize(
    ("length", "bound", "heads", "words"),
    [
        (1, -5.0, (2, 2), "L is 1; allowed: 2 to 16 with predecayed keys"),
        (17, -1.0, (2, 2), "L is 17; allowed: 2 to 16"),
        (16, None, (2, 2), "lower_bound is None; allowed"),
        (16, -5.34, (2, 2), r"lower_bound is -5\.34; allowed: \(L - 1\)·\|lower_bound\| of at most 80"),
        (16, -5.0, (1, 2), r"\(H, HV\) is \(1, 2\); allowed: equal"),
    ],
)
def test_predecayed_keys_are_refused_where_they_could_overflow(
    length: int, bound: float | None, heads: tuple[int, int], words: str
) -> None:
    """Each of the conditions by itself; K3's own values pass."""
    replay.require_predecay(16, -5.0, (12, 12))
    with pytest.raises(ParameterError, match=words):
        replay.require_predecay(length, bound, heads)
