"""The single-pass candidate: right at the edges, in place, token by token, in 64-bit offsets."""

from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.kda_attn_residuals import cases, oracle
from kda_lab.ops.protocol import Call
from kda_lab.ops.registry import load_op
from kda_lab.verify import replay
from kda_lab.verify.launching import one_thread
from kda_lab.verify.metrics import rel_l2

OP = load_op("kda.attn_residuals")
FILE = Path(__file__).parents[3] / "notebooks" / "candidates" / "kda.attn_residuals" / "single_pass.py"
ARM = candidate_arm(FILE)
EDGES = cases.edge_calls(5)
SLOTS = 4_300_000
"""Of width 256: the third token begins beyond element 2^31 of the bank."""


def run(call: Call) -> torch.Tensor:
    """Output of one call on poisoned memory and restored streams."""
    call.restore()
    call.outputs["out"].fill_(float("nan"))
    ARM.bind([call])[0]()
    return call.outputs["out"]


def check(call: Call) -> None:
    """One call against the oracle: `out` within its rounding, bank and prefix exactly."""
    exact = oracle.oracle_fp64(call)
    assert rel_l2(run(call), exact["out"]) < 3e-3
    assert all(torch.equal(call.outputs[n], exact[n]) for n in ("bank", "prefix"))


@pytest.mark.parametrize("name", sorted(EDGES))
def test_it_is_right_at_the_edges(name: str) -> None:
    """No snapshot, equal rows, zeros, one dominant score, large and tiny rows, one slot, a full bank."""
    check(EDGES[name])


@pytest.mark.parametrize("few", [0, 2], ids=["streamed", "at_once"])
@pytest.mark.parametrize(("valid", "kind"), [(0, "add"), (3, "add_write"), (7, "write"), (8, "mix")])
def test_it_is_right_at_the_width_of_the_model(
    valid: int, kind: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7168 channels, of which the last tile is partly filled, by the kernel of many tokens and by that of few."""
    monkeypatch.setattr(ARM.module, "FEW_TOKENS", few)
    check(cases.synthesise(cases.rows((2,), (valid,), (kind,))[0], 1))


def test_more_rows_than_a_program_takes_at_once() -> None:
    """Nine snapshots are streamed, however few the tokens."""
    check(cases.synthesise(cases.rows((1,), (9,), ("write",), snapshots=10)[0], 1))


def test_a_token_of_nan_stays_alone_among_few() -> None:
    """The kernel of few tokens keeps a broken token to itself, and its masked rows out of the others."""
    call = cases.synthesise(cases.rows((3,), (3,), ("mix",))[0], 3)
    whole = run(call).clone()
    prefix, bank = call.inputs["prefix"].clone(), call.inputs["bank"].clone()
    prefix[1], bank[:, 3:] = float("nan"), float("nan")
    broken = run(cases.replaced(call, {"prefix": prefix, "bank": bank}))
    assert torch.equal(broken[[0, 2]], whole[[0, 2]])
    assert broken[1].isnan().all()


@settings(max_examples=12)
@given(
    tokens=st.integers(1, 9),
    valid=st.integers(0, 5),
    kind=st.sampled_from(sorted(cases.KINDS)),
    seed=st.integers(0, 99),
)
def test_it_is_right_for_any_shape(tokens: int, valid: int, kind: str, seed: int) -> None:
    """Any number of tokens shared out to the programs, of snapshots, and kind."""
    check(cases.synthesise(cases.rows((tokens,), (valid,), (kind,), 256, 6)[0], seed))


def test_it_passes_every_check_of_the_referee() -> None:
    """Poison, guards, repeated bits, changed contents, untouched slots: without a GPU."""
    call = cases.synthesise(cases.rows((7,), (5,), ("add_write",), 256)[0], 0)
    capture = SimpleNamespace(name="referee", kind="synthetic", call=call, pinned={}, sha256="0" * 64)
    with one_thread(torch.device("cpu")):
        done = replay(OP, ARM, capture, "cpu")
    assert done.failed == ()


def test_tokens_do_not_see_each_other() -> None:
    """A token gives the same bits alone as among others, and one of NaN leaves the next ones as they are."""
    call = cases.synthesise(cases.rows((5,), (3,), ("mix",), 256, 4)[0], 3)
    whole = run(call).clone()
    poisoned = call.inputs["prefix"].clone()
    poisoned[1] = float("nan")
    broken = run(cases.replaced(call, {"prefix": poisoned}))
    others = [0, 2, 3, 4]
    assert torch.equal(broken[others], whole[others])
    assert broken[1].isnan().all()
    parts = {n: call.inputs[n][2:3].clone() for n in ("bank", "prefix", "delta")}
    alone = replace(
        call.with_inputs(**parts),
        outputs={"out": whole[2:3].clone(), "bank": parts["bank"].clone(), "prefix": parts["prefix"].clone()},
    )
    assert torch.equal(run(alone)[0], whole[2])


def test_no_token_launches_nothing() -> None:
    """An empty batch returns its empty output."""
    empty = cases.synthesise(cases.rows((0,), (3,), ("add",), 256)[0], 0)
    assert run(empty).shape == (0, 256)


def untouched_memory(elements: int) -> torch.Tensor:
    """BF16 zeros that take no memory until they are written: 0x4000 is MAP_NORESERVE."""
    memory = mmap.mmap(-1, 2 * elements, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    return torch.frombuffer(memory, dtype=torch.bfloat16)


def test_offsets_pass_32_bits() -> None:
    """Tokens whose snapshots lie beyond 2^31 elements of a bank give what they give in a small one."""
    module, small = ARM.module, cases.synthesise(cases.rows((3,), (2,), ("write",), 256, 4)[0], 0)
    exact = run(small).clone()
    bank = untouched_memory(3 * SLOTS * 256).view(3, SLOTS, 256)
    bank[:, :4] = small.inputs["bank"]
    i, out = small.inputs, torch.full_like(exact, float("nan"))
    constants = module._constants(256, False, module.SCHEDULES_SM90[256, False])
    # The entry takes at most 64 snapshots; millions of them reach the same offsets with three tokens.
    tensors = (bank, i["prefix"], i["delta"], i["score_weight"], i["out_weight"], out)
    module._residual_kernel[(2,)](*tensors, 1e-6, 3, 2, SLOTS, 1, **constants)
    assert torch.equal(out, exact)
    assert torch.equal(bank[:, :4], small.outputs["bank"])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", sorted(cases.KINDS))
@pytest.mark.parametrize("tokens", [1, 5, 128, 129, 263, 264, 265, 2000])
def test_it_is_right_on_the_gpu(tokens: int, kind: str) -> None:
    """Around the number of programs and of few tokens, and well above, twice with the same bits."""
    for valid in (0, 1, 7, 8 - cases.KINDS[kind][1]):
        call = cases.synthesise(cases.rows((tokens,), (valid,), (kind,))[0], 1, "cuda")
        check(call)
        first = call.outputs["out"].clone()
        assert torch.equal(run(call), first)


@pytest.mark.gpu
def test_offsets_pass_32_bits_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bank of more than 2^31 elements of the model's width, which the kernel of many tokens serves."""
    tokens = 38_000
    # Else the few tokens that say what is right would come from the other kernel, whose last bits differ.
    monkeypatch.setattr(ARM.module, "FEW_TOKENS", 0)
    if torch.cuda.mem_get_info()[0] < 14e9:
        pytest.skip("needs 14 GB of free device memory")
    small = cases.synthesise(cases.rows((3,), (7,), ("add_write",))[0], 0, "cuda")
    exact = run(small).clone()
    bank = torch.zeros(tokens, 8, 7168, dtype=torch.bfloat16, device="cuda")
    prefix, delta = (torch.zeros(tokens, 7168, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    bank[-3:], prefix[-3:], delta[-3:] = (small.inputs[n] for n in ("bank", "prefix", "delta"))
    weights = (small.inputs["score_weight"], small.inputs["out_weight"])
    out = ARM.module.attn_residuals(bank, prefix, delta, *weights, **small.scalars)
    assert torch.equal(out[-3:], exact)
    assert torch.equal(bank[-3:], small.outputs["bank"])


def test_every_schedule_has_its_compile_unit() -> None:
    """Each width, with and without a delta, is compiled for every architecture that has a table."""
    module = ARM.module
    units = {
        (capability, u["constants"]["D"], u["constants"]["ADD"], u["num_warps"], u["constants"]["STAGES"])
        for u in module.CONTRACT["compile_units"]
        if u["function"] == "_residual_kernel"
        for capability in u["capabilities"]
    }
    for capability in ((9, 0), (12, 0), (12, 1)):
        for (width, add), schedule in module.schedules_for(capability).items():
            assert (capability, width, add, schedule.num_warps, schedule.num_stages) in units
    few = [u["constants"] for u in module.CONTRACT["compile_units"] if u["function"] == "_few_kernel"]
    assert few == [module._few_constants(7168, add) for add in (False, True)]


def test_programs_are_shared_out() -> None:
    """At most as many programs as tokens; one a token where the schedule says so."""
    module = ARM.module
    schedule = module.Schedule(programs_per_sm=2, num_warps=8, num_stages=4)
    cpu = torch.device("cpu")
    assert [module._programs(cpu, n, schedule) for n in (1, 2, 9)] == [1, 2, 2]
    assert module._programs(cpu, 9, replace(schedule, programs_per_sm=0)) == 9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bank": torch.zeros(2, 256).bfloat16()}, r"bank must be \[T, NB, D\], prefix, delta and out \[T, D\]"),
        ({"bank": torch.zeros(3, 4, 128).bfloat16()}, "D is 128; allowed: 256, 576, 640, 7168"),
        ({"bank": torch.zeros(3, 65, 256).bfloat16()}, "T and NB are 3 and 65; allowed: up to 1048576 and 1 to 64"),
        ({"valid": 4, "write_prefix": True}, "valid is 4; allowed: 0 to 3"),
        ({"prefix": torch.zeros(2, 256).bfloat16()}, r"prefix, delta and out must be \[3, 256\], the weights \[256\]"),
        ({"delta": torch.zeros(3, 256)}, "bank, prefix, delta and out must be bfloat16, the weights float32"),
        (
            {"delta": torch.zeros(3, 512).bfloat16()[:, ::2]},
            "every tensor must be contiguous and start on a multiple of 16",
        ),
    ],
    ids=["dims", "width", "slots", "valid", "rows", "dtype", "layout"],
)
def test_the_kernel_refuses_by_itself(change: dict[str, Any], words: str) -> None:
    """Lifted out of this project it still says what it cannot take, and writes nothing."""
    call = EDGES["no_snapshots"]
    tensors = {name: call.inputs[name] for name in OP.spec.tensors}
    given = {**tensors, **call.scalars, **change}
    positional = [given.pop(name) for name in OP.spec.tensors]
    with pytest.raises(ValueError, match=words):
        ARM.module.attn_residuals(*positional, **given)
