"""The product that mutants vary is right as it stands, in any piece of N."""

from __future__ import annotations

import pytest
import torch

from kda_lab.ops.nvfp4_gemm import cases, emulated, oracle
from kda_lab.verify.metrics import row_max


@pytest.mark.parametrize("kind", cases.KINDS)
@pytest.mark.parametrize("shape", sorted(cases.TINY_SHAPES))
def test_defaults_are_right(shape: str, kind: str) -> None:
    """Within FP32 rounding of the integer oracle, bit for bit on exact rows, with NaN in every padding row."""
    call = cases.with_guard_rows(cases.synthesise(cases.rows([shape], [130], [kind])[0], 2))
    exact = oracle.oracle_fp64(call)["out"]
    assert row_max(emulated.Gemm().output(call), exact) <= (0.0 if kind == "exact" else 1e-6)


def test_calling_it_writes_the_output_once_rounded() -> None:
    """The stored output is the FP32 result rounded to BF16."""
    call = cases.synthesise(cases.rows(["tiny_c"], [3], ["random"])[0], 2)
    emulated.Gemm()(call)
    assert torch.equal(call.outputs["out"], emulated.Gemm().output(call).to(torch.bfloat16))


def test_pieces_of_n_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen columns at a time give what all at once give."""
    call = cases.synthesise(cases.rows(["tiny_f"], [3], ["exact"])[0], 2)
    whole = emulated.Gemm().output(call)
    monkeypatch.setattr(emulated, "PART_ELEMENTS", 1)
    assert torch.equal(emulated.Gemm().output(call), whole)
