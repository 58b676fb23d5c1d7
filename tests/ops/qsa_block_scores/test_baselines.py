"""The arms of block scores, and the candidate in the interpreter: right on every edge, judged by the referee."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.protocol import Arm
from kda_lab.ops.qsa_block_scores import baselines, cases, oracle
from kda_lab.ops.registry import load_op
from kda_lab.verify import replay
from kda_lab.verify.launching import one_thread
from kda_lab.verify.metrics import rel_l2

PAGED = candidate_arm(Path(__file__).parents[3] / "notebooks" / "candidates" / "qsa.block_scores" / "paged.py")
ARMS: tuple[Arm, ...] = (*baselines.ARMS, PAGED)
EDGES = cases.edge_calls(7)


def test_the_first_arm_is_the_speed_baseline() -> None:
    """Ratios divide by the torch function that serves where no kernel does."""
    assert [arm.name for arm in baselines.ARMS] == ["torch_gathered", "torch_whole_pool"]


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
@pytest.mark.parametrize("name", sorted(EDGES))
def test_arm_is_right_at_the_edges(arm: Arm, name: str) -> None:
    """Empty rows, page edges, equal keys, shared pages, eight heads: on poisoned dead entries and outputs."""
    call = cases.with_guard_rows(EDGES[name], 16)
    call.outputs["scores"].fill_(float("nan"))
    arm.bind([call])[0]()
    assert rel_l2(call.outputs["scores"], oracle.oracle_fp64(call)["scores"]) < 1e-6


def test_the_whole_pool_is_for_small_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """An arm whose work grows with the square of the rows refuses a call that would take gigabytes."""
    monkeypatch.setattr(baselines, "MOST_PRODUCTS", 100)
    launch = baselines.ARMS[1].bind([EDGES["one_block"]])[0]
    with pytest.raises(ParameterError, match=r"B x HI x S is \d+; allowed: at most 100 for torch_whole_pool\. Use"):
        launch()


def test_a_length_beyond_the_pages_reads_no_other_row() -> None:
    """The kernel clips a length that the contract forbids: all blocks of the row are scored, nothing else is read."""
    call = EDGES["page_edges"]
    wide = call.inputs["lengths"].clone()
    wide[3] = 99
    pages = call.inputs["pages"].clone()
    pages[3] = pages[3, 0]
    full = call.with_inputs(lengths=wide.clamp(max=64), pages=pages)
    found = PAGED.module.block_scores(*full.with_inputs(lengths=wide).inputs.values())
    assert rel_l2(found, oracle.oracle_fp64(full)["scores"]) < 1e-6


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_arm_passes_the_referee(arm: Arm) -> None:
    """Every check on a ragged call, changed lengths included."""
    call = cases.synthesise(cases.rows((64,), (3,), ("ragged",))[0], 3)
    capture = SimpleNamespace(name="ragged", kind="synthetic", call=call, pinned={}, sha256="0")
    with one_thread(torch.device("cpu")):
        assert replay(load_op("qsa.block_scores"), arm, capture, "cpu").failed == ()


def test_every_schedule_gives_the_same_scores() -> None:
    """Tiles of 32, 64 and 128 keys, and several tiles a program, agree to the last bit: no sum crosses a tile."""
    module, call = PAGED.module, EDGES["page_edges"]
    found = []
    for _, schedule in module.SCHEDULES:
        out = torch.full_like(call.outputs["scores"], float("nan"))
        grid = (-(-64 // (schedule.block_n * schedule.tiles)), 4)
        i = call.inputs
        module._paged_scores_kernel[grid](
            i["q_index"],
            i["keys"],
            i["pages"],
            i["lengths"],
            out,
            4,
            64,
            module.SCALE,
            D=128,
            PAGE=16,
            BLOCK_H=16,
            BLOCK_N=schedule.block_n,
            TILES=schedule.tiles,
        )
        found.append(out)
    assert all(torch.allclose(out, found[0], rtol=1e-6) for out in found)
    assert not torch.stack(found).isnan().any()


def test_every_schedule_serves_some_launch() -> None:
    """Sizes from one page to the most that the contract takes each find a schedule, and none is unused."""
    module = PAGED.module
    sizes = [16 << i for i in range(29)]
    assert {module.schedule_for(size) for size in sizes} == {schedule for _, schedule in module.SCHEDULES}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_index": torch.zeros(2, 17, 128).bfloat16()}, r"heads and width are \(17, 128\); allowed: 1 to 16 heads"),
        ({"q_index": torch.zeros(2, 4, 64).bfloat16()}, r"heads and width are \(4, 64\)"),
        ({"q_index": torch.zeros(2, 128).bfloat16()}, r"q_index must be \[B, HI, 128\]"),
        ({"keys": torch.zeros(16, 128)}, r"q_index and keys must be bfloat16"),
        ({"lengths": torch.zeros(2, dtype=torch.int64)}, r"pages and lengths must be int32"),
        ({"lengths": torch.zeros(3, dtype=torch.int32)}, r"B is 2; allowed: 1 to 4096, the same for pages and lengths"),
        ({"pages": torch.zeros(2, 0, dtype=torch.int32)}, r"pages a row are 0; allowed: 1 to 65536"),
        ({"pages": torch.zeros(4, 2, dtype=torch.int32).t()}, r"every tensor must be contiguous"),
    ],
    ids=["heads", "width", "rank", "fp32", "int64", "batch", "no-pages", "strided"],
)
def test_the_kernel_refuses_by_itself(change: dict[str, torch.Tensor], message: str) -> None:
    """Lifted out of this project it still says what it cannot take."""
    tensors = {**EDGES["one_block"].inputs, **change}
    with pytest.raises(ValueError, match=message):
        PAGED.module.block_scores(*tensors.values())


def test_the_kernel_allocates_its_output() -> None:
    """Without an output buffer the scores come in a new one."""
    call = EDGES["page_edges"]
    found = PAGED.module.block_scores(*call.inputs.values())
    assert rel_l2(found, oracle.oracle_fp64(call)["scores"]) < 1e-6
