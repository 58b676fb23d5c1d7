"""What the protocol asks of launchers: a preparation refills the memory that captured launches read."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab.ops.protocol import Call, Launcher, preparation_of
from kda_lab.ops.registry import Op, load_op, op_names

PREPARED = {"kda.chunk_prefill", "kda.packed_decode", "nvfp4.gemm", "qsa.paged_decode"}
"""Ops with an arm that prepares."""


def rows_of(op: Op) -> Any:
    return op.cases.rows(["tiny_a"], [9], ["random"]) if op.spec.name == "nvfp4.gemm" else captured_rows(op)


def captured_rows(op: Op) -> Any:
    return getattr(op.cases, "capture_rows", op.cases.rows)()


def bound(op_name: str, place: int) -> tuple[Call, Launcher]:
    """A small call and the launcher of an arm, by its place; a library's, which no CPU has, is put together here."""
    op = load_op(op_name)
    call: Call = op.cases.synthesise(rows_of(op)[0], 0)
    own = op.baselines
    by_hand: dict[str, Callable[[], Launcher]] = {
        "fla_fused_recurrent": lambda: own.FlaLauncher(None, call),
        "flashinfer_paged_page1": lambda: own.PlannedLauncher(SimpleNamespace(), call, own.page_indices(call)),
    }
    arm = own.ARMS[place]
    return call, by_hand[arm.name]() if arm.name in by_hand else arm.bind([call])[0]


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor that a launcher holds, in whatever containers; those of its call are the harness's own."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(part)
    elif hasattr(value, "__dict__") and not isinstance(value, (Call, ModuleType, type)):
        yield from tensors_of(vars(value))


@pytest.mark.parametrize(
    ("op_name", "place"),
    [
        ("kda.chunk_prefill", 0),
        ("kda.packed_decode", 2),
        ("nvfp4.gemm", 0),
        ("nvfp4.gemm", 2),
        ("qsa.paged_decode", 2),
    ],
)
def test_a_preparation_frees_nothing_that_a_captured_launch_may_read(op_name: str, place: int) -> None:
    """What the launcher held lives on: a CUDA graph keeps addresses, not tensors, and would read what came after."""
    call, launcher = bound(op_name, place)
    held = [weakref.ref(tensor) for tensor in tensors_of(vars(launcher))]
    prepare = preparation_of(launcher)
    assert held and prepare is not None
    for contents in ({}, {"cu_seqlens": torch.tensor([0, 69, 69, 69], dtype=torch.int32)}):
        for name, new in contents.items():
            if name in call.inputs:
                call.inputs[name].copy_(new)
        prepare()
        assert all(tensor() is not None for tensor in held)


def test_every_arm_that_prepares_is_among_them() -> None:
    """No launcher that runs on a CPU prepares unnoticed."""
    found = set()
    for name in op_names():
        op = load_op(name)
        call = op.cases.synthesise(rows_of(op)[0], 0)
        usable = [arm for arm in op.baselines.ARMS if not arm.unavailable(call.device)]
        if any(preparation_of(arm.bind([call])[0]) is not None for arm in usable):
            found.add(name)
    assert found <= PREPARED and found
