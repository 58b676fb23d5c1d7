"""The candidate with a ring: right on every capture row, and the same bits as the one with snapshots."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.protocol import Row
from kda_lab.ops.registry import load_op
from kda_lab.verify import replay
from kda_lab.verify.launching import one_thread

CANDIDATES = Path(__file__).parents[3] / "notebooks" / "candidates"
FILES = {op: CANDIDATES / f"kda.{op}" / "streamed.py" for op in ("verify_ring", "verify_snapshots", "fold")}
OP = load_op("kda.verify_ring")
ROWS = OP.cases.capture_rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_it_passes_every_check_of_the_referee(row: Row, smaller: Callable[[Row], Row]) -> None:
    """Poison, guards, repeated bits, other tokens and slots: on both gates, padding, free strides, FP32 weights."""
    call = OP.cases.synthesise(smaller(row), 0)
    capture = SimpleNamespace(name="ring", kind="synthetic", call=call, pinned={}, sha256="0" * 64)
    with one_thread(torch.device("cpu")):
        assert replay(OP, candidate_arm(FILES["verify_ring"]), capture, "cpu").failed == ()


@pytest.mark.parametrize("row", ROWS[:2], ids=lambda row: row.label)
def test_ring_and_snapshots_give_the_same_bits_and_a_fold_is_the_snapshot(
    row: Row, smaller: Callable[[Row], Row]
) -> None:
    """Outputs and windows have equal bits with either; a fold of any prefix has the bits of its snapshot."""
    call = OP.cases.synthesise(smaller(row), 0)
    ring, snapshots, fold = (candidate_arm(path).module for path in FILES.values())
    tensors = list(call.inputs.values())
    out, windows, *held = ring.verify_ring(*tensors, **call.scalars)
    out_s, windows_s, states = snapshots.verify_snapshots(*tensors, **call.scalars)
    assert torch.equal(out, out_s)
    assert torch.equal(windows, windows_s)
    index = call.inputs["state_indices"]
    for n in range(out.shape[1] + 1):
        pool = call.inputs["state"].clone()[None]
        fold.fold(*(t[None] for t in held), pool, index, torch.full_like(index, n))
        for b, slot in enumerate(index.tolist()):
            if slot >= 0:
                assert torch.equal(pool[0, slot], states[b, n - 1] if n else call.inputs["state"][slot])


def test_both_candidates_hold_the_same_device_code() -> None:
    """Every compiled function and tunable of the two files is the same text, but for which outputs are on."""

    def parts(path: Path) -> list[str]:
        nodes = ast.parse(path.read_text()).body
        compiled = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.decorator_list]
        constants = [n for n in nodes if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)]
        return [ast.unparse(n) for n in (*compiled, *constants)]

    assert parts(FILES["verify_ring"]) == parts(FILES["verify_snapshots"])
    assert any("_verify_kernel" in part for part in parts(FILES["verify_ring"]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": lambda t: t[..., :-1]}, r"a is \(2, 1, 199\); allowed: \(2, 1, 200\)"),
        ({"mixed_qkv": lambda t: t[..., :-1].contiguous()}, r"C is 231 with HV 2, V 16, K 100; allowed: 2·H·K"),
        ({"b": lambda t: t.mT.contiguous().mT.expand(2, 1, 2)[..., :1]}, r"b is \(2, 1, 1\); allowed: \(2, 1, 2\)"),
        ({"state": lambda t: t.mT.contiguous().mT}, "state and conv_state must be contiguous within a slot"),
    ],
    ids=["gate", "width", "strength", "strides"],
)
def test_the_kernel_refuses_by_itself(change: dict, words: str) -> None:
    """Lifted out of this project it still says what it cannot take."""
    call = OP.cases.synthesise(ROWS[2], 0)
    tensors = {n: change.get(n, lambda t: t)(t) for n, t in call.inputs.items()}
    with pytest.raises(ValueError, match=words):
        candidate_arm(FILES["verify_ring"]).module.verify_ring(*tensors.values(), **call.scalars)


@pytest.mark.gpu
def test_the_bits_agree_on_the_gpu() -> None:
    """Ring and snapshots give equal bits on a row of the model's heads."""
    call = OP.cases.make_sets(OP.cases.rows((12,), (8,), (4,))[0], 1, 0, "cuda")[0]
    ring, snapshots = (candidate_arm(FILES[n]).module for n in ("verify_ring", "verify_snapshots"))
    with_ring = ring.verify_ring(*call.inputs.values(), **call.scalars)
    with_snapshots = snapshots.verify_snapshots(*call.inputs.values(), **call.scalars)
    assert all(torch.equal(a, b) for a, b in zip(with_ring[:2], with_snapshots[:2], strict=True))
