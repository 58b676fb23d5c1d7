"""Block-FP8 weights: values, partial blocks, refusals."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.projection import fp8

CODES = torch.arange(1, 257).remainder(17).float().view(1, 256).repeat(256, 1).to(torch.float8_e4m3fn)
SCALES = torch.tensor([[1.0, 2.0], [0.5, 4.0]])


def test_each_block_has_its_scale() -> None:
    """Four blocks of 128 x 128, each times its own scale; powers of two leave the codes exact."""
    found = fp8.dequantise("w", CODES, SCALES)
    plain = CODES.float()
    for rows in (0, 1):
        for columns in (0, 1):
            block = (slice(128 * rows, 128 * rows + 128), slice(128 * columns, 128 * columns + 128))
            assert torch.equal(found[block].float(), plain[block] * SCALES[rows, columns])
    assert (found.dtype, found.is_contiguous()) == (torch.bfloat16, True)


def test_a_weight_of_one_row_a_head_may_end_within_a_block() -> None:
    """b has 12 rows: refused as an ordinary weight, dequantised where it is exempt."""
    with pytest.raises(ParameterError, match=r"b rows is 12; allowed: a multiple of 128, or partial_rows"):
        fp8.dequantise("b", CODES[:12], SCALES[:1])
    found = fp8.dequantise("b", CODES[:12], SCALES[:1], partial_rows=True)
    assert torch.equal(found.float(), CODES[:12].float() * SCALES[0].repeat_interleave(128))


@pytest.mark.parametrize(
    ("weight", "scales", "words"),
    [
        (CODES.float(), SCALES, "f_a dtypes is torch.float32, torch.float32; allowed: float8_e4m3fn codes"),
        (CODES, SCALES.bfloat16(), "f_a dtypes is torch.float8_e4m3fn, torch.bfloat16"),
        (CODES, SCALES[:1], r"f_a scales is \(1, 2\); allowed: \(2, 2\), one a block of 128 x 128"),
        (CODES[0], SCALES, r"f_a scales is \(2, 2\); allowed: \(2,\)"),
    ],
    ids=["codes", "scales", "count", "vector"],
)
def test_what_is_no_block_fp8_is_refused(weight: torch.Tensor, scales: torch.Tensor, words: str) -> None:
    """Dtypes and the number of scales."""
    with pytest.raises(ParameterError, match=words):
        fp8.dequantise("f_a", weight, scales)


def test_bf16_weights_pass_and_bare_codes_do_not() -> None:
    """A BF16 weight is handed back as it is; codes without scales mean nothing."""
    plain = torch.ones(4, 4).bfloat16()
    assert fp8.as_bf16("w", plain, None) is plain
    assert torch.equal(fp8.as_bf16("w", CODES, SCALES), fp8.dequantise("w", CODES, SCALES))
    with pytest.raises(ParameterError, match=r"w scales is None; allowed: scales, for a weight of torch.float8_e4m3fn"):
        fp8.as_bf16("w", CODES, None)
