"""Both gates against their formulas, and where they end."""

from __future__ import annotations

import math

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.kda import gate

HV, K = 2, 3


def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """a [4, HV·K], A_log [HV], dt_bias [HV·K], FP64."""
    random = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*s, generator=random, dtype=torch.float64) for s in ((4, HV * K), (HV,), (HV * K,)))  # type: ignore[return-value]


@pytest.mark.parametrize("bound", [None, -5.0, -0.5])
def test_each_channel_has_its_formula(bound: float | None) -> None:
    """Every element against scalar arithmetic: the rate belongs to the head, the bias to the channel."""
    a, A_log, dt_bias = drawn()
    found = gate.log_decay(a, A_log, dt_bias, bound)
    assert found.shape == (4, HV, K)
    for t in range(4):
        for h in range(HV):
            for c in range(K):
                x, rate = float(a[t, h * K + c] + dt_bias[h * K + c]), math.exp(float(A_log[h]))
                right = -rate * math.log1p(math.exp(x)) if bound is None else bound / (1 + math.exp(-rate * x))
                assert abs(float(found[t, h, c]) - right) < 1e-14


def test_softplus_is_linear_far_out_and_the_bound_holds() -> None:
    """x = 80 gives -80·rate, x = -1000 no decay in either gate, and the safe gate never passes its bound."""
    a = torch.tensor([[80.0, -1000.0]], dtype=torch.float32)
    zeros, none = torch.zeros(1), torch.zeros(2)
    assert gate.log_decay(a, zeros, none)[0, 0].tolist() == [-80.0, 0.0]
    assert gate.log_decay(a, zeros, none, -5.0)[0, 0].tolist() == [-5.0, 0.0]


def test_a_huge_rate_underflows_to_no_memory() -> None:
    """exp(g) is then exactly 0, never NaN."""
    g = gate.log_decay(torch.full((1, 2), 30.0), torch.tensor([60.0]), torch.zeros(2))
    assert torch.equal(g.exp(), torch.zeros_like(g))


@pytest.mark.parametrize("bound", [0.0, -5.5, 1.0, math.nan, -math.inf])
def test_bounds_outside_the_range_are_refused(bound: float) -> None:
    """The range is part of the gate: its exponents are planned for it."""
    with pytest.raises(ParameterError, match=r"kda: lower_bound is .*; allowed: None, or -5\.0 <= lower_bound < 0"):
        gate.log_decay(*drawn(), bound)


def test_beta_is_rounded_where_a_path_rounds_it() -> None:
    """sigmoid, and BF16 bits in the given dtype on request."""
    b = torch.tensor([0.3, -2.0])
    exact = torch.sigmoid(b)
    assert torch.equal(gate.beta(b), exact)
    rounded = gate.beta(b, torch.bfloat16)
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, exact.bfloat16().float())
    assert not torch.equal(rounded, exact)
