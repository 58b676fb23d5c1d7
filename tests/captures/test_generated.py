"""Synthetic captures made on demand: one content and one hash for a row and a seed."""

from __future__ import annotations

import pytest
import torch

from kda_lab.captures.generated import GeneratedCaptures
from kda_lab.ops.registry import load_op

ROWS = load_op("qsa.packed_decode").cases.rows(("tp2",), (1, 2), ("short",))


def test_a_row_has_one_content() -> None:
    """Loaded twice it is the same; another seed is another content."""
    captures = GeneratedCaptures("qsa.packed_decode", ROWS, 7)
    assert captures.names() == ["tp2-B1-short", "tp2-B2-short"]
    first, again = captures.load("tp2-B2-short"), captures.load("tp2-B2-short")
    assert (first.kind, first.pinned) == ("synthetic", {})
    assert first.sha256 == again.sha256
    assert torch.equal(first.call.inputs["k"], again.call.inputs["k"])
    assert GeneratedCaptures("qsa.packed_decode", ROWS, 8).load("tp2-B2-short").sha256 != first.sha256


def test_an_unknown_row_is_a_key_error() -> None:
    """Only the rows that it was made with."""
    with pytest.raises(KeyError, match="tp1-B1-short"):
        GeneratedCaptures("qsa.packed_decode", ROWS, 7).load("tp1-B1-short")


def test_the_published_shapes_of_the_product_are_generated_not_stored() -> None:
    """29 rows, each a synthetic capture by its label; a small one is drawn here, the same each time."""
    cases = load_op("nvfp4.gemm").cases
    assert len(GeneratedCaptures("nvfp4.gemm", cases.published(), 7).names()) == 29
    captures = GeneratedCaptures("nvfp4.gemm", cases.rows(("tiny_c",), (9,), ("random",)), 7)
    first, again = captures.load("tiny_c-M9-random"), captures.load("tiny_c-M9-random")
    assert (first.kind, first.pinned, first.sha256) == ("synthetic", {}, again.sha256)
    assert first.call.inputs["weight"].stride() == (1, 288)
