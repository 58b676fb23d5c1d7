"""The candidate that reads the pool itself: right at the edges, in 64-bit offsets, and at rest between calls."""

from __future__ import annotations

import mmap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_paged_decode import cases, oracle
from kda_lab.ops.registry import load_op
from kda_lab.verify import replay
from kda_lab.verify.launching import one_thread
from kda_lab.verify.metrics import rel_l2

OP = load_op("qsa.paged_decode")
FILE = Path(__file__).parents[3] / "notebooks" / "candidates" / "qsa.paged_decode" / "direct.py"
DIRECT = candidate_arm(FILE)
SLOTS = 4_300_032
"""Of 2 x 256 elements each: more than 2^31 of them from slot 4,194,304 on."""


def run(call: Call) -> torch.Tensor:
    """Output of one call on poisoned memory."""
    call.outputs["out"].fill_(float("nan"))
    DIRECT.bind([call])[0]()
    return call.outputs["out"]


@pytest.mark.parametrize(
    ("counts", "kind", "heads"),
    [
        ((0, 65, 0), "mixed", (24, 2)),
        ((6, 72), "draft", (24, 2)),
        ((2055,), "draft", (12, 1)),
        ((64, 65), "verify", (12, 1)),
    ],
    ids=["empty", "holes", "full", "shared"],
)
def test_it_is_right(counts: tuple[int, ...], kind: str, heads: tuple[int, int]) -> None:
    """Empty rows, holes, all 2055 columns, and rows of one request across the end of a page."""
    call = cases.drawn("direct", heads, counts, kind, 3)
    assert rel_l2(run(call), oracle.oracle_fp32(call)["out"]) < 3e-3


@settings(max_examples=5)
@given(seed=st.integers(0, 99), width=st.integers(5, 90))
def test_holes_may_stand_anywhere(seed: int, width: int) -> None:
    """Any columns of any width: the answer is that of the valid tokens."""
    call = cases.drawn("anywhere", (12, 1), (5, 33), "short", seed)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(-3, 45, (2, width), generator=generator).to(torch.int32)
    filled = call.with_inputs(
        tokens=tokens, k_pool=call.inputs["k_pool"].nan_to_num(0.5), v_pool=call.inputs["v_pool"].nan_to_num(0.25)
    )
    assert rel_l2(run(filled), oracle.oracle_fp32(filled)["out"]) < 5e-3


def test_empty_rows_are_zero_and_single_tokens_their_value() -> None:
    """No valid token: zero bits. One: the bits of its V row for every head of the group."""
    call = cases.drawn("single", (24, 2), (1, 0, 1), "mixed", 0)
    out, slots = run(call).view(3, 2, 12, 256), oracle.geometry(call).slots
    assert torch.count_nonzero(out[1]) == 0
    for b in (0, 2):
        assert torch.equal(out[b], call.inputs["v_pool"][slots[b][0]][:, None].expand(2, 12, 256))


def test_it_passes_every_check_of_the_referee() -> None:
    """Poison, guards, repeated bits, changed selections, state: on rows with holes, without a GPU."""
    call = cases.drawn("referee", (12, 1), (6, 40), "draft", 0)
    capture = SimpleNamespace(name="holes", kind="synthetic", call=call, pinned={}, sha256="0" * 64)
    with one_thread(torch.device("cpu")):
        done = replay(OP, DIRECT, capture, "cpu")
    assert done.failed == ()


def in_large_pool(call: Call, k_pool: torch.Tensor, v_pool: torch.Tensor) -> Call:
    """The call with its slots moved to the end of larger pools."""
    small = call.inputs["k_pool"].shape[0]
    first = k_pool.shape[0] - small
    k_pool[first:], v_pool[first:] = call.inputs["k_pool"], call.inputs["v_pool"]
    return call.with_inputs(k_pool=k_pool, v_pool=v_pool, req_to_slot=call.inputs["req_to_slot"] + first)


def untouched_memory(slots: int) -> torch.Tensor:
    """[slots, 2, 256] bf16 of zeros that takes no memory until it is written: 0x4000 is MAP_NORESERVE."""
    size = slots * 2 * 256 * 2
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    return torch.frombuffer(memory, dtype=torch.bfloat16).view(slots, 2, 256)


def test_offsets_pass_32_bits() -> None:
    """Slots above 4,194,304 lie beyond 2^31 elements of a pool: the same answer as from a small pool."""
    small = cases.drawn("large", (24, 2), (6, 40), "draft", 0)
    call = in_large_pool(small, untouched_memory(SLOTS), untouched_memory(SLOTS))
    assert min(int(slots.min()) for slots in oracle.geometry(call).slots) > 4_194_304
    assert torch.equal(run(call), run(small))


@pytest.mark.gpu
def test_offsets_pass_32_bits_on_the_gpu() -> None:
    """The same on the device, for the candidate and the baselines that read the pool by slots."""
    device = torch.device("cuda", 0)
    wanted = 3 * SLOTS * 2 * 256 * 2
    if torch.cuda.mem_get_info(device)[0] < wanted:
        pytest.skip(f"needs {wanted / 1e9:.0f} GB of free device memory")
    small = cases.drawn("large", (24, 2), (6, 300, 2055, 0), "draft", 0, device)
    pools = [torch.zeros(SLOTS, 2, 256, dtype=torch.bfloat16, device=device) for _ in "kv"]
    call = in_large_pool(small, *pools)
    right = oracle.oracle_fp32(small)["out"]
    for arm in (DIRECT, *OP.baselines.ARMS[:3]):
        if not arm.unavailable(device):
            call.outputs["out"].fill_(float("nan"))
            arm.bind([call])[0]()
            assert rel_l2(call.outputs["out"], right) < 5e-3, arm.name


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 3, 12, 16, 32, 128])
@pytest.mark.parametrize("topology", ["tp1", "tp2"])
def test_it_is_right_on_the_gpu(topology: str, batch: int) -> None:
    """Every schedule, on rows with holes and on mixed rows; twice with the same bits; counters at rest."""
    for kind in ("draft", "mixed"):
        call = cases.synthesise(cases.rows([topology], [batch], [kind])[0], 1, "cuda")
        first = run(call).clone()
        assert rel_l2(first, oracle.oracle_fp32(call)["out"]) < 5e-3
        assert torch.equal(run(call), first)
    assert not any(int(state.count_nonzero()) for state in DIRECT.state_tensors().values())


def test_the_counters_are_zero_after_every_call() -> None:
    """Whatever was launched, no row is left half counted, and a reset is allowed at rest."""
    run(cases.drawn("state", (12, 1), (300, 5), "short", 0))
    assert {name: int(t.count_nonzero()) for name, t in DIRECT.state_tensors().items()} == {"count[cpu:None:0]": 0}
    DIRECT.module.reset_state()


def test_every_schedule_is_reached_and_fits_its_table() -> None:
    """Each launch size finds a schedule; each schedule of both tables serves some launch."""
    module = DIRECT.module
    for capability in ((9, 0), (12, 0), (12, 1)):
        used = {module.schedule_for(rows, capability) for rows in range(1, 257)}
        assert used == {schedule for _, schedule in module.schedules_for(capability)}
    assert all(most * s.splits <= module.MOST_PARTIALS for most, s in module.SCHEDULES_SM90 if s.splits > 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": torch.zeros(2, 4)}, r"q must be \[B, HQ, 256\]"),
        (
            {"q": torch.zeros(2, 16, 256).bfloat16()},
            r"heads and width are \(16, 256\) and \(1, 256\); allowed: \(24, 2\)",
        ),
        ({"q": torch.zeros(0, 12, 256).bfloat16()}, "B is 0; allowed: 1 to 128"),
        ({"q": torch.zeros(2, 12, 256)}, "q, k_pool and v_pool must be contiguous bfloat16"),
        ({"lengths": torch.zeros(2)}, "tokens, lengths, requests and req_to_slot must be contiguous int32"),
        ({"requests": torch.zeros(3, dtype=torch.int32)}, "must have 2 rows, those of q"),
        ({"tokens": torch.zeros(2, 2056, dtype=torch.int32)}, "W is 2056; allowed: 1 to 2055"),
    ],
    ids=["dims", "heads", "batch", "dtype", "indices", "rows", "width"],
)
def test_the_kernel_refuses_by_itself(change: dict, words: str) -> None:
    """Lifted out of this project it still says what it cannot take."""
    call = cases.drawn("refused", (12, 1), (3, 4), "short", 0).with_inputs(**change)
    with pytest.raises(ValueError, match=words):
        DIRECT.module.paged_decode(*(call.inputs[name] for name in OP.spec.tensors))
