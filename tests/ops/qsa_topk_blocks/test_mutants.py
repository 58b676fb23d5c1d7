"""Every top-k mutant is rejected somewhere, none where it says it changes nothing, and the right select passes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_topk_blocks import cases, mutants, oracle
from kda_lab.ops.registry import load_op
from kda_lab.verify import gate_power
from kda_lab.verify.launching import one_thread

OP = load_op("qsa.topk_blocks")
BY_NAME = {mutant.name: mutant for mutant in mutants.MUTANTS}
EDGES = {**cases.edge_calls(1), "bucket_5000": cases.synthesise(cases.make_row(1, 5000, "bucket"), 1)}


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
    """Where a mutant says that its mistake meets nothing, it writes the right ids, and it says why."""
    mutant = BY_NAME[name]
    idle = [call for call in EDGES.values() if not mutant.applies(call)]
    assert idle
    assert mutant.why_not
    for call in idle:
        call.outputs["blocks"].fill_(-7)
        mutant.make().bind([call])[0]()
        assert torch.equal(call.outputs["blocks"], oracle.oracle_fp32(call)["blocks"])


def test_names_and_words() -> None:
    """Names are unique, and every mutant says its mistake in a sentence."""
    assert len(BY_NAME) == len(mutants.MUTANTS)
    assert all(mutant.what.endswith(".") for mutant in mutants.MUTANTS)


def test_a_lossy_buffer_passes_while_the_bucket_fits() -> None:
    """The fault shows only with more than 4096 keys in the threshold's bucket."""
    small = cases.synthesise(cases.make_row(1, 4096, "bucket"), 1)
    assert not BY_NAME["lossy_buffer"].applies(small)
    assert BY_NAME["lossy_buffer"].applies(EDGES["bucket_5000"])
