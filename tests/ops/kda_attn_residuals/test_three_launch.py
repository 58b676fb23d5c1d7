"""The three launches by themselves: scores, mix and norm against the definition."""

from __future__ import annotations

import torch

from kda_lab import interpreter
from kda_lab.ops.kda_attn_residuals import cases, oracle, three_launch
from kda_lab.verify.metrics import rel_l2


def test_scratch_holds_scores_and_the_mix() -> None:
    """Scores of every row in FP32, the mix in BF16; bank and prefix are not written."""
    interpreter.ensure_faithful()
    call = cases.synthesise(cases.rows((4,), (3,), ("mix",), 256, 4)[0], 2)
    i, before = call.inputs, {n: t.clone() for n, t in call.inputs.items()}
    scratch = three_launch.Scratch(i["prefix"], 4)
    weights = (i["score_weight"], i["out_weight"])
    three_launch.mix_and_norm((i["bank"], i["prefix"]), weights, scratch, call.outputs["out"], 3, 1e-6)
    rows = oracle.rows_of(i["bank"], i["prefix"], 3).double()
    scores = oracle.rms_norm(rows, i["score_weight"], 1e-6).sum(-1)
    assert torch.allclose(scratch.scores.double(), scores, atol=1e-5)
    assert rel_l2(scratch.mix, oracle.mixed(rows, i["score_weight"].double(), 1e-6)) < 2e-3
    assert all(torch.equal(i[n], before[n]) for n in before)
