"""Attention with replaceable steps is right with its defaults, and each mistake of it is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa import wrong_decode
from kda_lab.ops.qsa.decode_shape import DecodeShape
from kda_lab.ops.qsa.wrong_decode import Decode

LENGTHS = (200, 0)
SHAPE = DecodeShape(2, 4, 2, 8, 0.5)


@dataclass(frozen=True)
class Packed(Decode):
    """Rows one behind another."""

    pools = ("k", "v")

    def selected(self, call: Call) -> tuple[DecodeShape, Iterator[slice | None]]:
        """Two hundred rows, then none."""
        return SHAPE, iter([slice(0, LENGTHS[0]), None])


@pytest.fixture
def call() -> Call:
    """Four query heads over two key heads, room for eight heads more behind the output."""
    draw = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(n, h, 8, generator=draw) for n, h in ((2, 4), (200, 2), (200, 2)))
    return Call("test", {"q": q, "k": k, "v": v}, {}, {"out": torch.full((64,), 7.0)[:64].view(2, 4, 8)})


def exact(call: Call) -> torch.Tensor:
    """The answer by torch's own softmax."""
    q, k, v = (call.inputs[n].double() for n in ("q", "k", "v"))
    weights = torch.einsum("hd,nhd->hn", q[0] * SHAPE.scale, k.repeat_interleave(2, 1)).softmax(-1)
    out = torch.zeros(2, 4, 8, dtype=torch.float64)
    out[0] = torch.einsum("hn,nhd->hd", weights, v.repeat_interleave(2, 1))
    return out


def test_the_defaults_are_right(call: Call) -> None:
    """Four tiles in as many splits are merged to the softmax; a row without keys is zero."""
    torch.testing.assert_close(Packed().output(call).double(), exact(call), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        Packed(heads=wrong_decode.heads_modulo),
        Packed(factor=lambda scale: 1.0),
        Packed(width=slice(0, 4)),
        Packed(merge=wrong_decode.merge_without_rescale),
        Packed(merge=wrong_decode.merge_first_only),
        Packed(swapped=True),
        Packed(empty=1.0),
    ],
)
def test_each_step_can_be_wrong(call: Call, wrong: Packed) -> None:
    """Every mistake moves the output."""
    assert not torch.allclose(wrong.output(call).double(), exact(call), atol=1e-3)


def test_wrong_ways_to_write(call: Call) -> None:
    """Padding rows land on the heads that follow, half an output leaves the rest, and one launch alone merges."""
    right = Packed().output(call)
    Packed().half_output(call)
    assert torch.equal(call.outputs["out"][:, :, :4], right[:, :, :4]) and bool(
        (call.outputs["out"][:, :, 4:] == 7).all()
    )
    Packed().sixteen_heads(call)
    assert torch.equal(call.outputs["out"][0, :2], right[0, :2])
    launch = Packed().counter_kept(call)
    launch()
    assert torch.equal(call.outputs["out"], right)
    call.outputs["out"].fill_(7)
    launch()
    assert bool((call.outputs["out"] == 7).all())
