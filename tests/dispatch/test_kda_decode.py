"""Decode steps in torch against the recurrence in FP64: padding, strides, BF16 pools, the fused chain, no host read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kda_lab.dispatch.kda_decode import fused_decode, packed_decode
from kda_lab.ops.kda.convolution import convolve
from kda_lab.ops.kda.gate import log_decay
from kda_lab.ops.kda.geometry import query_head
from kda_lab.ops.kda.output import gated_norm
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q, step
from kda_lab.verify.metrics import rel_l2

HV, H, V, K, SLOTS = 4, 2, 6, 8, 5
INDICES = torch.tensor([3, -1, 0], dtype=torch.int32)
Tensors = dict[str, torch.Tensor]


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def step_inputs(
    key_width: int = K, value_width: int = V, heads: int = H, state_dtype: torch.dtype = torch.float32
) -> Tensors:
    """Three requests, the middle one padding; rows and slots cut out of wider memory."""
    width = 2 * heads * key_width + HV * value_width
    pool = drawn(SLOTS, 2, HV, value_width, key_width, seed=1, dtype=state_dtype)[:, 1]
    return {
        "mixed_qkv": drawn(3, width + 5, seed=2)[:, :width],
        "a": drawn(3, HV * key_width, seed=3),
        "b": drawn(3, HV, seed=4),
        "a_log": 0.2 * drawn(HV, seed=5, dtype=torch.float32),
        "dt_bias": 0.1 * drawn(HV * key_width, seed=6, dtype=torch.float32),
        "state": pool,
        "state_indices": INDICES,
    }


def exact_step(given: Tensors, mixed: torch.Tensor, lower_bound: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [B, HV, V] and state behind it [B, HV, V, K] in FP64, for the rows as they are."""
    _, _, value_width, key_width = given["state"].shape
    heads = (mixed.shape[1] - HV * value_width) // (2 * key_width)
    at = query_head(HV, heads)
    q, k, v = mixed.double().split((heads * key_width, heads * key_width, HV * value_width), 1)
    q, k = (t.view(3, heads, key_width)[:, at] for t in (q, k))
    g = log_decay(*(given[n].double() for n in ("a", "a_log", "dt_bias")), lower_bound)
    state = given["state"].double()[given["state_indices"].long().clamp(min=0)]
    beta = torch.sigmoid(given["b"].double())
    return step(state, normalise_q(q), normalise_k(k), v.view(3, HV, value_width), g, beta)


@pytest.mark.parametrize("lower_bound", [None, -5.0])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
def test_packed_decode_is_one_step(lower_bound: float | None, dtype: torch.dtype, limit: float) -> None:
    """Output and named slots agree with FP64; padding is zero; slots that nobody named keep their bits."""
    given = step_inputs(state_dtype=dtype)
    wanted, kept = exact_step(given, given["mixed_qkv"], lower_bound)
    before, state = given["state"].clone(), given["state"]
    out = packed_decode(*given.values(), lower_bound=lower_bound)
    assert out.shape == (3, 1, HV, V) and out.dtype == torch.bfloat16
    for row, slot in ((0, 3), (2, 0)):
        assert rel_l2(out[row, 0], wanted[row]) < 4e-3
        assert rel_l2(state[slot], kept[row]) < limit
    assert out[1].eq(0).all()
    assert all(torch.equal(state[slot], before[slot]) for slot in (1, 2, 4))


def test_fused_decode_is_the_chain() -> None:
    """Convolution rounded to BF16, one step, norm and gate of the FP32 output; the window moves on by one row."""
    width = 3 * HV * K
    step_part = step_inputs(value_width=K, heads=HV)
    names = ("a", "b", "a_log", "dt_bias")
    conv_state, weight = drawn(SLOTS, 3, width, seed=7), 0.5 * drawn(4, width, seed=8, dtype=torch.float32)
    gate, norm = drawn(3, HV * K, seed=9), drawn(K, seed=10, dtype=torch.float32)
    x, windows = step_part["mixed_qkv"], conv_state.clone()
    at = INDICES.long().clamp(min=0)
    mixed = convolve(x[:, None].float(), weight, windows[at].float())[0][:, 0].bfloat16()
    wanted, kept = exact_step(step_part, mixed, -5.0)
    wanted = gated_norm(wanted, gate.double().view(3, HV, K), norm.double(), 1e-5).flatten(1)
    state = step_part["state"]
    parts = [step_part[n] for n in names]
    out = fused_decode(x, conv_state, weight, *parts, gate, norm, state, INDICES, lower_bound=-5.0, epsilon=1e-5)
    for row, slot in ((0, 3), (2, 0)):
        assert rel_l2(out[row], wanted[row]) < 5e-3
        assert rel_l2(state[slot], kept[row]) < 1e-6
        assert torch.equal(conv_state[slot], torch.cat([windows[slot, 1:], x[row : row + 1]]))
    assert out[1].eq(0).all()
    assert all(torch.equal(conv_state[slot], windows[slot]) for slot in (1, 2, 4))


def test_a_given_output_is_written_and_returned() -> None:
    """Nothing is allocated in its place."""
    given, out = step_inputs(), torch.full((3, 1, HV, V), float("nan"), dtype=torch.bfloat16)
    assert packed_decode(*given.values(), lower_bound=None, out=out) is out
    assert out.isfinite().all()


@pytest.mark.parametrize("fused", [False, True])
def test_nothing_is_read_on_the_host(fused: bool) -> None:
    """On tensors without data it runs to its end: no value decides a shape, so a graph can hold it."""
    given = step_inputs(value_width=K, heads=HV) if fused else step_inputs()
    run: Callable[..., torch.Tensor] = packed_decode
    parts = list(given.values())
    if fused:
        run, width = fused_decode, 3 * HV * K
        conv = [drawn(SLOTS, 3, width, seed=7), drawn(4, width, seed=8, dtype=torch.float32)]
        norm = [drawn(3, HV * K, seed=9), drawn(K, seed=10, dtype=torch.float32)]
        parts = [parts[0], *conv, *parts[1:5], *norm, *parts[5:]]
    out = run(*(t.to("meta") for t in parts), lower_bound=-5.0)
    assert out.shape[0] == 3


def test_no_requests_are_no_work() -> None:
    """An empty batch gives an empty output and leaves the pool."""
    given = {n: t if n in ("a_log", "dt_bias", "state") else t[:0] for n, t in step_inputs().items()}
    before = given["state"].clone()
    assert packed_decode(*given.values(), lower_bound=None).shape == (0, 1, HV, V)
    assert torch.equal(given["state"], before)
