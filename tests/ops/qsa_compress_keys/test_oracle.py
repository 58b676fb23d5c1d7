"""The oracles of compressed keys: golden groups, the ring token by token, what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.dispatch.qsa_index import compress_keys
from kda_lab.errors import ParameterError
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa.rmsnorm import rms_norm
from kda_lab.ops.qsa.rope import rotate
from kda_lab.ops.qsa_compress_keys import cases, oracle
from kda_lab.verify.metrics import element_max, rel_l2


def step(parts: list[tuple[int, int, int]], padding: int = 0, seed: int = 0) -> Call:
    generator = cases._generator("oracle", seed, "cpu")
    return cases._of_step("oracle", (parts, padding), (6, 64), "test", generator)


def test_golden_group() -> None:
    """Tokens 4 to 7 of one request: the mean in BF16, its norm with weight + 1, turned at position 4."""
    call = step([(2, 4, 4)])
    mean = call.inputs["k_raw"].float().mean(0).bfloat16()
    expected = rotate(rms_norm(mean, call.inputs["weight"]), call.inputs["cos_sin"][4])
    found = oracle.oracle_fp32(call)
    assert torch.allclose(found["entries"][3], expected, atol=1e-6)
    assert not found["entries"][:3].any()
    assert found["entry_slots"].tolist() == [0, 0, 0, int(call.inputs["slots"][0]) // 4]


def test_a_group_of_one_value_keeps_its_sign() -> None:
    """Keys of 3 in every channel: the norm makes 1, the weight + 1 scales, position 0 does not turn."""
    call = step([(0, 0, 4)])
    call = call.with_inputs(k_raw=torch.full_like(call.inputs["k_raw"], 3.0))
    found = oracle.oracle_fp64(call)["entries"][3]
    assert torch.allclose(found, call.inputs["weight"].double() + 1.0, atol=1e-6)


def test_members_of_an_earlier_step_come_from_the_ring() -> None:
    """A request at position 6 with a step of two: places 0 and 1 hold the tokens 4 and 5 of the step before."""
    early, late = step([(3, 4, 2)], seed=1), step([(3, 6, 2)], seed=2)
    late = late.with_inputs(ring=oracle.oracle_fp32(early)["new_ring"])
    whole = step([(3, 4, 4)], seed=3)
    whole = whole.with_inputs(
        k_raw=torch.cat([early.inputs["k_raw"], late.inputs["k_raw"]]), weight=late.inputs["weight"]
    )
    expected = oracle.oracle_fp64(whole)["entries"][3]
    assert torch.equal(oracle.oracle_fp64(late)["entries"][1], expected)


def test_the_last_token_of_a_place_stays() -> None:
    """Nine tokens from position 10 leave 16, 17, 18 and 15 in the places 0, 1, 2 and 3; other requests keep theirs."""
    call = step([(4, 10, 9)])
    found, keys = oracle.oracle_fp32(call)["new_ring"], call.inputs["k_raw"]
    assert torch.equal(found[4], torch.stack([keys[6], keys[7], keys[8], keys[5]]))
    others = [r for r in range(6) if r != 4]
    assert torch.equal(found[others], call.inputs["ring"][others])


def test_padding_changes_nothing() -> None:
    """Rows of slot 0 reach neither ring nor cache, though their request and position are 0."""
    call = step([(0, 1, 1)], padding=3)
    found = oracle.oracle_fp32(call)
    assert torch.equal(found["new_ring"][0, 0], call.inputs["ring"][0, 0])
    assert torch.equal(found["new_ring"][0, 1], call.inputs["k_raw"][0])
    assert not found["entries"].any()


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 21), st.integers(1, 9)), min_size=1, max_size=5),
    st.integers(0, 3),
    st.integers(0, 99),
)
def test_the_parallel_form_agrees(spans: list[tuple[int, int]], padding: int, seed: int) -> None:
    """All tokens at once (the torch function) and one after the other (the oracle) give the same step."""
    call = step([(r, first, count) for r, (first, count) in enumerate(spans)], padding, seed)
    exact, inputs = oracle.oracle_fp64(call), call.inputs
    entries, places, ring = compress_keys(*inputs.values())
    assert torch.equal(places, exact["entry_slots"])
    assert torch.equal(ring, exact["new_ring"])
    assert element_max(entries, exact["entries"], oracle.allowance(call, exact)["entries"]) <= 1


@settings(max_examples=10)
@given(st.integers(0, 12), st.lists(st.integers(1, 6), min_size=2, max_size=5))
def test_a_prefill_may_come_in_any_pieces(first: int, pieces: list[int]) -> None:
    """One step of all tokens, or several of a few with the ring handed on, leave the same keys and the same ring."""
    whole = step([(1, first, sum(pieces))])
    exact, ring, at = oracle.oracle_fp64(whole), whole.inputs["ring"], 0
    found = []
    for count in pieces:
        names = ("k_raw", "requests", "positions", "slots")
        part = whole.with_inputs(ring=ring, **{n: whole.inputs[n][at : at + count] for n in names})
        done = oracle.oracle_fp64(part)
        ring, at = done["new_ring"], at + count
        found.append(done["entries"])
    assert torch.equal(torch.cat(found), exact["entries"])
    assert torch.equal(ring, exact["new_ring"])


def test_one_rounding_is_half_of_what_is_allowed() -> None:
    """The emulation uses half an ulp; a second rounding behind the norm goes beyond one."""
    call = cases.synthesise(cases.rows((), (), (), (40,))[0], 0)
    exact = oracle.oracle_fp64(call)
    allowed = oracle.allowance(call, exact)
    assert 0.4 < element_max(oracle.emulate(call)["entries"], exact["entries"], allowed["entries"]) <= 0.5
    assert rel_l2(oracle.emulate(call)["entries"], exact["entries"]) < 2e-3
    assert not allowed["new_ring"].any()
    assert not allowed["entry_slots"].any()


@pytest.mark.parametrize(
    ("name", "at", "value", "message"),
    [
        ("requests", 0, 6, r"requests\[0\] is 6; allowed: 0 to 5, rows of ring"),
        ("requests", 0, -1, r"requests\[0\] is -1; allowed: 0 to 5"),
        ("positions", 2, 9, r"positions\[2\] is 9; allowed: 6, the request's next"),
        ("positions", 0, 900, r"token 0 is position 900, slot \d+; allowed: positions within the \d+ of cos_sin"),
        ("slots", 1, -8, r"token 1 is position 5, slot -8; allowed: .* slots from 0"),
    ],
)
def test_a_step_outside_its_tables_is_refused(name: str, at: int, value: int, message: str) -> None:
    """Requests, positions and slots are checked on the host, which a kernel cannot."""
    call = step([(2, 4, 4)])
    broken = call.inputs[name].clone()
    broken[at] = value
    with pytest.raises(ParameterError, match=message):
        oracle.oracle_fp32(call.with_inputs(**{name: broken}))
