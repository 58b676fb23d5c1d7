"""The CUDA C++ candidates for verification: right on capture rows, one device code for ring and snapshots."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.kda.verify_cases import with_gaps
from kda_lab.ops.protocol import Call, Row
from kda_lab.ops.registry import load_op
from kda_lab.verify import replay
from kda_lab.verify.launching import one_thread

CANDIDATES = Path(__file__).parents[3] / "notebooks" / "candidates"
FILES = {op: CANDIDATES / f"kda.{op}" / "staged.py" for op in ("verify_ring", "verify_snapshots")}
OP = load_op("kda.verify_ring")
ROWS = OP.cases.capture_rows()
RING, SNAPSHOTS = (candidate_arm(path).module for path in FILES.values())
MODULES = (RING, SNAPSHOTS)
SM_BYTES, RESERVED_BYTES = 228 * 1024, 1024


def long_row(op: str, tokens: int, lower_bound: float | None) -> Row:
    """A row of the model's widths with grouped heads, padding and free strides."""
    axes = {"HV": 4, "H": 2, "K": 128, "V": 128, "B": 3, "T": tokens, "lower_bound": lower_bound, "wide": True}
    return Row(op, f"long-T{tokens}-{lower_bound}", axes)


def run(module: ModuleType, call: Call) -> tuple[torch.Tensor, ...]:
    """Outputs of a candidate on a call's inputs, allocated by it."""
    entry = module.verify_ring if module.RING else module.verify_snapshots
    return entry(*call.inputs.values(), **call.scalars)


@pytest.fixture(params=[32, 64, 128])
def rows_of_a_cta(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Forces how many value rows a CTA has."""
    for module in MODULES:
        monkeypatch.setattr(module, "rows_for", lambda slots, tokens, values: request.param)
    return request.param


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_it_passes_every_check_of_the_referee(row: Row) -> None:
    """Poison, guards, repeated bits, other tokens and slots: on both gates, padding, free strides, FP32 weights."""
    call = OP.cases.synthesise(row, 0)
    capture = SimpleNamespace(name="ring", kind="synthetic", call=call, pinned={}, sha256="0" * 64)
    with one_thread(torch.device("cpu")):
        assert replay(OP, candidate_arm(FILES["verify_ring"]), capture, "cpu").failed == ()


@pytest.mark.parametrize("lower_bound", [-5.0, None], ids=["safe", "softplus"])
def test_the_unrolled_sums_stay_exact_over_sixteen_tokens(
    lower_bound: float | None, is_right: Callable[..., bool]
) -> None:
    """The longest draft, on both gates: no decay is divided by, so none is too small."""
    for module, op in ((RING, "kda.verify_ring"), (SNAPSHOTS, "kda.verify_snapshots")):
        call = load_op(op).cases.synthesise(long_row(op, 16, lower_bound), 0)
        assert is_right(call, dict(zip(call.outputs, run(module, call), strict=True)))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_ring_and_snapshots_give_the_same_bits(row: Row) -> None:
    """Outputs and windows have equal bits with either."""
    call = OP.cases.synthesise(row, 0)
    assert all(torch.equal(a, b) for a, b in zip(run(RING, call)[:2], run(SNAPSHOTS, call)[:2], strict=True))


def test_both_device_codes_are_the_same_but_for_one_line() -> None:
    """The line that says which of the two a file is."""
    ring, snapshots = (path.with_suffix(".cu").read_text().splitlines() for path in FILES.values())
    differing = [pair for pair in zip(ring, snapshots, strict=True) if pair[0] != pair[1]]
    told = "constexpr bool RING = {};  // else a snapshot of the state after each token"
    assert differing == [(told.format("true"), told.format("false"))]


def test_both_host_codes_are_the_same_but_for_entry_and_declaration() -> None:
    """Every function and class but the entry is the same text."""

    def parts(path: Path) -> list[str]:
        kinds = (ast.FunctionDef, ast.ClassDef)
        nodes = [n for n in ast.parse(path.read_text()).body if isinstance(n, kinds)]
        return [ast.unparse(n) for n in nodes if not n.name.startswith("verify_")]

    assert parts(FILES["verify_ring"]) == parts(FILES["verify_snapshots"])
    assert RING.RING and not SNAPSHOTS.RING


def test_a_cta_has_the_rows_that_fill_the_gpu() -> None:
    """Few heads share their rows among CTAs, and no CTA has many more than there are."""
    assert [RING.rows_for(slots, 8, 128) for slots in (12, 48, 96, 256, 384)] == [32, 32, 64, 64, 128]
    assert [RING.rows_for(12_288, 4, values) for values in (16, 32, 48, 80)] == [32, 32, 64, 128]


def variants(module: ModuleType) -> Iterator[Any]:
    """All lengths and cuts at the model's widths."""
    for tokens in range(1, 17):
        for rows in (32, 64, 128):
            yield module.Variant(tokens, 128, 128, rows, True, True, True)


def test_three_ctas_of_a_whole_head_share_an_sm() -> None:
    """With a ring up to eight tokens, with snapshots up to four; every cut fits."""
    for module, most in ((RING, 8), (SNAPSHOTS, 4)):
        for variant in variants(module):
            ctas = 3 if variant.tokens <= most or variant.rows < 128 else 1
            assert ctas * (variant.shared_bytes + RESERVED_BYTES) <= SM_BYTES


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": lambda t: t[..., :-1]}, r"a is \(2, 1, 199\); allowed: \(2, 1, 200\)"),
        ({"mixed_qkv": lambda t: t[..., :-1].contiguous()}, r"C is 231 with HV 2, V 16, K 100; allowed: 2·H·K"),
        ({"mixed_qkv": lambda t: t.float()}, "mixed_qkv is torch.float32; allowed: torch.bfloat16"),
        ({"state": lambda t: t.mT.contiguous().mT}, "state and conv_state must be contiguous within a slot"),
        ({"state_indices": lambda t: t.long()}, "state_indices is torch.int64; allowed: torch.int32"),
    ],
    ids=["gate", "width", "dtype", "strides", "indices"],
)
def test_the_kernel_refuses_by_itself(change: dict, words: str) -> None:
    """Lifted out of this project it still says what it cannot take."""
    call = OP.cases.synthesise(ROWS[2], 0)
    tensors = {n: change.get(n, lambda t: t)(t) for n, t in call.inputs.items()}
    with pytest.raises(ValueError, match=words):
        RING.verify_ring(*tensors.values(), **call.scalars)


def test_an_output_of_another_shape_is_refused() -> None:
    """A buffer that was given must fit."""
    call = OP.cases.synthesise(ROWS[2], 0)
    with pytest.raises(ValueError, match=r"out is \(2, 1, 16, 2\) torch.bfloat16; allowed: \(2, 1, 2, 16\)"):
        RING.verify_ring(*call.inputs.values(), **call.scalars, out=call.outputs["out"].mT.contiguous())


def test_strides_choose_the_loads() -> None:
    """Rows that begin at any element are loaded element by element; the values are the same."""
    call = OP.cases.synthesise(ROWS[0], 0)
    odd = call.with_inputs(**{n: with_gaps(call.inputs[n].contiguous(), 3) for n in ("mixed_qkv", "a")})
    assert RING._wide(call.inputs) and not RING._wide(odd.inputs)
    assert all(torch.equal(a, b) for a, b in zip(run(RING, call), run(RING, odd), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("lower_bound", [-5.0, None], ids=["safe", "softplus"])
@pytest.mark.parametrize("tokens", [*range(1, 9), 16])
def test_the_kernel_is_right_on_the_gpu(
    tokens: int, lower_bound: float | None, rows_of_a_cta: int, is_right: Callable[..., bool]
) -> None:
    """Every length and gate, whatever rows a CTA has, with equal bits of ring and snapshots."""
    found = []
    for module, op in ((RING, "kda.verify_ring"), (SNAPSHOTS, "kda.verify_snapshots")):
        call = load_op(op).cases.synthesise(long_row(op, tokens, lower_bound), 0, "cuda")
        found.append(dict(zip(call.outputs, run(module, call), strict=True)))
        assert is_right(call, found[-1])
    # Both ops draw contents of their own: the second kernel runs the first one's too.
    call = OP.cases.synthesise(long_row("kda.verify_ring", tokens, lower_bound), 0, "cuda")
    assert all(torch.equal(a, b) for a, b in zip(run(SNAPSHOTS, call)[:2], found[0].values(), strict=False))


@pytest.mark.gpu
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_capture_rows_are_right_on_the_gpu(row: Row, is_right: Callable[..., bool]) -> None:
    """Other widths, padding, one token, FP32 weights; rows that begin at any element give the same bits."""
    call = OP.cases.synthesise(row, 0, "cuda")
    found = run(RING, call)
    assert is_right(call, dict(zip(call.outputs, found, strict=True)))
    odd = call.with_inputs(**{n: with_gaps(call.inputs[n].contiguous(), 3) for n in ("mixed_qkv", "a")})
    assert all(torch.equal(a, b) for a, b in zip(found, run(RING, odd), strict=True))


@pytest.mark.gpu
def test_rows_of_a_cta_change_no_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """However a head is cut, its sums run in one order."""
    call = OP.cases.make_sets(OP.cases.rows((12,), (8,), (4,))[0], 1, 0, "cuda")[0]
    found = []
    for rows in (32, 64, 128):
        monkeypatch.setattr(RING, "rows_for", lambda slots, tokens, values, rows=rows: rows)
        found.append(run(RING, call))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))
