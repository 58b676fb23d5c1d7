"""The arm of compressed keys, and the candidate in the interpreter: right on every edge, judged by the referee."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.protocol import Arm, Call
from kda_lab.ops.qsa_compress_keys import baselines, cases, oracle
from kda_lab.ops.registry import load_op
from kda_lab.verify import replay
from kda_lab.verify.launching import one_thread
from kda_lab.verify.metrics import element_max

FUSED = candidate_arm(Path(__file__).parents[3] / "notebooks" / "candidates" / "qsa.compress_keys" / "fused.py")
ARMS: tuple[Arm, ...] = (*baselines.ARMS, FUSED)
EDGES = cases.edge_calls(7)


def is_right(arm: Arm, call: Call) -> bool:
    """Whether every element lies within its allowance after a launch on poisoned outputs."""
    for name, fill in (("entries", float("nan")), ("entry_slots", -7), ("new_ring", float("nan"))):
        call.outputs[name].fill_(fill)
    arm.bind([call])[0]()
    exact = oracle.oracle_fp64(call)
    allowed = oracle.allowance(call, exact)
    return all(element_max(call.outputs[n], exact[n], allowed[n]) <= 1 for n in exact)


def test_the_speed_baseline() -> None:
    """Ratios divide by the torch function that serves where no kernel does."""
    assert [arm.name for arm in baselines.ARMS] == ["torch_gathered"]


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
@pytest.mark.parametrize("name", sorted(EDGES))
def test_arm_is_right_at_the_edges(arm: Arm, name: str) -> None:
    """First tokens, steps that complete nothing, padding alone, zeros, tiny keys, three rotary widths."""
    assert is_right(arm, cases.with_guard_rows(EDGES[name], 4))


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_arm_passes_the_referee(arm: Arm) -> None:
    """Every check on a mixed step, a later step included."""
    call = cases.synthesise(cases.rows((), (), (), (12,))[0], 3)
    capture = SimpleNamespace(name="mixed", kind="synthetic", call=call, pinned={}, sha256="0")
    with one_thread(torch.device("cpu")):
        assert replay(load_op("qsa.compress_keys"), arm, capture, "cpu").failed == ()


@settings(max_examples=8)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 7)), min_size=1, max_size=3), st.integers(0, 2))
def test_the_kernel_follows_any_step(spans: list[tuple[int, int]], padding: int) -> None:
    """Requests in any order, at any position, with any number of tokens."""
    parts = [(2 - r, first, count) for r, (first, count) in enumerate(spans)]
    generator = cases._generator("any", padding, "cpu")
    assert is_right(FUSED, cases._of_step("any", (parts, padding), (4, 64), "test", generator))


def test_a_long_step_is_scanned_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose last token lies beyond the first blocks of the scan still fills its ring."""
    monkeypatch.setattr(FUSED.module, "BLOCK_SCAN", 8)
    parts = [(1, 0, 19), (0, 5, 2)]
    assert is_right(FUSED, cases._of_step("long", (parts, 1), (3, 32), "test", cases._generator("long", 0, "cpu")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k_raw": torch.zeros(1, 2, 128).bfloat16()}, r"k_raw must be \[T, 128\]"),
        ({"ring": torch.zeros(6, 8, 128).bfloat16()}, r"ring is \(6, 8, 128\); allowed: \[R, 4, 128\]"),
        ({"requests": torch.zeros(5, dtype=torch.int32)}, r"T is 4; allowed: 1 to 1048576, the same for requests"),
        ({"cos_sin": torch.zeros(9, 96)}, r"W is 96; allowed: 32, 64, 128"),
        ({"weight": torch.zeros(128)}, r"k_raw, ring and weight must be bfloat16, cos_sin float32"),
        ({"slots": torch.zeros(4, dtype=torch.int32)}, r"requests and positions must be int32, slots int64"),
        ({"cos_sin": torch.zeros(64, 9).t()[:, ::2]}, r"every tensor must be contiguous"),
    ],
    ids=["rank", "ratio", "extent", "rotary", "fp32", "int32", "strided"],
)
def test_the_kernel_refuses_by_itself(change: dict[str, torch.Tensor], message: str) -> None:
    """Lifted out of this project it still says what it cannot take."""
    tensors = {**EDGES["first_group"].inputs, **change}
    with pytest.raises(ValueError, match=message):
        FUSED.module.compress_keys(*tensors.values())


def test_the_kernel_allocates_its_outputs() -> None:
    """Without buffers the three outputs come in new ones, with the default epsilon."""
    call = EDGES["first_group"]
    exact = oracle.oracle_fp64(call)
    entries, places, ring = FUSED.module.compress_keys(*call.inputs.values())
    assert element_max(entries, exact["entries"], oracle.allowance(call, exact)["entries"]) <= 1
    assert torch.equal(places, exact["entry_slots"])
    assert torch.equal(ring, exact["new_ring"])
