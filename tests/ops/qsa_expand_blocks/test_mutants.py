"""Every expansion mutant is rejected somewhere, none where it says it changes nothing, and the right one passes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_expand_blocks import cases, mutants, oracle
from kda_lab.ops.registry import load_op
from kda_lab.verify import gate_power
from kda_lab.verify.launching import one_thread

OP = load_op("qsa.expand_blocks")
BY_NAME = {mutant.name: mutant for mutant in mutants.MUTANTS}
EDGES = cases.edge_calls(1)
QUIET = [cases.make_call([[-1, -1]], [0], [-1]), cases.make_call([[0, 1]], [11], [10]), *EDGES.values()]
"""An empty row, a full one, and the edges."""


def capture_of(name: str, call: Call) -> SimpleNamespace:
    return SimpleNamespace(name=name, kind="synthetic", call=call, pinned={}, sha256="0" * 64)


def test_every_mutant_is_killed_somewhere_and_survives_nowhere() -> None:
    """Over the edges each mistake meets something, and wherever it does the checks reject it."""
    killed: set[str] = set()
    for name, call in EDGES.items():
        with one_thread(torch.device("cpu")):
            power = gate_power(OP, capture_of(name, call), "cpu")
        assert power.control_failed == ()
        assert power.survivors == ()
        killed |= {outcome.name for outcome in power.mutants if outcome.killed}
    assert killed == set(BY_NAME)


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"lengths_baked", "untouched", "all_zero"}))
def test_a_mutant_that_does_not_apply_is_right(name: str) -> None:
    """Where a mutant says that its mistake meets nothing, it writes the right tokens, and it says why."""
    mutant = BY_NAME[name]
    idle = [call for call in QUIET if not mutant.applies(call)]
    assert idle
    assert mutant.why_not
    for call in idle:
        call.outputs["tokens"].fill_(-7)
        mutant.make().bind([call])[0]()
        assert torch.equal(call.outputs["tokens"], oracle.oracle_fp32(call)["tokens"])


def test_the_fault_of_many_rows_needs_many_rows() -> None:
    """A launch that serves 512 rows is right up to there."""
    assert [name for name, call in EDGES.items() if BY_NAME["few_rows"].applies(call)] == ["many_rows"]


def test_names_and_words() -> None:
    """Names are unique, and every mutant says its mistake in a sentence."""
    assert len(BY_NAME) == len(mutants.MUTANTS)
    assert all(mutant.what.endswith(".") for mutant in mutants.MUTANTS)
