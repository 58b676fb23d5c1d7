"""A synthetic text is the same for the same seed, ends in a topic it had before, and lets a query find its topic."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa.synthetic_text import HIDDEN, PASSAGE_TOKENS, draw_projections, draw_text


@pytest.mark.parametrize("context", [1, 39, 40, 241, 700])
def test_a_text_has_whole_passages(context: int) -> None:
    """As many tokens as asked for; no passage but that of a short text is shorter than the least."""
    text = draw_text(context, 7)
    assert text.hidden.shape == (context, HIDDEN)
    assert text.hidden.dtype is torch.bfloat16
    _, counts = torch.unique_consecutive(text.topics, return_counts=True)
    assert int(counts.sum()) == context
    assert int(counts.min()) >= min(context, PASSAGE_TOKENS[0])


def test_the_last_passage_comes_back_to_the_second() -> None:
    """So that the query of the longest row has something far away to find."""
    topics = draw_text(1500, 3).topics
    passages = torch.unique_consecutive(topics)
    assert int(passages[-1]) in passages[:2].tolist()


def test_the_seed_alone_decides() -> None:
    """Equal seeds give equal bits, others do not."""
    assert torch.equal(draw_text(50, 1).hidden, draw_text(50, 1).hidden)
    assert not torch.equal(draw_text(50, 1).hidden, draw_text(50, 2).hidden)
    assert torch.equal(draw_projections(12, 1, 1).q, draw_projections(12, 1, 1).q)


def test_keys_of_one_topic_resemble_one_another() -> None:
    """Hidden states of one topic have a cosine near 1 / (1 + 0.49), those of two topics near 0."""
    text = draw_text(600, 5)
    last = text.topics == text.topics[-1]
    cosines = torch.nn.functional.cosine_similarity(text.hidden.float(), text.hidden[-1:].float())
    assert 0.55 < float(cosines[last][:-1].mean()) < 0.8
    assert abs(float(cosines[~last].mean())) < 0.1


def test_weights_have_the_shapes_of_the_layer() -> None:
    """Four index heads and one index key; query and KV heads of 256."""
    weights = draw_projections(24, 2, 1)
    assert weights.index.shape == (5 * 128, HIDDEN)
    assert (weights.q.shape, weights.k.shape, weights.v.shape) == (
        (24 * 256, HIDDEN), (2 * 256, HIDDEN), (2 * 256, HIDDEN),
    )  # fmt: skip


def test_what_cannot_be_drawn_is_refused() -> None:
    """Both messages name the field, what was given and what is allowed."""
    with pytest.raises(ParameterError, match="context is 0; allowed: 1 token or more"):
        draw_text(0, 1)
    with pytest.raises(ParameterError, match="heads is 13; allowed: a positive multiple of kv_heads, 2"):
        draw_projections(13, 2, 1)
