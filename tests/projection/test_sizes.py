"""Sizes of the projections: the published table, and which group they follow from."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.projection.sizes import K3, SMALL, splits

# attn_tp, heads, P, QKVG rows, qkv of the split, BFA rows, padded: as the model's published sizes give them.
PUBLISHED = [
    (1, 96, 12288, 49152, 36864, 224, 224),
    (2, 48, 6144, 24576, 18432, 176, 176),
    (4, 24, 3072, 12288, 9216, 152, 152),
    (8, 12, 1536, 6144, 4608, 140, 144),
    (16, 6, 768, 3072, 2304, 134, 136),
    (32, 3, 384, 1536, 1152, 131, 136),
]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda r: f"tp{r[0]}")
def test_sizes_are_the_published_ones(row: tuple[int, ...]) -> None:
    """Heads, P, rows of both fused weights, the split and the padding."""
    size = splits(row[0])
    assert (row[0], size.heads, size.projection, size.qkvg, size.qkv, size.bfa, size.padded_bfa) == row


def test_the_whole_models_group_does_not_matter() -> None:
    """With 16 ranks of which attention uses one, the split is that of one: taking 16 would cut it elsewhere."""
    assert splits(1).qkv == 36864
    assert splits(16).qkv == 2304


def test_bytes_of_one_rank() -> None:
    """711 MB of weights on one rank, 90 MB on each of eight; tokens add their own and their results' bytes."""
    assert splits(1).weight_bytes / 1e6 == pytest.approx(711, abs=0.5)
    assert splits(8).weight_bytes / 1e6 == pytest.approx(90.5, abs=0.5)
    size = splits(8, SMALL)
    assert size.least_bytes(3) - size.weight_bytes == 2 * 3 * (64 + 4 * 32 + 32 + 4)


@pytest.mark.parametrize("attn_tp", [0, -1, 5])
def test_heads_that_cannot_be_shared_are_refused(attn_tp: int) -> None:
    """The message names the heads of the layer."""
    with pytest.raises(ParameterError, match=rf"projection: attn_tp_size is {attn_tp}; allowed: a divisor of 96"):
        splits(attn_tp, K3)
