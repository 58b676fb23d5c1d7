"""The CUDA C++ candidates for verification: right on capture rows, one device code for ring and snapshots."""

from __future__ import annotations

import ast
import itertools
import re
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


def layout(module: ModuleType, tokens: int, keys: int, rows: int) -> dict[str, int]:
    """Names and values of `Cut` in the device code, worked out from its text."""
    text = re.search(r"struct Cut \{(.*?)\n\};", module.CUDA_SOURCE, re.DOTALL)[1]
    known = {"T": tokens, "K": keys, "ROWS": rows, "WARPS": module.THREADS // 32, "RING": module.RING}
    for name, value in re.findall(r"static constexpr \w+ (\w+) = (.*?);", text):
        python = re.sub(r"(.+) \? (.+) : (.+)", r"(\2) if \1 else (\3)", value.replace("/", "//").replace("&&", "and"))
        known[name] = eval(python, {}, known)
    return known


def regions(cut: dict[str, int]) -> list[tuple[int, int]]:
    """Where what is held at once begins and ends, in floats: the late rows come when keys, decays and v are done."""
    tokens, keys, rows = cut["T"], cut["K"], cut["ROWS"]
    held = [
        (0, (cut["WARPS"] - cut["LATE"]) * cut["MINE"] * keys),
        (cut["PRODUCTS_AT"], 2 * tokens * keys),
        (cut["PAIRS_AT"], 2 * tokens * cut["PITCH"]),
        (cut["STRENGTHS_AT"], tokens),
        (cut["BARRIERS_AT"], 2 * cut["WARPS"]),
        (cut["KEYS_AT"], tokens * keys),
        (cut["DECAYS_AT"], tokens * keys),
        (cut["VALUES_AT"], tokens * rows),
    ]
    return sorted((at, at + size) for at, size in held)


@pytest.mark.parametrize("module", MODULES, ids=["ring", "snapshots"])
def test_nothing_in_shared_memory_overlaps(module: ModuleType) -> None:
    """At every length, width and cut; all of it, the late rows too, lies within the bytes that the launch asks for."""
    for tokens, keys, values in itertools.product(range(1, module.MAX_TOKENS + 1), module.WIDTHS, module.WIDTHS):
        for rows in (32, 64, 128):
            cut = layout(module, tokens, keys, rows)
            held = regions(cut)
            assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(held)), (tokens, keys, rows)
            size = module.Variant(tokens, keys, values, rows, True, True, True).shared_bytes
            assert size == 4 * cut["SIZE"] >= 4 * max(held[-1][1], rows * keys)
            assert rows * keys <= cut["PRODUCTS_AT"]


def test_tokens_lie_where_late_rows_come_if_they_fit() -> None:
    """Lengths whose tokens do so, by width; never with snapshots, nor with fewer rows a CTA."""
    late = {k: [t for t in range(1, 17) if layout(RING, t, k, 128)["LATE"]] for k in RING.WIDTHS}
    assert late == {16: [], 32: [5], 48: [5, 6], **{k: [5, 6, 7, 8] for k in (64, 80, 96, 100, 128)}}
    assert not any(layout(RING, t, 128, 64)["LATE"] or layout(SNAPSHOTS, t, 128, 128)["LATE"] for t in range(1, 17))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": lambda t: t[..., :-1]}, r"a is \(2, 1, 199\); allowed: \(2, 1, 200\)"),
        ({"mixed_qkv": lambda t: t[..., :-1].contiguous()}, r"C is 231 with HV 2, V 16, K 100; allowed: 2·H·K"),
        ({"mixed_qkv": lambda t: t.float()}, "mixed_qkv is torch.float32; allowed: torch.bfloat16"),
        ({"state": lambda t: t.mT.contiguous().mT}, "state and conv_state must be contiguous within a slot"),
        ({"state_indices": lambda t: t.long()}, "state_indices is torch.int64; allowed: torch.int32"),
        ({"a": lambda t: t.to("meta")}, "all tensors must be on one device"),
        ({"a": lambda t: None, "b": lambda t: 1.0}, "a is NoneType; allowed: a tensor; b is float; allowed: a tensor"),
        ({"state": lambda t: t[..., :0].contiguous()}, "K and V are 0 and 16; allowed: 16, 32"),
        ({"state": lambda t: t[:, :, :0].contiguous()}, "K and V are 100 and 0; allowed: 16, 32"),
        ({"state": lambda t: t[:, :0].contiguous()}, "HV is 0; allowed: at least 1"),
        ({"mixed_qkv": lambda t: t[..., :32].contiguous()}, "C is 32 with HV 2, V 16, K 100; allowed: 2·H·K"),
    ],
    ids=["gate", "width", "dtype", "strides", "indices", "device", "none", "K0", "V0", "HV0", "H0"],
)
def test_the_kernel_refuses_by_itself(change: dict, words: str) -> None:
    """Lifted out of this project they still say what they cannot take."""
    call = OP.cases.synthesise(ROWS[2], 0)
    call = call.with_inputs(**{n: change.get(n, lambda t: t)(t) for n, t in call.inputs.items()})
    for module in MODULES:
        with pytest.raises(ValueError, match=words):
            run(module, call)


@pytest.mark.parametrize("bound", [0.0, 3.0, -5.5, float("nan"), float("-inf")])
def test_bounds_outside_the_gate_are_refused(bound: float) -> None:
    """The safe gate has a bound from -5 to below 0."""
    call = OP.cases.synthesise(ROWS[2], 0)
    for module, entry in ((RING, RING.verify_ring), (SNAPSHOTS, SNAPSHOTS.verify_snapshots)):
        with pytest.raises(ValueError, match=r"lower_bound is .*; allowed: None, or -5\.0 <= lower_bound < 0"):
            entry(*call.inputs.values(), lower_bound=bound)
        assert module.CONTRACT["scalars"]["lower_bound"]["maximum"] < 0


def shifted(t: torch.Tensor) -> torch.Tensor:
    """The same values one element behind an aligned address."""
    room = torch.empty(t.numel() + 1, dtype=t.dtype)
    return room[1:].view(t.shape).copy_(t)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t[..., :-1].contiguous(), r"is \(.*\) torch\.\w+; allowed: \(.*\) torch\.\w+, contiguous, aligned"),
        (lambda t: t.double(), r"is \(.*\) torch\.float64; allowed"),
        (lambda t: t[:1].expand(t.shape), "is .*, contiguous, aligned"),
        (shifted, "is .*, contiguous, aligned"),
        (lambda t: t.to("meta"), "is on meta; allowed: cpu, as the inputs"),
        (lambda t: 1.0, "is float; allowed: a tensor, or None"),
    ],
    ids=["shape", "dtype", "strides", "alignment", "device", "number"],
)
def test_an_output_that_does_not_fit_is_refused(change: Callable, words: str) -> None:
    """A buffer that was given must fit: each output of both ops."""
    for module, op in ((RING, "verify_ring"), (SNAPSHOTS, "verify_snapshots")):
        call = load_op(f"kda.{op}").cases.synthesise(ROWS[0], 0)
        for name, tensor in call.outputs.items():
            if name == "ring_beta" and change is shifted:
                continue  # stored a number at a time
            with pytest.raises(ValueError, match=f"{name} {words}"):
                getattr(module, op)(*call.inputs.values(), **call.scalars, **{name: change(tensor)})


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
