"""The arms: values, strided results, the side stream's order, and what reads strided rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.protocol import Call
from kda_lab.projection import arms
from kda_lab.projection.arms import OUTPUTS, CudaSideStream, Projected, SideRule
from kda_lab.projection.sizes import K3, SMALL, splits
from kda_lab.projection.weights import draw, fuse_low_rank
from kda_lab.verify.metrics import rel_l2

SIZE = splits(4, SMALL)
FUSED = draw(SIZE, 1)
X = torch.randn(5, SMALL.hidden, generator=torch.Generator().manual_seed(2)).bfloat16()
CANDIDATES = Path(__file__).parents[2] / "notebooks" / "candidates" / "kda.packed_decode"


class LoggedSide:
    """A side stream that keeps a log, and on which everything runs at once."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def fork(self) -> None:
        self.log.append("fork")

    @contextmanager
    def on_side(self) -> Iterator[None]:
        self.log.append("side begins")
        yield
        self.log.append("side ends")

    def join(self) -> None:
        self.log.append("join")


def close(given: Projected, right: Projected) -> None:
    """Every result within BF16 rounding."""
    for name in OUTPUTS:
        assert rel_l2(getattr(given, name), getattr(right, name)) < 5e-3, name


@pytest.mark.parametrize("tokens", [1, 5])
def test_both_arms_compute_the_products(tokens: int) -> None:
    """Five GEMMs and three against FP64."""
    x, right = X[:tokens], arms.exact(X[:tokens], FUSED.five)
    close(arms.five(x, FUSED.five), right)
    close(arms.three(x, FUSED), right)


def test_fused_results_are_views_with_row_strides() -> None:
    """qkv and gate share rows of 4P, b has the padded row; no element is copied."""
    found = arms.three(X, FUSED)
    assert (found.qkv.stride(), found.gate.stride()) == ((4 * SIZE.projection, 1), (4 * SIZE.projection, 1))
    assert found.gate.data_ptr() == found.qkv.data_ptr() + 2 * SIZE.qkv
    assert found.b.stride() == (SIZE.padded_bfa, 1)
    assert (found.qkv.shape, found.gate.shape, found.b.shape, found.a.shape) == ((5, 192), (5, 64), (5, 8), (5, 64))


def test_rows_that_pad_the_small_weight_are_not_read() -> None:
    """Garbage in the padding changes no result."""
    size = splits(2, replace(SMALL, rank=12))
    fused = draw(size, 3)
    before = arms.three(X, fused)
    fused.bfa.buffer[size.bfa :] = 1e4
    after = arms.three(X, fused)
    assert size.padded_bfa > size.bfa
    assert all(torch.equal(getattr(before, n), getattr(after, n)) for n in OUTPUTS)


def test_a_capture_forks_and_joins_around_the_small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The side waits, the large product is enqueued first, the small ones on the side, then the main stream waits."""
    side, real = LoggedSide(), arms.linear
    monkeypatch.setattr(arms, "linear", lambda x, w: side.log.append(f"gemm {len(w)}") or real(x, w))
    found = arms.three_side(X, FUSED, SideRule(side, 64, lambda: True))
    assert side.log == ["fork", "gemm 256", "side begins", "gemm 24", "gemm 64", "side ends", "join"]
    monkeypatch.undo()
    serial = arms.three(X, FUSED)
    assert all(torch.equal(getattr(found, n), getattr(serial, n)) for n in OUTPUTS)


@pytest.mark.parametrize(
    ("tokens", "capturing", "limit"), [(5, False, 64), (5, True, 4), (0, True, 64)], ids=["eager", "wide", "empty"]
)
def test_otherwise_the_side_stream_is_not_touched(tokens: int, capturing: bool, limit: int) -> None:
    """An eager call, more tokens than the limit, no token: the serial branch, and no event on the side stream."""
    side = LoggedSide()
    found = arms.three_side(X[:tokens], FUSED, SideRule(side, limit, lambda: capturing))
    assert side.log == []
    assert found.qkv.shape == (tokens, SIZE.qkv)


def test_without_a_side_stream_it_is_the_serial_arm() -> None:
    """No stream was made: nothing to fork."""
    rule = SideRule(None, 64, lambda: True)
    assert not rule.applies(1)
    close(arms.three_side(X, FUSED, rule), arms.exact(X, FUSED.five))


def test_nothing_captures_on_a_cpu() -> None:
    """The default answer where there is no CUDA."""
    if not torch.cuda.is_available():
        assert arms.capturing() is False


def test_the_low_rank_form_gives_both_gates() -> None:
    """One GEMM and a batch of two: a of the decay gate, gate of the output gate, in this order."""
    other = draw(SIZE, 9)
    q, k, v = FUSED.five.qkv.chunk(3)
    made = fuse_low_rank((q, k, v, FUSED.bfa.b), (FUSED.bfa.f_a, other.bfa.f_a), (FUSED.f_b, other.f_b))
    right = replace(arms.exact(X, FUSED.five), gate=arms.exact(X, other.five).a)
    close(arms.low_rank(X, made), right)


def decode(arm: Any, found: dict[str, torch.Tensor], heads: int, width: int) -> dict[str, torch.Tensor]:
    """Results of one packed decode of five requests with K = V = `width` on states drawn anew, the same ones."""
    draw_state = torch.Generator().manual_seed(7)
    state = torch.randn(6, heads, width, width, generator=draw_state)
    inputs = {
        **found,
        "a_log": 0.2 * torch.randn(heads, generator=draw_state),
        "dt_bias": 0.1 * torch.randn(heads * width, generator=draw_state),
        "state": state,
        "state_indices": torch.tensor([3, 0, 5, 1, 2], dtype=torch.int32),
    }
    outputs = {"out": torch.full((5, 1, heads, width), float("nan")).bfloat16(), "state": state.clone()}
    arm.bind([Call("kda.packed_decode", inputs, {"lower_bound": -5.0}, outputs)])[0]()
    return outputs


@pytest.mark.parametrize("file", sorted(CANDIDATES.glob("*.py")), ids=lambda p: p.stem)
def test_the_fused_views_feed_the_packed_decode_unchanged(file: Path) -> None:
    """qkv with row stride 4P, b with the padded one: the same bits as from copies without gaps."""
    size = splits(1, replace(SMALL, heads=2, head_dim=32))
    found = arms.three(X, draw(size, 4))
    views = {"mixed_qkv": found.qkv, "a": found.a, "b": found.b}
    assert found.qkv.stride(0) == 4 * size.projection
    assert found.b.stride(0) == size.padded_bfa > size.heads
    arm = candidate_arm(file)
    strided, dense = (decode(arm, v, 2, 32) for v in (views, {n: t.contiguous() for n, t in views.items()}))
    assert all(torch.equal(strided[n], dense[n]) for n in strided)
    assert torch.isfinite(strided["out"]).all()


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 4, 12])
def test_a_replay_with_other_tokens_is_the_serial_arm(tokens: int) -> None:
    """Captured at the sizes of eight ranks, replayed on changed tokens: the serial arm's bits on both branches."""
    device = torch.device("cuda", torch.cuda.current_device())
    fused, side = draw(splits(8, K3), 0, device), CudaSideStream(device)
    x = torch.randn(tokens, K3.hidden, device=device).bfloat16()
    with torch.cuda.stream(torch.cuda.Stream(device)):
        arms.three(x, fused)
    side.fork()
    with side.on_side():
        arms.three(x, fused)
    side.join()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = arms.three_side(x, fused, SideRule(side, 64, arms.capturing))
    x.copy_(torch.randn(tokens, K3.hidden, device=device))
    graph.replay()
    torch.cuda.synchronize(device)
    close(found, arms.exact(x, fused.five))
    serial = arms.three(x, fused)
    assert all(rel_l2(getattr(found, n), getattr(serial, n)) < 1e-3 for n in OUTPUTS)
