"""Every candidate source: right at the edges of its op, honest in its declaration, alone in its imports."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kda_lab.export.candidate import read_candidate
from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.registry import load_op
from kda_lab.verify.metrics import rel_l2

SOURCES = sorted((Path(__file__).parents[1] / "notebooks" / "candidates").glob("*/*.py"))
QSA = load_op("qsa.packed_decode")
EDGES = QSA.cases.edge_calls(11)
# A computed CONTRACT is evaluated in a fresh process, which costs seconds.
read = functools.cache(read_candidate)
GROUPED = candidate_arm(Path(__file__).parents[1] / "notebooks" / "candidates" / "qsa.packed_decode" / "grouped.py")


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_a_candidate_declares_itself(path: Path) -> None:
    """Its CONTRACT is a declaration of the op of its folder; it imports what an exported kernel may."""
    assert read(path).declaration.op == path.parent.name


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_what_is_judged_is_what_would_be_exported(path: Path) -> None:
    """The arm's digest in records is the digest that the export looks for."""
    assert candidate_arm(path).source_sha256 == read(path).sha256


def test_device_code_has_its_host_code() -> None:
    """Every .cu file stands beside a Python candidate of language cuda, which reads it."""
    devices = sorted((Path(__file__).parents[1] / "notebooks" / "candidates").glob("*/*.cu"))
    readers = [path.with_suffix(".cu") for path in SOURCES if read(path).files.device is not None]
    assert devices == sorted(readers)


def run(call) -> torch.Tensor:
    """Output of one call on poisoned memory."""
    call.outputs["out"].fill_(float("nan"))
    GROUPED.bind([call])[0]()
    return call.outputs["out"]


@pytest.mark.parametrize("name", sorted(EDGES))
def test_grouped_is_right_at_the_edges(name: str) -> None:
    """Empty rows, single keys, zero keys, a dominant key, huge scores, constant values, 2055 keys."""
    assert rel_l2(run(EDGES[name]), QSA.oracle.oracle_fp32(EDGES[name])["out"]) < 5e-3


def test_empty_rows_are_exactly_zero_and_single_keys_exactly_their_value() -> None:
    """No keys: zero bits. One key: the bits of its V row for every head of the group."""
    zero = EDGES["all_zero_rows"]
    assert torch.count_nonzero(run(zero)) == 0
    one = EDGES["length_one"]
    out = run(one).view(4, 2, 12, 256)
    assert torch.equal(out, one.inputs["v"][:, :, None].expand_as(out))


def test_the_counters_are_zero_after_every_call() -> None:
    """Whatever was launched, no row is left half counted, and a reset is allowed at rest."""
    run(EDGES["draft_width"])
    assert {name: int(t.count_nonzero()) for name, t in GROUPED.state_tensors().items()} == {"count[cpu:None:0]": 0}
    GROUPED.module.reset_state()


def test_tp1_is_its_two_halves() -> None:
    """The first twelve heads of TP1 are TP2's rank 0 on the first KV head, within one rounding."""
    call = QSA.cases.synthesise(QSA.cases.rows(("tp1",), (2,), ("short",))[0], 5)
    whole = run(call).clone()
    i = call.inputs
    half = {"q": i["q"][:, :12].contiguous(), "k": i["k"][:, :1].contiguous(), "v": i["v"][:, :1].contiguous()}
    rank0 = replace(call.with_inputs(**half), outputs={"out": torch.zeros_like(half["q"])})
    assert rel_l2(run(rank0), whole[:, :12]) < 5e-3


def test_every_schedule_is_reached_and_fits_its_table() -> None:
    """Each launch size finds a schedule; each schedule of both tables serves some launch."""
    module = GROUPED.module
    for capability in ((9, 0), (12, 0), (12, 1)):
        used = {module.schedule_for(slots, capability) for slots in range(1, 257)}
        assert used == {schedule for _, schedule in module.schedules_for(capability)}
    assert all(most * s.splits <= module.MOST_PARTIALS for most, s in module.SCHEDULES_SM90 if s.splits > 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_seqlen_q": 2}, "QSA requires max_seqlen_q=1"),
        ({"max_seqlen_k": 2056}, "max_seqlen_k is 2056; allowed: 1 to 2055"),
    ],
    ids=["queries", "capacity"],
)
def test_the_kernel_refuses_by_itself(change: dict, words: str) -> None:
    """Lifted out of this project it still says what it cannot take."""
    call = EDGES["length_one"]
    tensors = [call.inputs[name] for name in QSA.spec.tensors]
    with pytest.raises(ValueError, match=words):
        GROUPED.module.packed_decode(*tensors, **{**call.scalars, **change})
