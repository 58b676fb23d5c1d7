"""What KDA's ops demand beyond a contract: each wrong width, head count, bound and ring, by field and words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kda_lab.contracts.facts import CallFacts, call_facts
from kda_lab.dispatch.kda_shapes import SPECS
from kda_lab.dispatch.rules import RULES
from kda_lab.errors import Reason

BY_NAME = {spec.name.removeprefix("kda."): spec for spec in SPECS}

NESTED = torch.nested.nested_tensor([torch.zeros(3), torch.zeros(2)], layout=torch.jagged)
HV, H, V, K, L = 4, 2, 6, 8, 4
C = 2 * H * K + HV * V


def empty(*shape: int) -> torch.Tensor:
    """Shapes alone matter; a tensor without data shows that no value is read."""
    return torch.empty(shape, device="meta")


def strided(shape: tuple[int, ...], *strides: int) -> torch.Tensor:
    """As `empty`, with these strides."""
    return torch.empty_strided(shape, strides, device="meta")


def decode(**changes: Any) -> dict[str, Any]:
    given = {"mixed_qkv": empty(3, C), "a": empty(3, HV * K), "state": empty(5, HV, V, K), "lower_bound": -5.0}
    return given | changes


def verify(**changes: Any) -> dict[str, Any]:
    given = {"mixed_qkv": empty(3, 2, C), "a": empty(3, 2, HV * K), "ring_k": None}
    return decode() | given | changes


def fused(**changes: Any) -> dict[str, Any]:
    given = {"mixed_qkv": empty(3, 3 * HV * K), "gate": empty(3, HV * K), "state": empty(5, HV, K, K)}
    return decode() | given | changes


def fold(**changes: Any) -> dict[str, Any]:
    return {"ring_k": empty(2, 3, 4, H, K), "state": empty(2, 5, HV, V, K)} | changes


def replay(**changes: Any) -> dict[str, Any]:
    return decode(ring_k=empty(5, H, L, K), predecayed=False) | changes


def predecayed(**changes: Any) -> dict[str, Any]:
    own = {"mixed_qkv": empty(3, 2 * HV * K + HV * V), "ring_k": empty(5, HV, L, K), "predecayed": True}
    return replay() | own | changes


def prefill(**changes: Any) -> dict[str, Any]:
    given = {"q": empty(9, H, K), "a": empty(9, HV * K), "state": empty(5, HV, V, K), "lower_bound": None}
    return given | changes


def residuals(**changes: Any) -> dict[str, Any]:
    return {"bank": empty(3, 4, 16), "valid": 3, "write_prefix": True} | changes


def said(op: str, given: dict[str, Any]) -> tuple[Reason, ...]:
    """What the op's rule has against a call of these arguments."""
    spec = BY_NAME[op]
    tensors = {n: v for n, v in given.items() if n not in spec.scalars}
    return tuple(RULES[spec.name](call_facts(spec, tensors, {n: given[n] for n in spec.scalars if n in given})))


RIGHT: dict[str, tuple[str, dict[str, Any]]] = {
    "decode": ("packed_decode", decode()),
    "one-key-head": ("packed_decode", decode(mixed_qkv=empty(3, 2 * K + HV * V))),
    "softplus": ("packed_decode", decode(lower_bound=None)),
    "int-bound": ("packed_decode", decode(lower_bound=-1)),
    "snapshots": ("verify_snapshots", verify()),
    "ring-left-out": ("verify_ring", verify()),
    "ring": ("verify_ring", verify(ring_k=empty(3, 2, H, K))),
    "fused": ("fused_decode", fused()),
    "fold": ("fold", fold()),
    "replay": ("replay_decode", replay()),
    "predecayed": ("replay_decode", predecayed()),
    "predecayed-16": ("replay_decode", predecayed(ring_k=empty(5, HV, 16, K))),
    "prefill": ("chunk_prefill", prefill()),
    "residuals": ("attn_residuals", residuals()),
    "all-snapshots": ("attn_residuals", residuals(valid=4, write_prefix=False)),
    # Requests, tokens, layers and snapshots may be none.
    "no-request": ("packed_decode", decode(mixed_qkv=empty(0, C), a=empty(0, HV * K))),
    "no-snapshot": ("attn_residuals", residuals(bank=empty(3, 0, 16), valid=0, write_prefix=False)),
    "no-layer": ("fold", fold(ring_k=empty(0, 3, 4, H, K), state=empty(0, 5, HV, V, K))),
    # Memory that is written may lie in any order, with gaps, and an axis of one steps nowhere.
    "slots-apart": ("packed_decode", decode(state=strided((5, HV, V, K), 1000, V * K, K, 1))),
    "heads-first": ("packed_decode", decode(state=empty(HV, 5, V, K).transpose(0, 1))),
    "slots-before-layers": ("fold", fold(state=empty(5, 2, HV, V, K).transpose(0, 1))),
    "one-slot": ("packed_decode", decode(state=empty(1, HV, V, K).as_strided((1, HV, V, K), (0, V * K, K, 1)))),
    "only-read": ("attn_residuals", residuals(bank=empty(1, 4, 16).expand(3, 4, 16), write_prefix=False)),
    "stream-only-read": ("attn_residuals", residuals(prefix=empty(1, 16).expand(3, 16), add_delta=False)),
    # Another rank, no tensor, another type: a contract's to refuse, not twice.
    "rank": ("packed_decode", decode(state=empty(5, HV, V), a=empty(HV * K))),
    "no-tensor": ("packed_decode", decode(mixed_qkv=[1, 2], a=None)),
    "bound-a-tensor": ("packed_decode", decode(lower_bound=empty())),
    "bound-a-bool": ("packed_decode", decode(lower_bound=True)),
    "sparse": ("packed_decode", decode(state=torch.zeros(5, HV, V, K).to_sparse())),
    "nested": ("packed_decode", decode(mixed_qkv=NESTED)),
}


@pytest.mark.parametrize("case", RIGHT)
def test_nothing_is_said_of_a_right_call(case: str) -> None:
    """Right widths, every bound that the gate has, and whatever a contract judges by itself."""
    op, given = RIGHT[case]
    assert said(op, given) == ()


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "row": ("packed_decode", decode(mixed_qkv=empty(3, C + 1)), "mixed_qkv.shape[1] is 57; allowed: 2·H·K + HV·V"),
    "no-keys": ("packed_decode", decode(mixed_qkv=empty(3, HV * V)), "mixed_qkv.shape[1] is 24; allowed: 2·H·K"),
    "heads": (
        "packed_decode",
        decode(mixed_qkv=empty(3, 6 * K + HV * V)),
        "mixed_qkv.shape[1] is 3 heads; allowed: a divisor of HV=4",
    ),
    "gate": ("packed_decode", decode(a=empty(3, HV)), "a.shape[1] is 4; allowed: 32, which is HV·K of state"),
    "bound": ("packed_decode", decode(lower_bound=-5.5), "lower_bound is -5.5; allowed: None, or a float >= -5"),
    "bound-zero": ("packed_decode", decode(lower_bound=0.0), "lower_bound is 0.0; allowed: None, or a float >= -5"),
    "bound-nan": ("chunk_prefill", prefill(lower_bound=float("nan")), "lower_bound is nan; allowed: None"),
    "tokens": ("verify_snapshots", verify(a=empty(3, 2, 7)), "a.shape[2] is 7; allowed: 32"),
    "ring-heads": ("verify_ring", verify(ring_k=empty(3, 2, HV, K)), "ring_k.shape[2] is 4; allowed: 2, which is H"),
    "fused-width": ("fused_decode", fused(mixed_qkv=empty(3, C)), "mixed_qkv.shape[1] is 56; allowed: 96, which is 3"),
    "fused-state": ("fused_decode", fused(state=empty(5, HV, V, K)), "state.shape[3] is 8; allowed: 6, which is V"),
    "fused-gate": ("fused_decode", fused(gate=empty(3, 5)), "gate.shape[1] is 5; allowed: 32, which is HV·V"),
    "fold-heads": ("fold", fold(ring_k=empty(2, 3, 4, 3, K)), "ring_k.shape[3] is 3 heads; allowed: a divisor"),
    "replay-heads": ("replay_decode", replay(ring_k=empty(5, HV, L, K)), "ring_k.shape[1] is 4; allowed: 2"),
    "predecayed-heads": ("replay_decode", replay(predecayed=True), "ring_k.shape[1] is 2; allowed: 4, which is HV"),
    "predecayed-shared": (
        "replay_decode",
        predecayed(mixed_qkv=empty(3, C)),
        "predecayed is True; allowed: False, since H=2 is not HV=4",
    ),
    "predecayed-short": (
        "replay_decode",
        predecayed(ring_k=empty(5, HV, 1, K)),
        "ring_k.shape[2] is 1; allowed: 2 to 16 places",
    ),
    "predecayed-long": (
        "replay_decode",
        predecayed(ring_k=empty(5, HV, 17, K), lower_bound=-1.0),
        "ring_k.shape[2] is 17; allowed: 2 to 16 places",
    ),
    "predecayed-softplus": ("replay_decode", predecayed(lower_bound=None), "lower_bound is None; allowed: a float"),
    "predecayed-steep": (
        "replay_decode",
        predecayed(ring_k=empty(5, HV, 18, K)),
        "lower_bound is -5.0; allowed: at most 80 in (L - 1)·|lower_bound|, with L=18 places",
    ),
    "queries": ("chunk_prefill", prefill(q=empty(9, 3, K)), "q.shape[1] is 3 heads; allowed: a divisor of HV=4"),
    "prefill-gate": ("chunk_prefill", prefill(a=empty(9, 3)), "a.shape[1] is 3; allowed: 32"),
    "full-bank": (
        "attn_residuals",
        residuals(valid=4),
        "valid is 4; allowed: at most 3: bank has 4 snapshots and one to write",
    ),
    "no-key-width": ("packed_decode", decode(state=empty(5, HV, V, 0)), "state.shape[3] is 0; allowed: 1 or more"),
    "no-slot": ("chunk_prefill", prefill(state=empty(0, HV, V, K)), "state.shape[0] is 0; allowed: 1 or more"),
    "no-head": ("fold", fold(state=empty(2, 5, 0, V, K)), "state.shape[2] is 0; allowed: 1 or more"),
    "no-place": ("replay_decode", replay(ring_k=empty(5, H, 0, K)), "ring_k.shape[2] is 0; allowed: 1 or more"),
    "replay-key-width": ("replay_decode", replay(state=empty(5, HV, V, 0)), "state.shape[3] is 0; allowed: 1 or more"),
    "ring-key-width": (
        "verify_ring",
        verify(ring_k=empty(3, 2, H, K), state=empty(5, HV, V, 0)),
        "state.shape[3] is 0; allowed: 1 or more",
    ),
    "no-width": ("attn_residuals", residuals(bank=empty(3, 4, 0)), "bank.shape[2] is 0; allowed: 1 or more"),
    "expanded-state": (
        "packed_decode",
        decode(state=empty(1, HV, V, K).expand(5, HV, V, K)),
        "state.strides is (0, 48, 8, 1); allowed: strides for (5, 4, 6, 8) with a place for each element, since state",
    ),
    "slots-overlap": (
        "packed_decode",
        decode(state=strided((5, HV, V, K), HV * V * K - 1, V * K, K, 1)),
        "state.strides is (191, 48, 8, 1)",
    ),
    "expanded-out": (
        "packed_decode",
        decode(out=empty(1, 1, 1, V).expand(3, 1, HV, V)),
        "out.strides is (0, 6, 0, 1)",
    ),
    "window-overlaps": ("fused_decode", fused(conv_state=strided((5, 3, C), 3 * C, C - 1, 1)), "conv_state.strides is"),
    "ring-overlaps": ("replay_decode", replay(ring_d=strided((5, HV, L, V), 3, L * V, V, 1)), "ring_d.strides is (3"),
    "expanded-bank": (
        "attn_residuals",
        residuals(bank=empty(3, 1, 16).expand(3, 4, 16)),
        "bank.strides is (16, 0, 1)",
    ),
    "expanded-stream": (
        "attn_residuals",
        residuals(prefix=empty(1, 16).expand(3, 16), add_delta=True),
        "prefix.strides is (0, 1)",
    ),
    "beyond": ("attn_residuals", residuals(valid=5, write_prefix=False), "valid is 5; allowed: at most 4: bank has 4"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_refused_by_field_and_words(case: str) -> None:
    """The field, what was given, and what is allowed, from shapes and scalars alone."""
    op, given, words = WRONG[case]
    assert any(str(reason).startswith(words) for reason in said(op, given)), said(op, given)


@pytest.mark.parametrize("op", BY_NAME)
def test_a_call_without_facts_is_left_to_the_contracts(op: str) -> None:
    """Neither tensors nor scalars: no rule of any op stumbles, and what is missing is not its to say."""
    assert tuple(RULES[f"kda.{op}"](CallFacts({}, {}, (9, 0)))) == ()
