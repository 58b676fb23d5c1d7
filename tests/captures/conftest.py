"""Small capture sets for the tests of this room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kda_lab.captures.format import Producer, Source
from kda_lab.captures.writing import CaptureDraft, PoolRows, write_set
from kda_lab.ops.protocol import Call

INDEX = torch.tensor([[1, 2], [3, 3], [0, 9]], dtype=torch.int32)


def small_draft(name: str = "one", seed: int = 3) -> CaptureDraft:
    """A synthetic call with a transposed view, an alias, a gathered input and a pinned output."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(20, 8, generator=generator).bfloat16()
    inputs = {
        "x": base[3:10].t(),
        "alias": base[5],
        "rows": small_pool()[INDEX.long()],
    }
    call = Call("test.op", inputs, {"scale": 0.5, "flag": True, "none": None}, {"out": torch.zeros(4)}, label=name)
    return CaptureDraft(
        name=name,
        kind="synthetic",
        call=call,
        source=Source(),
        licence="CC0-1.0",
        recorded="drawn",
        folded="nothing",
        seed=seed,
        pinned={"out": torch.arange(4.0)},
        producer=Producer(name="test"),
        gathers={"rows": PoolRows("pool.safetensors", "rows", INDEX)},
    )


def small_pool() -> torch.Tensor:
    """[10, 4] fp32 rows."""
    return torch.randn(10, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def small_set(tmp_path: Path) -> Path:
    """A set of two captures that share a pool."""
    drafts = [small_draft("one", 3), small_draft("two", 4)]
    return write_set(tmp_path / "set", "test.op", drafts, pools={"pool.safetensors": {"rows": small_pool()}})


@pytest.fixture
def draft() -> Callable[..., CaptureDraft]:
    """`small_draft(name, seed)`."""
    return small_draft


@pytest.fixture
def pools() -> dict[str, dict[str, torch.Tensor]]:
    """The pool that `small_draft` gathers from."""
    return {"pool.safetensors": {"rows": small_pool()}}
