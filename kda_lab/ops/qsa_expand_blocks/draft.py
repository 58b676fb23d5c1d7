"""Speculative rows: the columns of a draft row, and the row tables of target verification and draft extension.

A chain of draft steps shares the selection that was captured at its verify row and adds the newer positions in columns
of their own, so a draft row has holes: -1 of a short selection stands between its tokens and the newer ones.
Rows that only pad a captured graph are never empty: they have length 1, prefix 0 and the first request, so that they
attend to token 0 alone. Facts: sglang, `qwen_sparse_attn_backend.py` and `qsa/graph_metadata.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kda_lab.errors import ParameterError, Reason

ROOM = "qsa.draft"
STEPS = 4
"""Newer positions of a draft row: three draft steps and the token that they start from."""


def draft_columns(
    frozen: torch.Tensor, captured_lengths: torch.Tensor, positions: torch.Tensor, steps: int = STEPS
) -> torch.Tensor:
    """The frozen selection of each row with `steps` more columns: the positions since, up to the current one.

    Args:
        frozen: [B, W] int32, as `expand_blocks` made it at the verify row.
        captured_lengths: [B] int32, length at the capture.
        positions: [B] int32, current position of the row.
        steps: columns to add.

    Returns:
        [B, W + steps] int32: column W + j is captured_length + j where that is no later than the position, else -1.

    Raises:
        ParameterError: the shapes do not fit, or steps is below 1.
    """
    rows = frozen.shape[0]
    if frozen.dim() != 2 or captured_lengths.shape != (rows,) or positions.shape != (rows,):
        given = f"{tuple(frozen.shape)}, {tuple(captured_lengths.shape)} and {tuple(positions.shape)}"
        raise ParameterError(ROOM, [Reason("shapes", given, "[B, W], [B] and [B]")])
    if steps < 1:
        raise ParameterError(ROOM, [Reason("steps", repr(steps), "1 or more")])
    newer = captured_lengths[:, None] + torch.arange(steps, dtype=frozen.dtype, device=frozen.device)
    return torch.cat([frozen, torch.where(newer <= positions[:, None], newer, -1).to(frozen.dtype)], 1)


@dataclass(frozen=True)
class Rows:
    """A table of query rows, each of which attends by itself."""

    lengths: tuple[int, ...]
    """Tokens of the row's request up to the row's own, which is included."""
    requests: tuple[int, ...]
    prefixes: tuple[int, ...]
    """Tokens that were there before the step."""


def verify_rows(bases: Sequence[int], requests: Sequence[int], padded: int = 0, steps: int = STEPS) -> Rows:
    """Rows of a target verification: `steps` rows a request, of lengths base + 1 to base + steps.

    Args:
        bases: tokens of each request before the step.
        requests: id of each request.
        padded: how many of the last requests only pad a graph.
        steps: draft tokens a request, at most the compression ratio of the model.

    Raises:
        ParameterError: the lists differ in length, or `padded` is no part of them.
    """
    real = len(bases) - padded
    if len(bases) != len(requests) or not 0 <= padded < max(1, len(bases)):
        given = f"{len(bases)}, {len(requests)} and {padded}"
        raise ParameterError(ROOM, [Reason("bases, requests and padded", given, "one request a base, not all padded")])
    groups = list(zip(bases[:real], requests[:real], strict=True))
    lengths = [base + 1 + j for base, _ in groups for j in range(steps)]
    owners = [request for _, request in groups for _ in range(steps)]
    prefixes = [base for base, _ in groups for _ in range(steps)]
    return _padded(lengths, owners, prefixes, len(bases) * steps)


def draft_extend_rows(lengths: Sequence[int], extends: Sequence[int], requests: Sequence[int], graph_rows: int) -> Rows:
    """Rows of a draft extension: `extends[i]` rows for request i, which end at its length; then padding rows.

    Args:
        lengths: tokens of each request after the step.
        extends: tokens that the step added, 1 or more.
        requests: id of each request.
        graph_rows: rows of the captured graph.

    Raises:
        ParameterError: the lists differ in length or are empty, an extension is no part of its length, or the rows do
            not fit in the graph.
    """
    if not len(lengths) == len(extends) == len(requests) > 0:
        given = f"{len(lengths)}, {len(extends)} and {len(requests)}"
        raise ParameterError(ROOM, [Reason("lengths, extends and requests", given, "equally many, 1 or more")])
    if any(not 1 <= extend <= length for length, extend in zip(lengths, extends, strict=True)):
        raise ParameterError(ROOM, [Reason("extends", repr(list(extends)), "1 to its request's length each")])
    if sum(extends) > graph_rows:
        raise ParameterError(ROOM, [Reason("graph_rows", repr(graph_rows), f"{sum(extends)} or more")])
    steps = list(zip(lengths, extends, requests, strict=True))
    rows = [length - extend + 1 + j for length, extend, _ in steps for j in range(extend)]
    owners = [request for _, extend, request in steps for _ in range(extend)]
    prefixes = [length - extend for length, extend, _ in steps for _ in range(extend)]
    return _padded(rows, owners, prefixes, graph_rows)


def _padded(lengths: list[int], requests: list[int], prefixes: list[int], rows: int) -> Rows:
    more = rows - len(lengths)
    return Rows((*lengths, *[1] * more), (*requests, *[requests[0]] * more), (*prefixes, *[0] * more))
