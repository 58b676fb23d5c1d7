"""Steps, rows, synthetic calls, guard rows, changed contents and edge calls of compressed keys."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kda_lab.captures.store import CaptureSet
from kda_lab.errors import ParameterError
from kda_lab.ops.qsa_compress_keys import cases, oracle
from kda_lab.verify.guarded import same_bits

MIXED = cases.rows((), (), (), (40,))[0]


def test_timed_rows_are_decode_and_prefill() -> None:
    """Eight decode batches and 2048 tokens of one request."""
    labels = [row.label for row in cases.rows()]
    assert (labels[0], labels[7], labels[8]) == ("decode-T1", "decode-T128", "prefill-T2048")
    assert len(labels) == 9


def test_a_decode_batch_completes_some_groups() -> None:
    """Positions of every remainder, so that about a quarter of the rows completes a group; request 0 does."""
    parts, padding = cases.step_of("decode", 128)
    done = [(first + 1) % 4 == 0 for _, first, _ in parts]
    assert padding == 0
    assert done[0]
    assert 16 < sum(done) < 64


def test_a_prefill_begins_within_a_group() -> None:
    """Its first group has two members in the ring."""
    assert cases.step_of("prefill", 2048) == ([(5, 4098, 2048)], 0)


def test_a_mixed_step_has_all_its_tokens() -> None:
    """Several requests and three rows of padding; few tokens are one request."""
    parts, padding = cases.step_of("mixed", 40)
    assert padding == 3
    assert sum(count for _, _, count in parts) == 37
    assert len({request for request, _, _ in parts}) == len(parts)
    assert cases.step_of("mixed", 1) == ([(1, 0, 1)], 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("idle", 1), r"kind is 'idle'; allowed: 'decode', 'prefill', 'verify', 'mixed'"),
        (("decode", 0), r"tokens is 0; allowed: 1 or more"),
        (("verify", 6), r"tokens is 6; allowed: a positive multiple of 4"),
    ],
)
def test_steps_that_cannot_be_are_refused(arguments: tuple[str, int], message: str) -> None:
    """Kind and number of tokens are named with what they may be."""
    with pytest.raises(ParameterError, match=message):
        cases.step_of(*arguments)


@pytest.mark.parametrize("row", cases.capture_rows(), ids=lambda row: row.label)
def test_slots_are_page_aligned(row) -> None:
    """A slot lies in its page where its position lies in its; live slots are above page 0 and distinct."""
    inputs = cases.synthesise(row, 0).inputs
    live = inputs["slots"] > 0
    slots, positions = inputs["slots"][live], inputs["positions"][live]
    assert torch.equal(slots % 64, positions.long() % 64)
    assert int(slots.min()) >= 64
    assert slots.unique().numel() == slots.numel()
    assert (row.parameters["kind"] == "mixed") == bool((slots > 1 << 31).all())


def test_a_row_has_one_content() -> None:
    """The same label and seed give the same bits, another seed others."""
    first, again, other = (cases.synthesise(MIXED, seed) for seed in (1, 1, 2))
    assert all(same_bits(first.inputs[n], again.inputs[n]) for n in first.inputs)
    assert not torch.equal(first.inputs["k_raw"], other.inputs["k_raw"])
    assert torch.equal(first.inputs["positions"], other.inputs["positions"])


def test_sets_are_distinct() -> None:
    """Cold timing gets other keys in each set, and one step."""
    one, two = cases.make_sets(MIXED, 2, 0, "cpu")
    assert not torch.equal(one.inputs["k_raw"], two.inputs["k_raw"])
    assert torch.equal(one.inputs["slots"], two.inputs["slots"])


def test_guards_follow_the_table() -> None:
    """Positions that no token has hold NaN, and no entry changes."""
    call = cases.synthesise(MIXED, 0)
    guarded = cases.with_guard_rows(call, 5)
    assert guarded.inputs["cos_sin"][-5:].isnan().all()
    assert torch.equal(oracle.oracle_fp64(guarded)["entries"], oracle.oracle_fp64(call)["entries"])


@pytest.mark.parametrize("real", [False, True], ids=["drawn", "turned"])
@pytest.mark.parametrize("row", cases.capture_rows(), ids=lambda row: row.label)
def test_a_later_step_completes_other_groups(row, real: bool) -> None:
    """Every request moves on by one position on valid pages; padding stays padding."""
    call = cases.synthesise(row, 0)
    later = call.with_inputs(**cases.changed(call, "positions", 1, call if real else None))
    before, after = oracle.oracle_fp64(call)["entries"], oracle.oracle_fp64(later)["entries"]
    assert not torch.equal(before.any(1), after.any(1))
    live = call.inputs["slots"] > 0
    assert torch.equal(later.inputs["positions"] - call.inputs["positions"], live.int())
    assert torch.equal(later.inputs["slots"] > 0, live)
    assert torch.equal(later.inputs["slots"][live] % 64, later.inputs["positions"][live].long() % 64)
    assert torch.equal(later.inputs["slots"] >= cases.FAR_SLOT, call.inputs["slots"] >= cases.FAR_SLOT)


def test_new_keys_keep_the_step() -> None:
    """The first change replaces keys and ring alone."""
    assert set(cases.changed(cases.synthesise(MIXED, 0), "keys", 1)) == {"k_raw", "ring"}


def test_an_unknown_change_is_refused() -> None:
    """Only the two names of CHANGES are known."""
    with pytest.raises(ParameterError, match=r"which is 'alpha'; allowed: 'keys', 'positions'"):
        cases.changed(cases.synthesise(MIXED, 0), "alpha", 1)


def test_a_shuffle_touches_what_no_change_does() -> None:
    """Weight and rotation get other contents, of the same sizes; the table stays one of cosines and sines."""
    call = cases.synthesise(MIXED, 0)
    new = cases.shuffled(call, 3)
    assert {"weight", "cos_sin"} <= set(new)
    assert not torch.equal(new["weight"], call.inputs["weight"])
    cos, sin = new["cos_sin"].chunk(2, 1)
    assert torch.allclose(cos.square() + sin.square(), torch.ones_like(cos))


def test_edge_calls_are_what_they_say() -> None:
    """Which of them completes a group, and a group of zeros."""
    edges = {name: oracle.oracle_fp64(call)["entries"] for name, call in cases.edge_calls(0).items()}
    idle = {name for name, entries in edges.items() if not entries.any()}
    assert idle == {"first_token", "one_short", "all_padding", "zero_keys"}


def test_committed_captures_are_drawn_from_their_seed() -> None:
    """Every committed capture is the row of its name, drawn from seed 0, bit for bit."""
    captures = CaptureSet.open(Path(__file__).parents[3] / "data" / "captures" / "qsa.compress_keys")
    rows = {row.label: row for row in cases.capture_rows()}
    assert set(captures.names()) == set(rows)
    for name in captures.names():
        call = captures.load(name).call
        drawn = cases.synthesise(rows[name], 0)
        assert all(same_bits(call.inputs[n], drawn.inputs[n]) for n in drawn.inputs), name
