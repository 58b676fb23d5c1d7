"""FP32 products of oracles, and the setting of the process."""

from __future__ import annotations

import torch

from kda_lab.ops.precision import full_fp32


def test_fp32_setting_of_the_process_is_given_back() -> None:
    """TF32 is off inside, and whatever it was afterwards."""
    before = torch.backends.cuda.matmul.fp32_precision
    with full_fp32():
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == before
