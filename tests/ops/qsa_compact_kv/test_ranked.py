"""The ranking compaction kernels in the interpreter: the oracle's bits at every edge, whatever the launch's tile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.registry import load_op
from kda_lab.verify.guarded import same_bits

ROOT = Path(__file__).parents[3]
OP = load_op("qsa.compact_kv")
EDGES = OP.cases.edge_calls(5)
ARM = candidate_arm(ROOT / "notebooks" / "candidates" / "qsa.compact_kv" / "ranked.py")


def is_right(call) -> bool:
    """Whether one launch over poisoned outputs gives the oracle's bits."""
    for tensor in call.outputs.values():
        tensor.fill_(-7)
    ARM.bind([call])[0]()
    right = OP.oracle.oracle_fp32(call)
    return all(same_bits(call.outputs[name], right[name]) for name in right)


@pytest.mark.parametrize("edge", sorted(EDGES))
def test_every_edge_is_right(edge: str) -> None:
    """Holes, late columns, empty rows, both widths of the model, spare rows; NaN where nothing is named."""
    assert is_right(OP.cases.with_guard_rows(EDGES[edge], 64))


@pytest.mark.parametrize("edge", ["holes", "draft", "spare_rows"])
def test_the_tile_of_the_gpu_is_right(edge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 16 rows: a row's live end and the zeroed rows fall inside of tiles."""
    monkeypatch.setattr(ARM.module, "ROWS_INTERPRETED", ARM.module.ROWS)
    assert is_right(EDGES[edge])


def test_a_short_buffer_is_not_overrun() -> None:
    """Rows that do not fit are left out, offsets still tell the counts, and nothing is written behind the buffer."""
    call = EDGES["holes"]
    right = OP.oracle.oracle_fp32(call)
    buffer = torch.full((60, 1, 256), -7, dtype=torch.bfloat16)
    short = {"packed_k": buffer[:20], "packed_v": torch.empty(20, 1, 256, dtype=torch.bfloat16)}
    ARM.module.compact_kv(*call.inputs.values(), **short, cu_seqlens_k=call.outputs["cu_seqlens_k"])
    assert same_bits(buffer[:20], right["packed_k"][:20])
    assert bool((buffer[20:] == -7).all())
    assert torch.equal(call.outputs["cu_seqlens_k"], right["cu_seqlens_k"])


def test_outputs_are_allocated_when_none_is_given() -> None:
    """Without buffers the entry makes B · W packed rows and the offsets itself."""
    call = EDGES["holes"]
    found = ARM.module.compact_kv(*call.inputs.values())
    right = OP.oracle.oracle_fp32(call)
    assert all(same_bits(mine, right[name]) for mine, name in zip(found, right, strict=True))


INDEX = torch.zeros(2, dtype=torch.int32)
POOL = torch.zeros(4, 2, 256, dtype=torch.bfloat16)
GIVEN = {
    "tokens": torch.zeros(2, 3, dtype=torch.int32),
    "lengths": INDEX,
    "requests": INDEX,
    "req_to_slot": torch.zeros(1, 8, dtype=torch.int32),
    "k_pool": POOL,
    "v_pool": POOL,
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"v_pool": POOL[:3]}, r"k_pool and v_pool \[S, HKV, 256\] of one shape"),
        ({"tokens": torch.zeros(0, 3, dtype=torch.int32)}, "tokens is 0 x 3; allowed: 1 to 1024 rows"),
        ({"k_pool": POOL[:, :, :8], "v_pool": POOL[:, :, :8]}, r"heads are \(2, 8\); allowed: 1 or 2 or 4 x 256"),
        ({"tokens": torch.zeros(2, 3, dtype=torch.int64)}, "must be contiguous int32"),
        ({"lengths": torch.zeros(3, dtype=torch.int32)}, "lengths must have 2 elements"),
        ({"cu_seqlens_k": torch.zeros(2, dtype=torch.int32)}, "cu_seqlens_k must have 3 elements"),
        ({"k_pool": POOL.half(), "v_pool": POOL.half()}, "must be contiguous bfloat16"),
        ({"packed_k": POOL, "packed_v": POOL[:3]}, r"packed_k and packed_v must be \[N, HKV, 256\] of one shape"),
    ],
)
def test_the_kernel_refuses_by_itself(change: dict, words: str) -> None:
    """Lifted out of this project it still says what it cannot take."""
    with pytest.raises(ValueError, match=f"qsa_compact_kv_ranked: .*{words}"):
        ARM.module.compact_kv(**{**GIVEN, **change})


@pytest.mark.gpu
@pytest.mark.parametrize("kind", OP.cases.KINDS)
def test_the_gpu_has_the_bits_of_the_oracle(kind: str) -> None:
    """Both widths of the model with lengths at all edges."""
    assert is_right(OP.cases.synthesise(OP.cases.make_row("tp1", 8, kind, "mixed"), 3, "cuda"))


@pytest.mark.gpu
def test_slots_beyond_32_bits_of_offset() -> None:
    """A pool of more than 2^31 elements: rows of its last slots come through, not those their wrapped offsets name."""
    slots = (1 << 22) + 4096
    needed = 2 * slots * 2 * 256 * 2
    free = torch.cuda.mem_get_info()[0]
    if free < needed + (2 << 30):
        pytest.skip(f"needs {needed >> 30} GiB of GPU memory and 2 to spare; {free >> 30} are free")
    call = OP.cases.synthesise(OP.cases.make_row("tp1", 2, "holes", "short"), 3, "cuda")
    small = call.inputs["k_pool"].shape[0]
    pools = {}
    for name in ("k_pool", "v_pool"):
        pools[name] = torch.zeros(slots, 2, 256, dtype=torch.bfloat16, device="cuda")
        pools[name][slots - small :] = call.inputs[name]
    far = call.with_inputs(**pools, req_to_slot=call.inputs["req_to_slot"] + (slots - small))
    assert is_right(far)
