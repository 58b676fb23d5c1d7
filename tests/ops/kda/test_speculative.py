"""Verification and fold in torch: the recurrence, its prefixes, and what must keep its bits, in FP64."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.kda import speculative as s
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q, recurrent

HEADS = s.Heads(2, 4, 6, 5)
B, T, SLOTS = 3, 7, 5


def draft(seed: int = 0) -> s.Draft:
    """Seven tokens of three requests, two value heads to a key head."""
    g = torch.Generator().manual_seed(seed)
    n = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    decay, strength = -5 * torch.sigmoid(n(B, T, 4, 6)), torch.sigmoid(n(B, T, 4))
    return s.Draft(n(B, T, 2, 6), n(B, T, 2, 6), n(B, T, 4, 5), decay, strength, n(B, T, 3, HEADS.width))


def ring_of(d: s.Draft) -> s.Tensors:
    """What the ring holds of a draft."""
    return {"ring_k": d.k, "ring_v": d.v, "ring_g": d.g, "ring_beta": d.beta}


STATE = torch.randn(SLOTS, 4, 5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
INDICES = torch.tensor([3, -1, 0], dtype=torch.int32)


def test_verification_is_the_recurrence() -> None:
    """Outputs and the last state are those of the token-by-token recurrence."""
    d = draft()
    start = s.states_of(STATE, INDICES)
    out, states = s.verified(d, start)
    for b in range(B):
        q, k = (s.to_value_heads(x[b], HEADS) for x in (normalise_q(d.q), normalise_k(d.k)))
        right, last = recurrent(start[b], q, k, d.v[b], d.g[b], d.beta[b])
        assert torch.allclose(out[b], right, atol=1e-13)
        assert torch.allclose(states[b, -1], last, atol=1e-13)


@pytest.mark.parametrize("n", range(T + 1))
def test_a_fold_is_the_snapshot(n: int) -> None:
    """The fold of n tokens is the snapshot after token n; with none the state stays; other slots keep their bits."""
    d = draft()
    snapshots = s.verified(d, s.states_of(STATE, INDICES))[1]
    folded = s.folded(ring_of(d), STATE, INDICES, torch.full((B,), n))
    for b, slot in ((0, 3), (2, 0)):
        right = snapshots[b, n - 1] if n else STATE[slot]
        assert torch.equal(folded[slot], right) if n == 0 else torch.allclose(folded[slot], right, atol=1e-13)
    for slot in (1, 2, 4):
        assert torch.equal(folded[slot], STATE[slot])


def test_what_was_not_accepted_does_not_matter() -> None:
    """NaN behind the accepted tokens and in a padding request reaches nothing."""
    ring, accepted = ring_of(draft()), torch.tensor([2, 7, 0])
    right = s.folded(ring, STATE, INDICES, accepted)
    for name, tensor in ring.items():
        ring[name] = tensor.clone()
        ring[name][0, 2:], ring[name][1], ring[name][2] = (float("nan"),) * 3
    assert torch.equal(s.folded(ring, STATE, INDICES, accepted), right)


def test_a_width_that_no_heads_have_is_refused() -> None:
    """What the values leave of a row must be whole query and key heads that divide the value heads."""
    assert s.heads_of(HEADS.width, STATE) == HEADS
    for width in (HEADS.width + 1, 20, 20 + 2 * 6 * 3):
        with pytest.raises(ParameterError, match=rf"mixed_qkv.shape\[-1\] is {width}; allowed: 2·H·6 \+ 4·5 with H"):
            s.heads_of(width, STATE)


def test_padding_is_zero_everywhere() -> None:
    """A request without a slot has no convolution, no gate and no output."""
    g = torch.Generator().manual_seed(2)
    n = lambda *shape: torch.randn(*shape, generator=g)  # noqa: E731
    inputs = {
        "mixed_qkv": n(B, T, HEADS.width).bfloat16(),
        "conv_state": n(SLOTS, 3, HEADS.width).bfloat16(),
        "conv_weight": n(4, HEADS.width),
        "a": n(B, T, 24).bfloat16(),
        "b": n(B, T, 4).bfloat16(),
        "a_log": n(4),
        "dt_bias": n(24),
        "state": STATE.float(),
        "state_indices": INDICES,
    }
    d = s.drafted(inputs, None, torch.float32)
    found = s.outputs_of(d, s.states_of(inputs["state"], INDICES))
    assert all(torch.count_nonzero(t[1]) == 0 and torch.isfinite(t).all() for t in found.values())
    assert torch.equal(d.windows[0, 0, 2], inputs["mixed_qkv"][0, 0])
    assert torch.equal(d.windows[0, 0, 0], inputs["conv_state"][3, 1])
