"""Every compaction mutant is rejected somewhere, none where it says it changes nothing, and the right one passes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_compact_kv import cases, mutants, oracle
from kda_lab.ops.registry import load_op
from kda_lab.verify import gate_power
from kda_lab.verify.guarded import same_bits
from kda_lab.verify.launching import one_thread

OP = load_op("qsa.compact_kv")
BY_NAME = {mutant.name: mutant for mutant in mutants.MUTANTS}
WIDE = ("target_width", "draft_width")
EDGES = {name: call for name, call in cases.edge_calls(1).items() if name not in WIDE}


def full_row() -> Call:
    """One row of request 0 that names tokens 0 to 22 in their order, out of slots that are the tokens themselves."""
    call = cases._drawn("full", cases.Shape(1, 23, "target", (23,)), 1)
    ascending = torch.arange(23, dtype=torch.int32)[None]
    table = torch.arange(call.inputs["req_to_slot"].shape[1], dtype=torch.int32)[None]
    request = torch.zeros(1, dtype=torch.int32)
    return cases._counted(call.with_inputs(tokens=ascending, req_to_slot=table, requests=request))


QUIET = [full_row(), *EDGES.values()]


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


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"lengths_baked", "table_baked", "untouched", "half_width"}))
def test_a_mutant_that_does_not_apply_is_right(name: str) -> None:
    """Where a mutant says that its mistake meets nothing, it writes the right bits, and it says why."""
    mutant = BY_NAME[name]
    idle = [call for call in QUIET if not mutant.applies(call)]
    assert idle
    assert mutant.why_not
    for call in idle:
        for tensor in call.outputs.values():
            tensor.fill_(-7)
        mutant.make().bind([call])[0]()
        right = oracle.oracle_fp32(call)
        assert all(same_bits(call.outputs[output], right[output]) for output in right)


def test_the_published_fault_leaves_a_stale_row_in_the_segment() -> None:
    """Copying by column < count loses the newer tokens of a draft row and keeps what lay in their places."""
    call = EDGES["draft"]
    call.outputs["packed_k"].fill_(-7)
    BY_NAME["column_count"].make().bind([call])[0]()
    right = oracle.oracle_fp32(call)
    assert torch.equal(call.outputs["cu_seqlens_k"], right["cu_seqlens_k"])
    live = int(right["cu_seqlens_k"][-1])
    assert bool((call.outputs["packed_k"][:live] == -7).any())
    assert not BY_NAME["column_count"].applies(EDGES["target"])


def test_names_and_words() -> None:
    """Names are unique, and every mutant says its mistake in a sentence."""
    assert len(BY_NAME) == len(mutants.MUTANTS)
    assert all(mutant.what.endswith(".") for mutant in mutants.MUTANTS)
