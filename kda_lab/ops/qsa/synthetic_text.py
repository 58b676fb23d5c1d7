"""A synthetic text as hidden states, and the projections of one attention layer: what a pipeline run starts from.

Neither comes from a model. The text is a sequence of passages; each has a topic, topics come back, and the text ends in
a topic that it had before. Keys of tokens of one topic resemble one another, so that a selection has something to find.
Drawn on the CPU from the seed alone, so that the same numbers stand on every device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.qsa.geometry import HEAD_DIM, INDEX_DIM, INDEX_HEADS

ROOM = "qsa"
HIDDEN = 2560
TOPICS = 12
PASSAGE_TOKENS = (40, 240)
TOKEN_NOISE = 0.7
"""Weight of what is a token's own against its topic's share, per element."""
INDEX_LEAN, HEAD_LEAN = 0.8, 0.5
"""How much of a key projection the query projections repeat: it makes a query find keys of its own topic."""


@dataclass(frozen=True)
class Text:
    """The hidden states that enter one attention layer."""

    hidden: torch.Tensor
    """[T, 2560] bf16."""
    topics: torch.Tensor
    """[T] int64 on the CPU: topic of each token."""


@dataclass(frozen=True)
class Projections:
    """Weights of one attention layer, all bf16, without biases."""

    index: torch.Tensor
    """[(4 + 1) * 128, 2560]: index query heads, then the one index key head."""
    index_q_norm: torch.Tensor
    """[128], stored less one."""
    index_k_norm: torch.Tensor
    """[128], stored less one."""
    q: torch.Tensor
    """[HQ * 256, 2560]."""
    k: torch.Tensor
    """[HKV * 256, 2560]."""
    v: torch.Tensor
    """[HKV * 256, 2560]."""


def draw_text(context: int, seed: int, device: torch.device | str = "cpu") -> Text:
    """Hidden states of `context` tokens.

    Raises:
        ParameterError: a context below 1 token.
    """
    if context < 1:
        raise ParameterError(ROOM, [Reason("context", repr(context), "1 token or more")])
    generator = torch.Generator().manual_seed(seed)
    topics = _topics(context, generator)
    directions = torch.randn(TOPICS, HIDDEN, generator=generator)
    own = torch.randn(context, HIDDEN, generator=generator)
    return Text((directions[topics] + TOKEN_NOISE * own).to(torch.bfloat16).to(device), topics)


def draw_projections(heads: int, kv_heads: int, seed: int, device: torch.device | str = "cpu") -> Projections:
    """Weights of a layer with `heads` query and `kv_heads` KV heads of 256.

    Raises:
        ParameterError: the query heads are no multiple of the KV heads.
    """
    if kv_heads < 1 or heads < 1 or heads % kv_heads:
        raise ParameterError(ROOM, [Reason("heads", repr(heads), f"a positive multiple of kv_heads, {kv_heads!r}")])
    generator = torch.Generator().manual_seed(seed + 1)
    index_k = _weight(INDEX_DIM, generator)
    index_q = [INDEX_LEAN * index_k + 0.6 * _weight(INDEX_DIM, generator) for _ in range(INDEX_HEADS)]
    k = [_weight(HEAD_DIM, generator) for _ in range(kv_heads)]
    group = heads // kv_heads
    q = [HEAD_LEAN * k[head // group] + 0.9 * _weight(HEAD_DIM, generator) for head in range(heads)]
    norms = [0.1 * torch.randn(INDEX_DIM, generator=generator) for _ in range(2)]
    weights = (
        torch.cat([*index_q, index_k]),
        *norms,
        torch.cat(q),
        torch.cat(k),
        _weight(kv_heads * HEAD_DIM, generator),
    )
    return Projections(*(weight.to(torch.bfloat16).to(device) for weight in weights))


def _topics(context: int, generator: torch.Generator) -> torch.Tensor:
    """Topic of each token: passages of random length; the last one repeats the topic of the second."""
    low, high = PASSAGE_TOKENS
    found: list[int] = []
    while (left := context - sum(found)) > high:
        found.append(min(int(torch.randint(low, high + 1, (1,), generator=generator)), left - low))
    found.append(left)
    topics = torch.randint(TOPICS, (len(found),), generator=generator)
    if len(found) > 2:
        topics[-1] = topics[1]
    return topics.repeat_interleave(torch.tensor(found))


def _weight(rows: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(rows, HIDDEN, generator=generator) / math.sqrt(HIDDEN)
