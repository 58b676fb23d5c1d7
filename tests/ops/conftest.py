"""What the tests of several ops share: gate power on one call, and whether a launch's outputs are allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from kda_lab.ops.protocol import Call, Row
from kda_lab.ops.registry import load_op
from kda_lab.verify import gate_power
from kda_lab.verify.launching import one_thread
from kda_lab.verify.metrics import element_max
from kda_lab.verify.power import Power


@pytest.fixture(scope="session")
def power_on() -> Callable[[Call], Power]:
    """Gate power of a call's op on that call, as if it were a committed synthetic capture."""

    def judge(call: Call) -> Power:
        capture = SimpleNamespace(name=call.label, kind="synthetic", call=call, pinned={}, sha256="0" * 64)
        with one_thread(torch.device("cpu")):
            return gate_power(load_op(call.op), capture, "cpu")

    return judge


@pytest.fixture(scope="session")
def is_right() -> Callable[..., bool]:
    """Whether every element of what a call left behind lies within the allowance of its op's oracle."""

    def judge(call: Call, found: dict[str, torch.Tensor] | None = None) -> bool:
        oracle, given = load_op(call.op).oracle, call.outputs if found is None else found
        exact = oracle.oracle_fp64(call)
        allowed = oracle.allowance(call, exact)
        return all(element_max(given[n], exact[n], allowed[n]) <= 1 for n in exact)

    return judge


@pytest.fixture(scope="session")
def smaller() -> Callable[[Row], Row]:
    """A verify row with two value heads and at most three requests and tokens: the interpreter runs one program at a time."""

    def shrink(row: Row) -> Row:
        axes = row.parameters
        fewer = {"B": min(axes["B"], 3), "T": min(axes["T"], 3), "HV": 2, "H": 2 * axes["H"] // axes["HV"]}
        return replace(row, parameters={**axes, **fewer})

    return shrink
