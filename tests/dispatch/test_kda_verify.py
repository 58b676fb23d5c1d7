"""Verification in torch: snapshots are the recurrence, the ring folds to the same states, pools stay as they are."""

from __future__ import annotations

import pytest
import torch

from kda_lab.dispatch.kda_verify import fold, verify_ring, verify_snapshots
from kda_lab.ops.kda.convolution import convolve
from kda_lab.ops.kda.gate import log_decay
from kda_lab.ops.kda.geometry import query_head
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q, recurrent
from kda_lab.verify.metrics import rel_l2

HV, H, V, K, T, SLOTS = 4, 2, 6, 8, 3, 5
C = 2 * H * K + HV * V
INDICES = torch.tensor([3, -1, 0], dtype=torch.int32)
Tensors = dict[str, torch.Tensor]


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def draft() -> Tensors:
    """Three requests of three tokens, the middle one padding."""
    fp32 = torch.float32
    return {
        "mixed_qkv": drawn(3, T, C, seed=1),
        "conv_state": drawn(SLOTS, 3, C, seed=2),
        "conv_weight": (0.5 * drawn(4, C, seed=3)),
        "a": drawn(3, T, HV * K, seed=4),
        "b": drawn(3, T, HV, seed=5),
        "a_log": 0.2 * drawn(HV, seed=6, dtype=fp32),
        "dt_bias": 0.1 * drawn(HV * K, seed=7, dtype=fp32),
        "state": drawn(SLOTS, 2, HV, V, K, seed=8, dtype=fp32)[:, 0],
        "state_indices": INDICES,
    }


def exact(given: Tensors, row: int, count: int, lower_bound: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs [count, HV, V] and the state behind the first `count` tokens of a request, in FP64."""
    slot = int(given["state_indices"][row])
    window = given["conv_state"][slot].float()
    mixed = convolve(given["mixed_qkv"][row].float(), given["conv_weight"].float(), window)[0].bfloat16().double()
    q, k, v = mixed[:count].split((H * K, H * K, HV * V), 1)
    q, k = (t.view(count, H, K)[:, query_head(HV, H)] for t in (q, k))
    parts = [given["a"][row, :count], given["a_log"], given["dt_bias"]]
    g, beta = log_decay(*(p.double() for p in parts), lower_bound), torch.sigmoid(given["b"][row, :count].double())
    state = given["state"][slot].double()
    return recurrent(state, normalise_q(q), normalise_k(k), v.view(count, HV, V), g, beta)


@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_snapshots_are_the_recurrence(lower_bound: float | None) -> None:
    """Every output and state agrees with FP64, every window is the last three raw rows; the pools keep their bits."""
    given = draft()
    before = {n: given[n].clone() for n in ("state", "conv_state")}
    out, windows, snapshots = verify_snapshots(*given.values(), lower_bound=lower_bound)
    for row, slot in ((0, 3), (2, 0)):
        for t in range(T):
            outputs, state = exact(given, row, t + 1, lower_bound)
            assert rel_l2(out[row, t], outputs[t]) < 4e-3
            assert rel_l2(snapshots[row, t], state) < 1e-6
            history = torch.cat([given["conv_state"][slot], given["mixed_qkv"][row]])
            assert torch.equal(windows[row, t], history[t + 1 : t + 4])
    assert all(part[1].eq(0).all() for part in (out, windows, snapshots))
    assert all(torch.equal(given[n], kept) for n, kept in before.items())


def test_the_ring_gives_the_same_outputs_and_zeros_for_padding() -> None:
    """Outputs and windows have the bits of the snapshots; rows of padding are zero in every ring."""
    given = draft()
    out, windows, *rings = verify_ring(*given.values(), lower_bound=-5.0)
    other = verify_snapshots(*given.values(), lower_bound=-5.0)
    assert torch.equal(out, other[0]) and torch.equal(windows, other[1])
    assert [tuple(r.shape) for r in rings] == [(3, T, H, K), (3, T, HV, V), (3, T, HV, K), (3, T, HV)]
    assert [r.dtype for r in rings] == [torch.bfloat16] * 2 + [torch.float32] * 2
    assert all(r[1].eq(0).all() and r[0].ne(0).any() for r in rings)


@pytest.mark.parametrize("accepted", [[0, 2, 3], [1, 0, 2], [3, 3, 0]])
def test_a_fold_is_the_snapshot_of_what_was_accepted(accepted: list[int]) -> None:
    """State n of the snapshots, bit for bit here; nothing accepted, padding and other slots keep their bits."""
    given, lower_bound = draft(), None
    *_, snapshots = verify_snapshots(*given.values(), lower_bound=lower_bound)
    rings = verify_ring(*given.values(), lower_bound=lower_bound)[2:]
    pools = torch.stack([given["state"], 2 * given["state"]])
    before = pools.clone()
    count = torch.tensor(accepted, dtype=torch.int32)
    assert fold(*(torch.stack([r, r]) for r in rings), pools, INDICES, count) is pools
    for row, slot in ((0, 3), (2, 0)):
        wanted = snapshots[row, accepted[row] - 1] if accepted[row] else before[0, slot]
        assert torch.equal(pools[0, slot], wanted)
        assert bool(accepted[row]) == (not torch.equal(pools[1, slot], before[1, slot]))
    assert torch.equal(pools[:, [1, 2, 4]], before[:, [1, 2, 4]])


def test_nothing_is_read_on_the_host() -> None:
    """On tensors without data all three run to their end."""
    given = [t.to("meta") for t in draft().values()]
    rings = verify_ring(*given, lower_bound=None)[2:]
    assert verify_snapshots(*given, lower_bound=None)[2].shape == (3, T, HV, V, K)
    pools, named = given[-2][None], given[-1]
    assert fold(*(r[None] for r in rings), pools, named, named).shape == (1, SLOTS, HV, V, K)


def test_given_outputs_are_written_and_returned() -> None:
    """Nothing is allocated in their place."""
    given = draft()
    first = verify_ring(*given.values(), lower_bound=-1.0)
    outputs = {
        n: torch.empty_like(t)
        for n, t in zip(("out", "windows", "ring_k", "ring_v", "ring_g", "ring_beta"), first, strict=True)
    }
    again = verify_ring(*given.values(), lower_bound=-1.0, **outputs)
    assert all(a is o and torch.equal(a, f) for a, o, f in zip(again, outputs.values(), first, strict=True))
