"""Prefill in torch: ragged sequences against the recurrence in FP64, starts, empty sequences, no host read."""

from __future__ import annotations

import pytest
import torch

from kda_lab.dispatch.kda_prefill import chunk_prefill
from kda_lab.ops.kda.gate import log_decay
from kda_lab.ops.kda.geometry import query_head
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q, recurrent
from kda_lab.verify.metrics import rel_l2

HV, H, V, K, SLOTS = 4, 2, 6, 8, 6
ENDS = (0, 5, 5, 6, 11)
INDICES = (4, 1, 0, -1)
HAS_STATE = (True, True, False, True)
Tensors = dict[str, torch.Tensor]


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def packed(ends: tuple[int, ...] = ENDS) -> Tensors:
    """Sequences of five, no, one and five tokens: with a state, empty, from zero, and padding."""
    tokens, fp32 = ends[-1], torch.float32
    return {
        "q": drawn(tokens, H, K, seed=1),
        "k": drawn(tokens, H, K, seed=2),
        "v": drawn(tokens, HV, V, seed=3),
        "a": drawn(tokens, HV * K, seed=4),
        "beta": torch.sigmoid(drawn(tokens, HV, seed=5, dtype=fp32)),
        "a_log": 0.2 * drawn(HV, seed=6, dtype=fp32),
        "dt_bias": 0.1 * drawn(HV * K, seed=7, dtype=fp32),
        "cu_seqlens": torch.tensor(ends, dtype=torch.int32),
        "state": drawn(SLOTS, HV, V, K, seed=8, dtype=fp32),
        "state_indices": torch.tensor(INDICES, dtype=torch.int32),
        "has_state": torch.tensor(HAS_STATE),
    }


@pytest.mark.parametrize("lower_bound", [None, -5.0])
@pytest.mark.parametrize("flag", [torch.bool, torch.uint8])
def test_each_sequence_is_its_own_recurrence(lower_bound: float | None, flag: torch.dtype) -> None:
    """Sequences do not see each other; those with tokens leave their last state, and no other slot changes."""
    given = packed()
    given["has_state"] = given["has_state"].to(flag)
    before, state, at = given["state"].clone(), given["state"], query_head(HV, H)
    out = chunk_prefill(*given.values(), lower_bound=lower_bound)
    g = log_decay(*(given[n].double() for n in ("a", "a_log", "dt_bias")), lower_bound)
    q, k = normalise_q(given["q"].double())[:, at], normalise_k(given["k"].double())[:, at]
    for n, (slot, start) in enumerate(zip(INDICES, HAS_STATE, strict=True)):
        tokens = slice(ENDS[n], ENDS[n + 1])
        first = before[slot].double() if start else torch.zeros(HV, V, K, dtype=torch.float64)
        rows = [t[tokens] for t in (q, k, given["v"].double(), g, given["beta"].double())]
        wanted, last = recurrent(first, *rows)
        if slot < 0:
            assert out[tokens].eq(0).all()
            continue
        assert rel_l2(out[tokens], wanted) < 4e-3
        assert rel_l2(state[slot], last if wanted.numel() else before[slot]) < 1e-6
    assert all(torch.equal(state[slot], before[slot]) for slot in (1, 2, 3, 5))


def test_nothing_is_read_on_the_host() -> None:
    """On tensors without data it runs to its end."""
    given = [t.to("meta") for t in packed().values()]
    assert chunk_prefill(*given, lower_bound=None).shape == (11, HV, V)


def test_no_sequences_and_no_tokens_are_no_work() -> None:
    """Without sequences, or with empty ones alone, every slot keeps its bits."""
    for ends, count in (((0,), 0), ((0, 0, 0, 0, 0), 4)):
        given = packed(ends)
        given["state_indices"], given["has_state"] = given["state_indices"][:count], given["has_state"][:count]
        before = given["state"].clone()
        assert chunk_prefill(*given.values(), lower_bound=-5.0).shape == (0, HV, V)
        assert torch.equal(given["state"], before)
