"""The short convolution against sums written out, and its windows."""

from __future__ import annotations

import torch

from kda_lab.ops.kda.convolution import convolve

T, C = 5, 3


def drawn(*lead: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """x [*lead, T, C], weight [4, C], window [*lead, 3, C], bias [C], FP64."""
    random = torch.Generator().manual_seed(1)
    shapes = ((*lead, T, C), (4, C), (*lead, 3, C), (C,))
    return tuple(torch.randn(*s, generator=random, dtype=torch.float64) for s in shapes)  # type: ignore[return-value]


def test_each_token_reads_itself_and_three_before() -> None:
    """Row 3 of the weight is the present token's; tokens before the first come from the window, oldest first."""
    x, weight, window, bias = drawn()
    y, windows = convolve(x, weight, window, bias)
    rows = [*window, *x]
    for t in range(T):
        total = bias + sum(weight[j] * rows[t + j] for j in range(4))
        assert torch.allclose(y[t], total / (1 + torch.exp(-total)), atol=1e-14, rtol=0)
        assert torch.equal(windows[t], torch.stack(rows[t + 1 : t + 4]))


def test_one_token_at_a_time_gives_the_same() -> None:
    """The window after a token is all that the next one needs; sums of another shape may round otherwise on some CPUs."""
    x, weight, window, _ = drawn()
    y, windows = convolve(x, weight, window)
    for t in range(T):
        one, after = convolve(x[t : t + 1], weight, window)
        assert torch.allclose(one[0], y[t], atol=1e-14, rtol=0)
        window = after[0]
        assert torch.equal(window, windows[t])


def test_leading_axes_are_requests() -> None:
    """Requests do not see each other."""
    x, weight, window, bias = drawn(2)
    y, windows = convolve(x, weight, window, bias)
    for b in range(2):
        one, after = convolve(x[b], weight, window[b], bias)
        assert torch.allclose(y[b], one, atol=1e-14, rtol=0)
        assert torch.equal(windows[b], after)


def test_windows_keep_bits() -> None:
    """BF16 rows stay BF16 rows."""
    x, weight, window, _ = drawn()
    _, windows = convolve(x.bfloat16(), weight.bfloat16(), window.bfloat16())
    assert windows.dtype == torch.bfloat16
    assert torch.equal(windows[-1], x.bfloat16()[-3:])
