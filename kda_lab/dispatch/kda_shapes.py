"""What the ops of Kimi Delta Attention demand of a call beyond what a contract can say.

Products of axes, extents that nothing may lack, the gate's bound. No reason is given where a tensor has another rank or
is no tensor: that is a contract's to refuse. Nothing but the facts of a call is looked at, never the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kda_lab.contracts.facts import CallFacts, TensorFacts
from kda_lab.contracts.predicate import show
from kda_lab.errors import Reason
from kda_lab.ops.kda_attn_residuals.spec import SPEC as ATTN_RESIDUALS
from kda_lab.ops.kda_chunk_prefill.spec import SPEC as CHUNK_PREFILL
from kda_lab.ops.kda_fold.spec import SPEC as FOLD
from kda_lab.ops.kda_fused_decode.spec import SPEC as FUSED_DECODE
from kda_lab.ops.kda_packed_decode.spec import SPEC as PACKED_DECODE
from kda_lab.ops.kda_replay_decode.spec import SPEC as REPLAY_DECODE
from kda_lab.ops.kda_verify_ring.spec import SPEC as VERIFY_RING
from kda_lab.ops.kda_verify_snapshots.spec import SPEC as VERIFY_SNAPSHOTS
from kda_lab.ops.protocol import OpSpec

LOWER_BOUND = -5.0
PREDECAYED_RING = (2, 16)
"""Least and most places of a ring with pre-decayed keys."""
PREDECAYED_EXPONENT = 80.0
"""Most that the decay of a ring may add up to: e to its power is still far from FP32's largest value."""

_DECODE = (PACKED_DECODE, FUSED_DECODE, VERIFY_SNAPSHOTS, VERIFY_RING, FOLD, REPLAY_DECODE)
SPECS: tuple[OpSpec, ...] = (*_DECODE, CHUNK_PREFILL, ATTN_RESIDUALS)
"""Every op of the family."""
Given = Mapping[str, Any]
"""Facts of a call's tensors, and its scalars, by name; None for what was not given."""


def demands(spec: OpSpec, facts: CallFacts) -> tuple[Reason, ...]:
    """What an op of `SPECS` has against the shapes and scalars of a call; empty when nothing."""
    absent = dict.fromkeys((*spec.tensors, *spec.scalars, *spec.outputs))
    given = {**absent, **facts.tensors, **facts.scalars}
    judges = (_extents(spec.name, given), *(judge(given) for judge in _JUDGES[spec.name]))
    return tuple(reason for judged in judges for reason in judged)


def _shape(tensor: TensorFacts | None, rank: int) -> tuple[int, ...] | None:
    """The shape of a tensor of this rank; None for anything else."""
    return tensor.shape if tensor is not None and len(tensor.shape) == rank else None


def _pool(given: Given, rank: int = 4) -> tuple[int, ...] | None:
    """The shape of state where it can be divided by: of this rank, and HV, V and K are 1 or more."""
    shape = _shape(given["state"], rank)
    return shape if shape is not None and 0 not in shape[-3:] else None


def _extents(op: str, given: Given) -> Iterator[Reason]:
    """Axes without which there is nothing to compute, or a division by zero."""
    for name, rank, axes in _AT_LEAST_ONE[op]:
        shape = _shape(given.get(name), rank) or (1,) * rank
        yield from (Reason(f"{name}.shape[{axis}]", "0", "1 or more") for axis in axes if not shape[axis])


def _exact(tensor: str, axis: int, given: int, wanted: int, why: str) -> Iterator[Reason]:
    if given != wanted:
        yield Reason(f"{tensor}.shape[{axis}]", repr(given), f"{wanted}, which is {why}")


def _bound(lower_bound: Any) -> Iterator[Reason]:
    # The type first: comparing a tensor would read the device. Another type is a contract's to refuse.
    if type(lower_bound) in (int, float) and not LOWER_BOUND <= lower_bound < 0:
        remedy = "None takes the softplus gate."
        yield Reason("lower_bound", show(lower_bound), f"None, or a float >= {LOWER_BOUND:g} and below 0", remedy)


def _grouped(tensor: str, axis: int, heads: int, value_heads: int) -> Iterator[Reason]:
    if heads < 1 or value_heads % heads:
        yield Reason(
            f"{tensor}.shape[{axis}]", f"{heads} heads", f"a divisor of HV={value_heads}, the value heads of state"
        )


def _mixed(width: int, axis: int, state: tuple[int, ...]) -> Iterator[Reason]:
    HV, V, K = state
    rest = width - HV * V
    if rest < 2 * K or rest % (2 * K):
        allowed = f"2·H·K + HV·V with HV={HV}, V={V}, K={K} of state and H of 1 or more"
        yield Reason(f"mixed_qkv.shape[{axis}]", repr(width), allowed)
    else:
        yield from _grouped("mixed_qkv", axis, rest // (2 * K), HV)


def _decode(given: Given, tokens: bool = False) -> Iterator[Reason]:
    """Widths of mixed_qkv and a against the state's heads, and the bound; with `tokens` they have an axis of tokens."""
    yield from _bound(given["lower_bound"])
    pool, axis = _pool(given), 1 + tokens
    mixed, raw = _shape(given["mixed_qkv"], axis + 1), _shape(given["a"], axis + 1)
    if pool is not None and mixed is not None:
        yield from _mixed(mixed[axis], axis, pool[1:])
    if pool is not None and raw is not None:
        yield from _exact("a", axis, raw[axis], pool[1] * pool[3], "HV·K of state")


def _verify(given: Given) -> Iterator[Reason]:
    return _decode(given, tokens=True)


def _fused(given: Given) -> Iterator[Reason]:
    """As many key as value heads of one width, three segments of it, and the bound."""
    yield from _bound(given["lower_bound"])
    pool = _pool(given)
    if pool is None:
        return
    _, HV, V, K = pool
    yield from _exact("state", 3, K, V, "V: the convolution runs over three segments of one width")
    for name, wanted, why in (
        ("mixed_qkv", 3 * HV * V, "3·HV·V of state"),
        ("a", HV * K, "HV·K of state"),
        ("gate", HV * V, "HV·V of state"),
    ):
        shape = _shape(given[name], 2)
        if shape is not None:
            yield from _exact(name, 1, shape[1], wanted, why)


def _ring(given: Given) -> Iterator[Reason]:
    """The heads that mixed_qkv leaves for a given ring of keys."""
    mixed, pool, ring = _shape(given["mixed_qkv"], 3), _pool(given), _shape(given["ring_k"], 4)
    if mixed is not None and pool is not None and ring is not None:
        heads = (mixed[2] - pool[1] * pool[2]) // (2 * pool[3])
        yield from _exact("ring_k", 2, ring[2], heads, "H, the key heads of mixed_qkv")


def _fold(given: Given) -> Iterator[Reason]:
    ring, pool = _shape(given["ring_k"], 5), _pool(given, 5)
    if ring is not None and pool is not None:
        yield from _grouped("ring_k", 3, ring[3], pool[2])


def _prefill(given: Given) -> Iterator[Reason]:
    """Query heads that divide the value heads, the width of a, and the bound."""
    yield from _bound(given["lower_bound"])
    queries, raw, pool = _shape(given["q"], 3), _shape(given["a"], 2), _pool(given)
    if pool is not None and queries is not None:
        yield from _grouped("q", 1, queries[1], pool[1])
    if pool is not None and raw is not None:
        yield from _exact("a", 1, raw[1], pool[1] * pool[3], "HV·K of state")


def _replay(given: Given) -> Iterator[Reason]:
    """The heads of ring_k, and what keeps pre-decayed keys finite."""
    mixed, pool, ring = _shape(given["mixed_qkv"], 2), _pool(given), _shape(given["ring_k"], 4)
    if mixed is None or pool is None or ring is None:
        return
    heads, HV = (mixed[1] - pool[1] * pool[2]) // (2 * pool[3]), pool[1]
    if given["predecayed"] is not True:
        yield from _exact("ring_k", 1, ring[1], heads, "H, the key heads of mixed_qkv")
        return
    yield from _exact("ring_k", 1, ring[1], HV, "HV: every value head decays its own key")
    if heads != HV:
        yield Reason("predecayed", "True", f"False, since H={heads} is not HV={HV}")
    least, most = PREDECAYED_RING
    if not least <= ring[2] <= most:
        yield Reason("ring_k.shape[2]", repr(ring[2]), f"{least} to {most} places, with pre-decayed keys")
    yield from _exponent(ring[2], given["lower_bound"])


def _exponent(places: int, lower_bound: Any) -> Iterator[Reason]:
    if lower_bound is None:
        yield Reason("lower_bound", "None", "a float, with pre-decayed keys: without it they have no bound")
    elif type(lower_bound) in (int, float) and (places - 1) * abs(lower_bound) > PREDECAYED_EXPONENT:
        allowed = f"at most {PREDECAYED_EXPONENT:g} in (L - 1)·|lower_bound|, with L={places} places"
        yield Reason("lower_bound", show(lower_bound), allowed)


def _residuals(given: Given) -> Iterator[Reason]:
    """The snapshots in use fit in the bank, with one more where the stream is written."""
    bank, valid, write_prefix = _shape(given["bank"], 3), given["valid"], given["write_prefix"]
    if bank is None or type(valid) is not int or type(write_prefix) is not bool:
        return
    most = bank[1] - write_prefix
    if valid > most:
        room = " and one to write" if write_prefix else ""
        yield Reason("valid", repr(valid), f"at most {most}: bank has {bank[1]} snapshots{room}")


_JUDGES: dict[str, tuple[Callable[[Given], Iterator[Reason]], ...]] = {
    "kda.packed_decode": (_decode,),
    "kda.fused_decode": (_fused,),
    "kda.verify_snapshots": (_verify,),
    "kda.verify_ring": (_verify, _ring),
    "kda.fold": (_fold,),
    "kda.replay_decode": (_decode, _replay),
    "kda.chunk_prefill": (_prefill,),
    "kda.attn_residuals": (_residuals,),
}
_SLOTS = ("state", 4, (0, 1, 2, 3))
_AT_LEAST_ONE: dict[str, tuple[tuple[str, int, tuple[int, ...]], ...]] = {
    "kda.packed_decode": (_SLOTS,),
    "kda.fused_decode": (_SLOTS,),
    "kda.verify_snapshots": (_SLOTS,),
    "kda.verify_ring": (_SLOTS,),
    "kda.fold": (("state", 5, (1, 2, 3, 4)),),
    "kda.replay_decode": (_SLOTS, ("ring_k", 4, (2,))),
    "kda.chunk_prefill": (_SLOTS,),
    "kda.attn_residuals": (("bank", 3, (2,)),),
}
"""Tensor, its rank, and the axes of it that are 1 or more; requests, tokens, layers and snapshots may be none."""
