"""The rules of the ops: what each refuses by facts alone, and what it leaves to the contracts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kda_lab.contracts.facts import CallFacts, TensorFacts
from kda_lab.dispatch.rules import RULES
from kda_lab.ops.protocol import OpSpec
from kda_lab.ops.registry import load_op, op_names


def facts(scalars: dict[str, Any], **tensors: tuple[str, tuple[int, ...]]) -> CallFacts:
    """A call with these scalars, and tensors of these dtypes and shapes."""
    made = {n: TensorFacts(dtype, shape, (99, 1)[: len(shape)], "cuda", 0) for n, (dtype, shape) in tensors.items()}
    return CallFacts(made, scalars, (9, 0))


def said(op: str, call: CallFacts) -> list[str]:
    """The reasons of an op's rule in words."""
    return [str(reason) for reason in RULES[op](call)]


@pytest.mark.parametrize("rows", [2, 0, True, "1", None, 1.0, torch.ones((), device="meta")], ids=str)
def test_packed_decode_has_one_query_row(rows: Any) -> None:
    """The int 1 and nothing else, not even where it is left out."""
    assert said("qsa.packed_decode", facts({"max_seqlen_q": 1})) == []
    (words,) = said("qsa.packed_decode", facts({"max_seqlen_q": rows}))
    assert words.endswith("allowed: 1. QSA requires max_seqlen_q=1: one query row a sequence.")


def test_blocks_are_as_wide_as_k() -> None:
    """A given output has k columns; another rank or a k of another type is a contract's to refuse."""
    right, wide = ("int32", (2, 4)), ("int32", (2, 5))
    assert said("qsa.topk_blocks", facts({"k": 4}, blocks=right)) == []
    assert said("qsa.topk_blocks", facts({"k": 4}, blocks=wide)) == ["blocks.shape[1] is 5; allowed: 4."]
    for call in (facts({"k": 4}), facts({"k": 4}, blocks=("int32", (2,))), facts({"k": "4"}, blocks=wide)):
        assert said("qsa.topk_blocks", call) == []


def test_tokens_are_as_wide_as_blocks_and_tail() -> None:
    """k·ratio and ratio - 1 columns; a true or missing ratio, or blocks of another rank, are a contract's."""
    blocks, wide = ("int32", (2, 2)), ("int32", (2, 5))
    assert said("qsa.expand_blocks", facts({"ratio": 4}, blocks=blocks, tokens=("int32", (2, 11)))) == []
    assert said("qsa.expand_blocks", facts({"ratio": 4}, blocks=blocks, tokens=wide)) == [
        "tokens.shape[1] is 5; allowed: 11."
    ]
    for call in (
        facts({"ratio": True}, blocks=blocks, tokens=wide),
        facts({}, blocks=blocks, tokens=wide),
        facts({"ratio": 4}, blocks=("int32", (2,)), tokens=wide),
        facts({"ratio": 4}, tokens=wide),
    ):
        assert said("qsa.expand_blocks", call) == []


def test_out_of_a_product_has_the_dtype_that_is_asked_for() -> None:
    """A given output of another dtype; without it, or with a dtype's name, the contracts decide."""
    out = ("float32", (2, 3))
    assert said("nvfp4.gemm", facts({"out_dtype": torch.float32}, out=out)) == []
    assert said("nvfp4.gemm", facts({"out_dtype": torch.bfloat16}, out=out)) == [
        "out.dtype is torch.float32; allowed: torch.bfloat16, which is out_dtype. Pass out_dtype=out.dtype."
    ]
    assert said("nvfp4.gemm", facts({"out_dtype": torch.bfloat16})) == []
    assert said("nvfp4.gemm", facts({"out_dtype": "bfloat16"}, out=out)) == []


@pytest.mark.parametrize("op", [op for op in op_names() if len(load_op(op).spec.outputs) > 1])
def test_every_op_with_several_outputs_refuses_one_buffer_for_two(op: str) -> None:
    """Whatever the op, a new one too: its rule asks for memory of its own for each tensor that is written."""
    first, second, *_ = load_op(op).spec.outputs
    one = TensorFacts("float32", (2, 3), (3, 1), "cuda", 0)
    twice = CallFacts({first: one, second: one}, {}, (9, 0), same_start={second: first})
    assert any(line.startswith(f"{second} is the memory of {first}; allowed") for line in said(op, twice))
    apart = CallFacts({first: one, second: one}, {}, (9, 0))
    assert not any("is the memory of" in line for line in said(op, apart))


def test_every_rule_is_of_an_op() -> None:
    """A misspelt name would never be asked."""
    assert set(RULES) <= set(op_names())


@pytest.mark.parametrize("spec", [load_op(name).spec for name in op_names()], ids=lambda spec: spec.name)
def test_every_op_wants_memory_of_its_own_for_what_it_writes(spec: OpSpec) -> None:
    """An expanded output, and one on the memory of the first input, are refused by every op of the package."""
    written = spec.outputs[-1]
    expanded = TensorFacts("float32", (4, 3), (0, 1), "cpu", None)
    call = CallFacts({written: expanded}, {}, None, same_start={written: spec.tensors[0]})
    said = [str(reason) for reason in RULES[spec.name](call)]
    assert any(f"{written}.strides is (0, 1); allowed: strides for (4, 3)" in text for text in said)
    assert any(f"{written} is the memory of {spec.tensors[0]}; allowed: memory of its own" in text for text in said)


def test_a_new_ring_is_not_the_old_one() -> None:
    """Compression reads the old ring while it writes the new one."""
    call = CallFacts({}, {}, None, same_start={"new_ring": "ring"})
    assert [str(reason).split(";")[0] for reason in RULES["qsa.compress_keys"](call)] == [
        "new_ring is the memory of ring"
    ]
