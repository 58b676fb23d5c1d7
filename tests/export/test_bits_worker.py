"""How the child process of the bits gate launches and compares."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kda_lab.export.bits_worker import fresh_output, same_bits
from kda_lab.ops.protocol import Call


def call() -> Call:
    return Call("x.y", {"x": torch.ones(3)}, {}, {"out": torch.zeros(3)})


def test_outputs_are_poisoned_and_private() -> None:
    """A kernel that writes only part of its output leaves NaN there, and the capture's own buffers stay as they were."""

    def bind(calls: list[Call]) -> list[Callable[[], None]]:
        def launch() -> None:
            calls[0].outputs["out"][0] = 1.0
            calls[0].inputs["x"].zero_()

        return [launch]

    given = call()
    out = fresh_output(given, bind)["out"]
    assert out[0] == 1.0 and out[1:].isnan().all()
    assert given.outputs["out"].eq(0).all() and given.inputs["x"].eq(1).all()


def test_what_is_updated_in_place_begins_as_the_capture_has_it() -> None:
    """Not poisoned, but restored, in the strides of its pool; the capture's own tensors stay as they were."""
    pool = torch.arange(8.0).view(2, 4)[:, :3]
    given = Call(
        "x.y", {"x": torch.ones(3), "pool": pool}, {}, {"out": torch.zeros(3), "pool": torch.zeros(2, 4)[:, :3]}
    )

    def bind(calls: list[Call]) -> list[Callable[[], None]]:
        return [lambda: calls[0].outputs["pool"][1].add_(calls[0].inputs["x"])]

    found = fresh_output(given, bind)
    assert found["pool"].tolist() == [[0.0, 1.0, 2.0], [5.0, 6.0, 7.0]]
    assert found["out"].isnan().all()
    assert given.inputs["pool"].tolist() == [[0.0, 1.0, 2.0], [4.0, 5.0, 6.0]]
    assert given.outputs["pool"].eq(0).all()


def test_bits_not_values_are_compared() -> None:
    """Equal NaNs agree; 0 and -0 differ; so do missing outputs and other shapes."""
    nan, zero = torch.tensor([float("nan")]), torch.tensor([0.0])
    assert same_bits({"a": nan}, {"a": nan.clone()})
    assert not same_bits({"a": zero}, {"a": -zero})
    assert not same_bits({"a": zero}, {"b": zero})
    assert not same_bits({"a": torch.zeros(2)}, {"a": torch.zeros(1, 2)})
