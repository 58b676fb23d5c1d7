"""QSA's selection stages in torch: allocation, shapes at the edges, and no look at device memory."""

from __future__ import annotations

import pytest
import torch

from kda_lab.dispatch import qsa_selection
from kda_lab.dispatch.dispatcher import QSA_STAGES
from kda_lab.ops.registry import load_op
from kda_lab.verify.guarded import same_bits

OPS = ("qsa.topk_blocks", "qsa.expand_blocks", "qsa.compact_kv")
EDGES = {(name, edge): call for name in OPS for edge, call in load_op(name).cases.edge_calls(7).items()}
SMALL = [key for key in EDGES if key[1] not in ("target_width", "draft_width", "many_rows")]


def function_of(name: str):
    return getattr(qsa_selection, name.removeprefix("qsa."))


@pytest.mark.parametrize("key", SMALL, ids="-".join)
def test_allocated_outputs_have_the_bits_of_the_oracle(key: tuple[str, str]) -> None:
    """Without buffers each function makes its own, of the oracle's shape and dtype."""
    name, call = key[0], EDGES[key]
    found = function_of(name)(*call.inputs.values(), **call.scalars)
    right = load_op(name).oracle.oracle_fp64(call)
    found = found if isinstance(found, tuple) else (found,)
    if key[1] == "spare_rows":
        right = {n: t[: call.inputs["tokens"].numel()] if n != "cu_seqlens_k" else t for n, t in right.items()}
    assert all(same_bits(mine, wanted) for mine, wanted in zip(found, right.values(), strict=True))


@pytest.mark.parametrize("name", OPS)
def test_given_outputs_are_filled_and_returned(name: str) -> None:
    """What is handed in comes back, written."""
    call = EDGES[name, "holes"] if name != "qsa.topk_blocks" else EDGES[name, "scores"]
    found = function_of(name)(*call.inputs.values(), **call.scalars, **call.outputs)
    found = found if isinstance(found, tuple) else (found,)
    assert all(mine is given for mine, given in zip(found, call.outputs.values(), strict=True))


@pytest.mark.parametrize("name", OPS)
def test_nothing_is_read_on_the_host(name: str) -> None:
    """On tensors without data the functions run to their end: no value decides a shape, so a graph can hold them."""
    call = next(call for key, call in EDGES.items() if key[0] == name)
    inputs = [tensor.to("meta") for tensor in call.inputs.values()]
    found = function_of(name)(*inputs, **call.scalars)
    shapes = [tuple(t.shape) for t in (found if isinstance(found, tuple) else (found,))]
    assert shapes == [tuple(t.shape) for t in call.outputs.values()]


def test_a_short_buffer_drops_rows_and_keeps_the_offsets() -> None:
    """Rows that do not fit are left out; the offsets still tell the counts."""
    call = EDGES["qsa.compact_kv", "holes"]
    right = load_op("qsa.compact_kv").oracle.oracle_fp32(call)
    short = [torch.empty(20, 1, 256, dtype=torch.bfloat16) for _ in range(2)]
    k, v, ends = qsa_selection.compact_kv(*call.inputs.values(), packed_k=short[0], packed_v=short[1])
    assert same_bits(k, right["packed_k"][:20])
    assert same_bits(v, right["packed_v"][:20])
    assert torch.equal(ends, right["cu_seqlens_k"])


def test_every_stage_is_registered_under_its_op() -> None:
    """The dispatcher knows one torch function for each stage whose specification names one."""
    names = [fallback.name for fallback in QSA_STAGES]
    ops = ("compress_keys", "block_scores", "topk_blocks", "expand_blocks", "compact_kv", "paged_decode")
    assert names == [f"qsa_{op}_torch" for op in ops]
    assert all(load_op(f"qsa.{op}").spec.fallback == (name,) for op, name in zip(ops, names, strict=True))
