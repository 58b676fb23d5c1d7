"""What each op demands of a call, whatever kernels there are: one function of the call's facts an op, by its name.

Facts are static (dtypes, shapes, strides, scalars, which arguments begin at one address), so a rule is asked once for
each selection, and an explanation without tensors hears what a call would.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeGuard

import torch

from kda_lab.contracts.facts import CallFacts
from kda_lab.contracts.predicate import show
from kda_lab.dispatch import kda_shapes
from kda_lab.dispatch.written_memory import overlapping, shared
from kda_lab.errors import Reason
from kda_lab.ops.nvfp4_gemm.spec import SPEC as GEMM
from kda_lab.ops.protocol import OpSpec
from kda_lab.ops.qsa_block_scores.spec import SPEC as BLOCK_SCORES
from kda_lab.ops.qsa_compact_kv.spec import SPEC as COMPACT_KV
from kda_lab.ops.qsa_compress_keys.spec import SPEC as COMPRESS_KEYS
from kda_lab.ops.qsa_expand_blocks.spec import SPEC as EXPAND_BLOCKS
from kda_lab.ops.qsa_packed_decode.spec import SPEC as PACKED_DECODE
from kda_lab.ops.qsa_paged_decode.spec import SPEC as PAGED_DECODE
from kda_lab.ops.qsa_topk_blocks.spec import SPEC as TOPK_BLOCKS

Rule = Callable[[CallFacts], Iterable[Reason]]
"""Every reason of an op against a call of these facts. A fact that is absent or of a wrong type is a contract's to refuse."""


def _packed_decode(facts: CallFacts) -> Iterator[Reason]:
    rows = facts.scalars.get("max_seqlen_q")
    # The type first: comparing a tensor would read the device.
    if type(rows) is not int or rows != 1:
        yield Reason("max_seqlen_q", show(rows), "1", "QSA requires max_seqlen_q=1: one query row a sequence.")


def _topk_blocks(facts: CallFacts) -> Iterator[Reason]:
    k = facts.scalars.get("k")
    return _width(facts, "blocks", k) if _whole(k) else iter(())


def _expand_blocks(facts: CallFacts) -> Iterator[Reason]:
    blocks, ratio = facts.tensors.get("blocks"), facts.scalars.get("ratio")
    if blocks is None or len(blocks.shape) != 2 or not _whole(ratio):
        return iter(())
    return _width(facts, "tokens", blocks.shape[1] * ratio + ratio - 1)


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _width(facts: CallFacts, name: str, columns: int) -> Iterator[Reason]:
    """A reason where a given output has another number of columns than the scalars say."""
    out = facts.tensors.get(name)
    if out is not None and len(out.shape) == 2 and out.shape[1] != columns:
        yield Reason(f"{name}.shape[1]", repr(out.shape[1]), str(columns))


def _gemm(facts: CallFacts) -> Iterator[Reason]:
    out, asked = facts.tensors.get("out"), facts.scalars.get("out_dtype")
    if out is not None and isinstance(asked, torch.dtype) and f"torch.{out.dtype}" != str(asked):
        yield Reason("out.dtype", f"torch.{out.dtype}", f"{asked}, which is out_dtype", "Pass out_dtype=out.dtype.")


_OWN: Mapping[OpSpec, Rule | None] = {
    COMPRESS_KEYS: None,
    BLOCK_SCORES: None,
    TOPK_BLOCKS: _topk_blocks,
    EXPAND_BLOCKS: _expand_blocks,
    COMPACT_KV: None,
    PACKED_DECODE: _packed_decode,
    PAGED_DECODE: None,
    GEMM: _gemm,
    **{spec: functools.partial(kda_shapes.demands, spec) for spec in kda_shapes.SPECS},
}
"""What each op demands beside memory of its own for whatever it writes."""
_ONLY_WITH = {"bank": "write_prefix", "prefix": "add_delta"}
"""Outputs that a call only reads where a flag is False."""


def _with_memory(spec: OpSpec, own: Rule | None) -> Rule:
    """The rule of an op: memory for what it writes, and what it demands itself."""

    def rule(facts: CallFacts) -> Iterator[Reason]:
        written = [name for name in spec.outputs if facts.scalars.get(_ONLY_WITH.get(name, "")) is not False]
        yield from overlapping(facts, written)
        yield from shared(facts, written)
        if own is not None:
            yield from own(facts)

    return rule


RULES: Mapping[str, Rule] = MappingProxyType({spec.name: _with_memory(spec, own) for spec, own in _OWN.items()})
"""Rule of each op of the package, by the op's name."""
