"""Replay in torch: L tokens through the ring are L packed steps, under both flush rules, and padding stays out."""

from __future__ import annotations

import pytest
import torch

from kda_lab.dispatch.kda_decode import packed_decode
from kda_lab.dispatch.kda_replay import replay_decode
from kda_lab.ops.kda import replay as definition
from kda_lab.ops.kda.gate import log_decay
from kda_lab.ops.kda.geometry import query_head
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q
from kda_lab.verify.metrics import rel_l2

HV, V, K, SLOTS, LOWER = 4, 6, 8, 5, -1.0
INDICES = torch.tensor([3, -1, 0], dtype=torch.int32)
RIGHT = 1.5e-2
"""Records are kept in BF16, so a state of several records is that far from packed decode."""
Tensors = dict[str, torch.Tensor]


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def token(t: int, heads: int) -> Tensors:
    fp32 = torch.float32
    return {
        "mixed_qkv": drawn(3, 2 * heads * K + HV * V, seed=10 * t + 1),
        "a": drawn(3, HV * K, seed=10 * t + 2),
        "b": drawn(3, HV, seed=10 * t + 3),
        "a_log": 0.2 * drawn(HV, seed=4, dtype=fp32),
        "dt_bias": 0.1 * drawn(HV * K, seed=5, dtype=fp32),
    }


def memory(heads: int, places: int, predecayed: bool) -> Tensors:
    """An empty ring, its places poisoned, over a drawn state; slots lie apart."""
    poison = {"d": (HV, V, torch.bfloat16), "k": (heads, K, torch.bfloat16), "g": (HV, K, torch.float32)}
    if predecayed:
        poison["k"] = (HV, K, torch.float32)
    rings = {f"ring_{n}": torch.full((SLOTS, h, places, w), float("nan"), dtype=t) for n, (h, w, t) in poison.items()}
    state = drawn(SLOTS, 2, HV, V, K, seed=6, dtype=torch.float32)[:, 1]
    return {"state": state, **rings, "write_positions": torch.zeros(SLOTS, dtype=torch.int32)}


KEYS = [(False, 2), (False, 4), (True, 4)]
# A ring of one place keeps no key that could be decayed.
RINGS = [(places, *keys) for places in (1, 2, 3, 5) for keys in KEYS if places > 1 or not keys[0]]


@pytest.mark.parametrize(("places", "predecayed", "heads"), RINGS)
@pytest.mark.parametrize("circular", [False, True])
def test_tokens_through_the_ring_are_packed_steps(places: int, predecayed: bool, heads: int, circular: bool) -> None:
    """Seven tokens, the fifth with a forced flush: outputs as packed decode's, and equal states where the ring is empty."""
    mine, pool = memory(heads, places, predecayed), memory(heads, places, predecayed)["state"].clone()
    before = mine["state"].clone()
    flags = {"circular": circular, "predecayed": predecayed}
    for t in range(7):
        given, force = token(t, heads), t == 4
        count = int(mine["write_positions"][3])
        wanted = packed_decode(*given.values(), pool, INDICES, lower_bound=LOWER)
        found = replay_decode(*given.values(), *mine.values(), INDICES, lower_bound=LOWER, **flags, force_flush=force)
        assert rel_l2(found[[0, 2]], wanted[[0, 2]]) < RIGHT
        assert found[1].eq(0).all()
        full = count >= places - 1
        kept = 1 if full and circular and not force and places > 1 else 0 if full or force else count + 1
        mine["write_positions"].fill_(kept)
        if kept == 0:
            assert rel_l2(mine["state"][[3, 0]], pool[[3, 0]]) < (RIGHT if places > 1 else 1e-12)
    assert all(torch.equal(mine["state"][slot], before[slot]) for slot in (1, 2, 4))
    assert all(mine[n][[1, 2, 4]].isnan().all() for n in ("ring_d", "ring_k", "ring_g"))


@pytest.mark.parametrize("predecayed", [False, True])
@pytest.mark.parametrize(
    ("count", "circular", "force"),
    [(0, False, False), (2, True, False), (3, True, False), (3, False, False), (2, True, True)],
)
def test_one_step_is_the_definition(predecayed: bool, count: int, circular: bool, force: bool) -> None:
    """State and every place of the ring agree with the definition in FP64; places without a record keep their poison."""
    heads, places = 4, 4
    mine, given = memory(heads, places, predecayed), token(1, heads)
    for name in ("ring_d", "ring_k", "ring_g"):
        part = drawn(*mine[name][:, :, :count].shape, seed=len(name) + ord(name[-1]), dtype=mine[name].dtype)
        mine[name][:, :, :count] = -part.abs() if name == "ring_g" else part
    if predecayed:
        mine["ring_g"][:, :, :count] = mine["ring_g"][:, :, :count].cumsum(2)
    mine["write_positions"].fill_(count)
    held = [mine[n][3].double() for n in ("state", "ring_d", "ring_k", "ring_g")]
    q, k, v = given["mixed_qkv"][0].double().split((heads * K, heads * K, HV * V))
    at = query_head(HV, heads)
    g = log_decay(*(given[n].double() for n in ("a", "a_log", "dt_bias")), LOWER)[0]
    row = definition.Token(
        normalise_q(q.view(heads, K))[at],
        normalise_k(k.view(heads, K))[at],
        v.view(HV, V),
        g,
        torch.sigmoid(given["b"][0].double()),
    )
    modes = definition.Modes(circular, predecayed, force)
    wanted, kept = definition.decode(definition.Memory(*held, count), row, modes)
    flags = {"circular": circular, "predecayed": predecayed, "force_flush": force}
    out = replay_decode(*given.values(), *mine.values(), INDICES, lower_bound=LOWER, **flags)
    assert rel_l2(out[0, 0], wanted) < 4e-3
    for name, right in (("state", kept.state), ("ring_d", kept.d), ("ring_k", kept.k), ("ring_g", kept.g)):
        found = mine[name][3].double()
        assert torch.equal(found.isnan(), right.isnan())
        assert rel_l2(found.nan_to_num(), right.nan_to_num()) < (4e-3 if mine[name].dtype == torch.bfloat16 else 2e-6)


def test_nothing_is_read_on_the_host() -> None:
    """On tensors without data it runs to its end, whatever the flags."""
    for flags in ({"circular": True}, {"force_flush": True}, {"predecayed": True}):
        mine = memory(4, 3, "predecayed" in flags)
        given = [t.to("meta") for t in (*token(0, 4).values(), *mine.values(), INDICES)]
        assert replay_decode(*given, lower_bound=LOWER, **flags).shape == (3, 1, HV, V)
