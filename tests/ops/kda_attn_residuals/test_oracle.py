"""The oracle: identities that the definition fixes, an online softmax by another road, roundings and allowances."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.kda_attn_residuals import cases, oracle
from kda_lab.ops.protocol import Call
from kda_lab.verify.metrics import element_max, rel_l2


def drawn(kind: str = "add_write", valid: int = 5, tokens: int = 6) -> Call:
    return cases.synthesise(cases.rows((tokens,), (valid,), (kind,), cases.SMALL_WIDTH)[0], 4)


EDGES = cases.edge_calls(3)


def online(call: Call) -> torch.Tensor:
    """The same in FP64 row by row, with a running maximum, token by token."""
    prefix, epsilon = oracle.stream(call).double(), oracle.epsilon_of(call)
    weight, out_weight = call.inputs["score_weight"].double(), call.inputs["out_weight"].double()
    found = torch.zeros_like(prefix)
    for t in range(len(prefix)):
        top, total, mix = float("-inf"), 0.0, torch.zeros_like(prefix[t])
        for row in [*call.inputs["bank"][t, : oracle.valid_of(call)].double(), prefix[t]]:
            score = float(row @ weight / (row @ row / len(row) + epsilon).sqrt())
            new = max(top, score)
            mix = mix * 2.718281828459045 ** (top - new) + row * 2.718281828459045 ** (score - new)
            total = total * 2.718281828459045 ** (top - new) + 2.718281828459045 ** (score - new)
            top = new
        mix = mix / total
        found[t] = mix * out_weight / (mix @ mix / len(mix) + epsilon).sqrt()
    return found


@pytest.mark.parametrize("kind", sorted(cases.KINDS))
@pytest.mark.parametrize("valid", [0, 1, 7])
def test_an_online_softmax_is_the_same(kind: str, valid: int) -> None:
    """One row after another with a running maximum, as a single pass computes it, agrees to FP64 rounding."""
    call = drawn(kind, valid)
    assert rel_l2(online(call), oracle.oracle_fp64(call)["out"]) < 1e-12


def test_without_snapshots_it_is_the_norm_of_the_prefix() -> None:
    """One row has weight 1 whatever its score."""
    call = EDGES["no_snapshots"]
    norm = torch.nn.functional.rms_norm(
        call.inputs["prefix"].double(), (cases.SMALL_WIDTH,), call.inputs["out_weight"].double(), 1e-6
    )
    assert rel_l2(oracle.oracle_fp64(call)["out"], norm) < 1e-12


def test_equal_rows_mix_to_themselves() -> None:
    """Weights of equal rows do not matter: the result is that of one of them."""
    call = EDGES["equal_rows"]
    alone = replace(call, scalars={**call.scalars, "valid": 0})
    assert rel_l2(oracle.oracle_fp64(call)["out"], oracle.oracle_fp64(alone)["out"]) < 1e-12


def test_a_score_does_not_see_the_size_of_its_row() -> None:
    """Rows of four times the size, epsilon aside, weigh the same: the mix and so the normed result stay."""
    call = drawn("mix", 4)
    streams = ("bank", "prefix", "delta")
    large = replace(
        cases.replaced(call, {n: call.inputs[n] * 4 for n in streams}), scalars={**call.scalars, "epsilon": 0.0}
    )
    plain = replace(call, scalars=large.scalars)
    assert rel_l2(oracle.oracle_fp64(large)["out"], oracle.oracle_fp64(plain)["out"]) < 1e-12


def test_snapshots_may_stand_in_any_order() -> None:
    """Mixing has no order: permuted snapshots give the same result."""
    call = drawn("mix", 8)
    turned = cases.replaced(call, {"bank": call.inputs["bank"].flip(1)})
    assert rel_l2(oracle.oracle_fp64(turned)["out"], oracle.oracle_fp64(call)["out"]) < 1e-12


def test_a_token_of_zeros_gives_zeros() -> None:
    """Epsilon keeps a row of zeros finite, and its result is zero."""
    out = oracle.oracle_fp64(EDGES["zero_token"])["out"]
    assert torch.count_nonzero(out[1]) == 0
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("kind", sorted(cases.KINDS))
def test_what_is_updated_in_place(kind: str) -> None:
    """The prefix becomes the rounded sum, the snapshot after it is written; every other slot keeps its bits."""
    call = drawn(kind)
    add, write = cases.KINDS[kind]
    found = oracle.oracle_fp32(call)
    i = call.inputs
    wanted = (i["prefix"].float() + i["delta"].float()).bfloat16() if add else i["prefix"]
    assert torch.equal(found["prefix"], wanted)
    assert torch.equal(found["bank"][:, 5], wanted if write else i["bank"][:, 5])
    others = [0, 1, 2, 3, 4, 6, 7]
    assert torch.equal(found["bank"][:, others], i["bank"][:, others])
    assert torch.equal(i["prefix"], call.outputs["prefix"])


def test_snapshots_that_do_not_count_are_not_read() -> None:
    """Other contents behind the valid ones change nothing."""
    call = drawn("mix")
    other = call.inputs["bank"].clone()
    other[:, 5:] = 1e30
    assert torch.equal(
        oracle.oracle_fp64(cases.replaced(call, {"bank": other}))["out"], oracle.oracle_fp64(call)["out"]
    )


def test_a_delta_that_is_not_pending_is_not_read() -> None:
    """The delta may hold NaN where nothing is added."""
    call = drawn("write")
    poisoned = call.with_inputs(delta=torch.full_like(call.inputs["delta"], float("nan")))
    assert all(torch.isfinite(t).all() for t in oracle.oracle_fp64(poisoned).values())


@settings(max_examples=200)
@given(a=st.integers(0, 65535), b=st.integers(0, 65535))
def test_a_sum_rounded_over_fp32_is_rounded_once(a: int, b: int) -> None:
    """BF16 sums have the same bits whether they are formed in FP32 or exactly."""
    x, y = (torch.tensor([v], dtype=torch.int32).to(torch.int16).view(torch.bfloat16) for v in (a, b))
    if torch.isfinite(x).item() and torch.isfinite(y).item():
        exact = (x.double() + y.double()).float().bfloat16()
        assert torch.equal((x.float() + y.float()).bfloat16().view(torch.int16), exact.view(torch.int16))


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are computed in chunks; two of them give what one gives, and no token gives an empty result."""
    call = drawn()
    whole = oracle.oracle_fp64(call)["out"]
    monkeypatch.setattr(oracle, "CHUNK_TOKENS", 2)
    assert torch.equal(oracle.oracle_fp64(call)["out"], whole)
    assert oracle.oracle_fp64(drawn(tokens=0))["out"].shape == (0, cases.SMALL_WIDTH)


def test_emulation_lies_within_its_allowance() -> None:
    """One rounding is inside, nothing is allowed to bank and prefix, and twice the allowance is outside."""
    call = drawn()
    exact, emulated = oracle.oracle_fp64(call), oracle.emulate(call)
    allowed = oracle.allowance(call, exact)
    assert element_max(emulated["out"], exact["out"], allowed["out"]) < 0.5
    assert all(torch.count_nonzero(allowed[n]) == 0 and allowed[n].shape == exact[n].shape for n in ("bank", "prefix"))
    assert element_max(exact["out"] + 2 * allowed["out"], exact["out"], allowed["out"]) == pytest.approx(2)


@pytest.mark.parametrize(("valid", "write", "most"), [(9, False, 8), (8, True, 7), (-1, False, 8), (None, False, 8)])
def test_impossible_numbers_of_snapshots_are_refused(valid: int | None, write: bool, most: int) -> None:
    """More than the bank has, no slot left for the snapshot, or no number."""
    call = drawn("mix")
    wrong = replace(call, scalars={**call.scalars, "valid": valid, "write_prefix": write})
    with pytest.raises(ParameterError, match=rf"valid is {valid}; allowed: 0 to {most}, for a bank of 8 snapshots"):
        oracle.oracle_fp32(wrong)


def test_epsilon_is_the_given_one_or_one_millionth() -> None:
    """1e-6 where none is given."""
    call = drawn("mix")
    assert oracle.epsilon_of(replace(call, scalars={**call.scalars, "epsilon": None})) == 1e-6
    assert oracle.epsilon_of(replace(call, scalars={**call.scalars, "epsilon": 0.5})) == 0.5
