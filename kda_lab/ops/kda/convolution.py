"""The short causal convolution before q, k and v: four tokens of a channel, then SiLU."""

from __future__ import annotations

import torch
from torch.nn.functional import silu

from kda_lab.ops.kda.geometry import CONV_STATE


def convolve(
    x: torch.Tensor, weight: torch.Tensor, window: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """SiLU(sum_j weight[j] · x[t - 3 + j] + bias) for each token t, where the tokens before the first are `window`.

    Args:
        x: [..., T, C], raw.
        weight: [4, C]; row 3 belongs to the present token.
        window: [..., 3, C]: the three tokens before, oldest first; zeros at the start of a sequence.
        bias: [C].

    Returns:
        y [..., T, C], not rounded (kernels round it to BF16 before the recurrence), and [..., T, 3, C]: the window
        after each token, bits of `x` and `window`.
    """
    tokens = x.shape[-2]
    padded = torch.cat([window, x], -2)
    total = weight[0] * padded[..., :tokens, :]
    for j in range(1, CONV_STATE + 1):
        total = total + weight[j] * padded[..., j : j + tokens, :]
    y = silu(total if bias is None else total + bias)
    after = [padded[..., j + 1 : j + 1 + tokens, :] for j in range(CONV_STATE)]
    return y, torch.stack(after, -2)
