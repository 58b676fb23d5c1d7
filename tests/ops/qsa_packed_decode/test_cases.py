"""Rows, synthetic calls, guard rows, changed contents and input sets of the packed decode."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_packed_decode import cases, oracle


def one(label: str, seed: int = 0) -> Call:
    topology, batch, kind = label.split("-")
    return cases.synthesise(cases.rows([topology], [int(batch[1:])], [kind])[0], seed)


def live(call: Call) -> list[int]:
    return call.inputs["cu_seqlens_k"].diff().tolist()


@pytest.mark.parametrize(
    ("kind", "batch", "total"),
    [("short", 16, 1758), ("short", 17, 1945), ("short", 32, 3704), ("short", 64, 7738), ("short", 128, 15530)],
)
def test_short_lengths_sum_to_the_known_totals(kind: str, batch: int, total: int) -> None:
    """The rule for short rows reproduces the totals that were computed by hand."""
    assert sum(cases.lengths(kind, batch)) == total


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("short", 17, 227), ("medium", 512, 1280), ("saturated", 2051, 2051), ("mixed", 0, 2051)]
)
def test_lengths_stay_in_their_range(kind: str, low: int, high: int) -> None:
    """Each kind keeps to the range it promises and reaches its ends over a large batch."""
    found = cases.lengths(kind, 900)
    assert (min(found), max(found)) == (low, high)


def test_mixed_rows_hold_the_edges() -> None:
    """Mixed lengths bring empty, single, one-tile and saturated rows into one launch."""
    assert cases.lengths("mixed", 9) == (1, 0, 2051, 64, 65, 1537, 511, 2048, 1)


def test_published_lengths_are_those_of_the_source_thread() -> None:
    """The recorded calls have 1, 3, 4 or 12 rows with the published totals."""
    assert {batch: sum(cases.lengths("published", batch)) for batch in (1, 3, 4, 12)} == {
        1: 858,
        3: 1532,
        4: 4283,
        12: 7774,
    }


@pytest.mark.parametrize(
    ("kind", "batch", "message"),
    [
        (
            "long",
            4,
            r"qsa\.packed_decode: kind is 'long'; allowed: 'short', 'medium', 'saturated', 'mixed', 'published', 'draft'\.",
        ),
        ("short", 0, r"batch is 0; allowed: 1 or more\."),
        ("published", 5, r"batch is 5; allowed: 1, 3, 4, 12 for published lengths\."),
    ],
)
def test_unknown_lengths_are_refused(kind: str, batch: int, message: str) -> None:
    """A kind or batch without lengths is refused with what there is."""
    with pytest.raises(ParameterError, match=message):
        cases.lengths(kind, batch)


def test_rows_are_labelled_by_topology_batch_and_kind() -> None:
    """Labels are readable, unique, and say what the parameters say."""
    found = cases.rows(("tp1", "tp2"), (4, 128), ("short", "saturated"))
    assert [row.label for row in found][:3] == ["tp1-B4-short", "tp1-B4-saturated", "tp1-B128-short"]
    assert found[-1].parameters == {"HQ": 12, "HKV": 1, "B": 128, "lengths": "saturated"}
    assert len({row.label for row in cases.rows()}) == len(cases.rows()) == 54


def test_unknown_topology_is_refused() -> None:
    """A topology without head counts is refused."""
    with pytest.raises(ParameterError, match=r"topology is 'tp4'; allowed: 'tp1', 'tp2'\."):
        cases.rows(["tp4"])


def test_calls_have_the_promised_layout() -> None:
    """Shapes, dtypes, scalars, offsets and facts of a synthetic call."""
    call = one("tp1-B8-mixed")
    q, k, v = (call.inputs[n] for n in "qkv")
    assert (q.shape, k.shape, v.shape) == ((8, 24, 256), (6277, 2, 256), (6277, 2, 256))
    assert {t.dtype for t in (q, k, v, call.outputs["out"])} == {torch.bfloat16}
    assert all(t.is_contiguous() for t in call.inputs.values())
    assert call.inputs["cu_seqlens_q"].tolist() == list(range(9))
    assert live(call) == call.facts["lengths"] == list(cases.MIXED_CYCLE)
    assert call.inputs["cu_seqlens_k"].dtype == torch.int32
    assert call.scalars == {"max_seqlen_k": 2051, "softmax_scale": None, "max_seqlen_q": 1}
    assert {n: call.facts[n] for n in ("B", "HQ", "HKV", "kind")} == {"B": 8, "HQ": 24, "HKV": 2, "kind": "mixed"}


def test_a_draft_row_widens_the_call() -> None:
    """One row of 2055 keys makes max_seqlen_k 2055, as the draft path passes it."""
    assert cases.edge_calls(0)["draft_width"].scalars["max_seqlen_k"] == 2055


def test_synthesis_is_deterministic() -> None:
    """The same row and seed give the same bits; another seed or label gives others."""
    first, again, other = one("tp2-B4-short"), one("tp2-B4-short"), one("tp2-B4-short", seed=1)
    for name in "qkv":
        assert torch.equal(first.inputs[name], again.inputs[name])
        assert not torch.equal(first.inputs[name], other.inputs[name])


def test_synthetic_scores_are_peaky_and_the_last_key_matters() -> None:
    """Attention is spread over far fewer keys than there are, and the last key carries weight in every head."""
    call = one("tp1-B1-saturated")
    k = call.inputs["k"].float().repeat_interleave(12, 1)
    weights = (torch.einsum("hd,nhd->hn", call.inputs["q"][0].float(), k) / 16).softmax(-1)
    effective = 1 / weights.square().sum(-1)
    assert 4 < effective.median() < 400
    assert weights[:, -1].median() > 0.01


def test_guard_rows_hold_nan_behind_the_live_end() -> None:
    """Guard rows are NaN, live rows keep their bits, and the caller's call is untouched."""
    call = one("tp2-B4-short")
    n = call.inputs["k"].shape[0]
    guarded = cases.with_guard_rows(call, 7)
    for name in "kv":
        assert torch.equal(guarded.inputs[name][:n], call.inputs[name])
        assert guarded.inputs[name].shape[0] == n + 7
        assert guarded.inputs[name][n:].isnan().all()
        assert call.inputs[name].shape[0] == n


def test_guarding_a_call_with_spare_rows_poisons_them_too() -> None:
    """Rows between the live end and the old capacity become NaN as well."""
    roomy = cases.with_capacity(one("tp2-B4-short"), 400)
    roomy.inputs["k"][-1] = 0
    assert cases.with_guard_rows(roomy, 1).inputs["k"][sum(live(roomy)) :].isnan().all()


def test_too_small_a_capacity_is_refused() -> None:
    """A capacity below the live rows is refused."""
    with pytest.raises(ParameterError, match=r"capacity is 3; allowed: at least the 290 live rows\."):
        cases.with_capacity(one("tp2-B4-short"), 3)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    spare=st.integers(0, 80),
    wanted=st.sampled_from(["shorter", "longer"]),
    seed=st.integers(0, 99),
)
def test_changed_contents_fit_the_same_buffers(lengths: list[int], spare: int, wanted: str, seed: int) -> None:
    """New contents have the old shapes, other bits, lengths in the promised direction, and NaN behind the live end."""
    call = cases.with_capacity(cases._peaky("test", (4, 2), lengths, "test", 0, "cpu"), sum(lengths) + spare)
    if wanted == "longer" and spare == 0:
        with pytest.raises(
            ParameterError, match=r"lengths is 'longer'; allowed: 'shorter', since the \d+ rows of k are all"
        ):
            cases.changed(call, wanted, seed)
        return
    new = cases.changed(call, wanted, seed)
    assert {n: t.shape for n, t in new.items()} == {n: call.inputs[n].shape for n in ("q", "k", "v", "cu_seqlens_k")}
    changed = new["cu_seqlens_k"].diff().tolist()
    assert all(a <= b if wanted == "shorter" else a >= b for a, b in zip(changed, lengths, strict=True))
    assert sum(changed) <= sum(lengths) + spare
    if wanted == "longer" or max(lengths) > 1:
        assert changed != lengths
    assert not torch.equal(new["q"], call.inputs["q"])
    assert new["k"][sum(changed) :].isnan().all()
    assert new["v"][: sum(changed)].isfinite().all()
    assert torch.isfinite(oracle.oracle_fp64(call.with_inputs(**new))["out"]).all()


def test_longer_gives_whole_tiles_to_the_shortest_row() -> None:
    """Three quarters of the free rows go to the shortest row, so that its number of tiles changes."""
    call = cases.with_guard_rows(one("tp2-B12-published"), 256)
    grown = cases.longer_lengths(call)
    assert grown[0] == 97 + 192
    assert all(1 <= new - old <= 8 for new, old in zip(grown[1:], live(call)[1:], strict=True))


def test_saturated_rows_keep_their_lengths() -> None:
    """Rows as long as max_seqlen_k cannot grow, so `longer` changes their contents only."""
    call = cases.with_guard_rows(one("tp2-B2-saturated"), 16)
    new = cases.changed(call, "longer", 1)
    assert new["cu_seqlens_k"].tolist() == call.inputs["cu_seqlens_k"].tolist()
    assert not torch.equal(new["k"][:100], call.inputs["k"][:100])


def test_lengths_can_be_given_row_by_row() -> None:
    """Explicit lengths are used as they are, zero included."""
    call = cases.with_capacity(one("tp2-B2-short"), 120)
    assert cases.changed(call, (100, 0), 1)["cu_seqlens_k"].tolist() == [0, 100, 100]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            (100, 21),
            r"lengths is \(100, 21\); allowed: 2 lengths of 0 to 2051, 120 rows in all\. Use with_capacity\(\)",
        ),
        ((5,), r"lengths is \(5,\); allowed: 2 lengths"),
        ("wider", r"lengths is 'wider'; allowed: 'shorter', 'longer' or one length a row\."),
    ],
)
def test_lengths_that_do_not_fit_are_refused(wanted: object, message: str) -> None:
    """Lengths beyond the buffers, of another count, or of an unknown kind are refused."""
    call = cases.with_capacity(one("tp2-B2-short"), 120)
    with pytest.raises(ParameterError, match=message):
        cases.changed(call, wanted, 1)  # type: ignore[arg-type]


def test_contents_can_come_from_a_source() -> None:
    """With a source every new K and V row is one of the source's live rows, in another order."""
    call = cases.with_guard_rows(one("tp2-B4-short"), 64)
    new = cases.changed(call, "shorter", 3, source=call)
    count = int(new["cu_seqlens_k"][-1])
    source = {tuple(row) for row in call.inputs["k"][: sum(live(call)), 0].tolist()}
    assert all(tuple(row) in source for row in new["k"][:count, 0].tolist())
    assert not torch.equal(new["k"][:count], call.inputs["k"][:count])


@pytest.mark.parametrize("wanted", ["shorter", "longer"])
def test_the_last_key_of_reordered_contents_matters(wanted: str) -> None:
    """Contents from a source end each segment with its weightiest key, so that cutting a row's end shows."""
    call = cases.with_guard_rows(one("tp1-B4-short"), 64)
    changed = call.with_inputs(**cases.changed(call, wanted, 3, source=call))
    shape, keys = oracle.geometry(changed), changed.inputs["k"].float()
    for b, (start, end) in enumerate(itertools.pairwise(shape.starts)):
        for g in range(2):
            scores = changed.inputs["q"][b, 12 * g : 12 * g + 12].float() @ keys[start:end, g].T / 16
            weight = scores.softmax(-1).sum(0)
            assert weight[-1] == weight.max()


def test_a_source_of_other_heads_is_refused() -> None:
    """Contents of another head count do not fit the buffers and are refused."""
    with pytest.raises(ParameterError, match=r"source is \(24, 2\); allowed: the call's heads, \(12, 1\)\."):
        cases.changed(one("tp2-B2-short"), "shorter", 1, source=one("tp1-B2-short"))


def test_input_sets_are_distinct_aligned_views() -> None:
    """Sets share one allocation a tensor, differ in their values, start on 16 bytes, and can each be computed."""
    sets = cases.make_sets(cases.rows(["tp2"], [5], ["short"])[0], 6, 0, "cpu")
    assert len({call.inputs["k"].untyped_storage().data_ptr() for call in sets}) == 1
    assert len({call.inputs["k"].data_ptr() for call in sets}) == 6
    assert not torch.equal(sets[0].inputs["q"], sets[1].inputs["q"])
    for call in sets:
        assert all(
            t.data_ptr() % 16 == 0 and t.is_contiguous() for t in (*call.inputs.values(), *call.outputs.values())
        )
        assert tuple(live(call)) == cases.lengths("short", 5)
        assert call.inputs["cu_seqlens_q"].tolist() == [0, 1, 2, 3, 4, 5]
    assert torch.isfinite(oracle.oracle_fp32(sets[5])["out"]).all()


def test_input_sets_do_not_share_memory() -> None:
    """Writing one set changes no other."""
    first, second = cases.make_sets(cases.rows(["tp1"], [3], ["short"])[0], 2, 0, "cpu")
    before = {n: t.clone() for n, t in second.inputs.items()}
    for tensor in (*first.inputs.values(), *first.outputs.values()):
        tensor.fill_(1)
    assert all(torch.equal(before[n], t) for n, t in second.inputs.items())


def test_thousands_of_tiny_sets_are_cheap() -> None:
    """A thousand sets of the smallest row share their host-side facts and need no draw each."""
    sets = cases.make_sets(cases.rows(["tp2"], [1], ["short"])[0], 1000, 0, "cpu")
    assert len(sets) == 1000
    assert sets[999].facts is sets[0].facts


def test_edge_calls_are_what_their_names_say() -> None:
    """Each edge call has the structure it promises."""
    edges = cases.edge_calls(1)
    assert live(edges["zero_rows"]) == [0, 65, 0, 17, 0]
    assert set(live(edges["all_zero_rows"])) == {0}
    assert set(live(edges["length_one"])) == {1}
    assert (edges["zero_keys"].inputs["k"] == 0).all()
    assert edges["equal_values"].inputs["v"].unique().numel() == 1
    assert max(live(edges["draft_width"])) == 2055
    assert edges["draft_width"].inputs["q"].shape[1] == 12


def test_published_rows_are_those_of_both_sweeps() -> None:
    """64 rows of batches 1 to 16, 42 of seven larger ones, both topologies, each label once."""
    found = cases.published()
    small = [r for r in found if r.parameters["B"] <= 16]
    assert (len(small), len(found) - len(small), len({r.label for r in found})) == (64, 42, 106)
    assert {r.parameters["lengths"] for r in small} == {"short", "saturated"}
    assert {r.parameters["HQ"] for r in found} == {24, 12}
    assert sorted({r.parameters["B"] for r in found}) == [*range(1, 17), 17, 24, 32, 48, 64, 96, 128]


def test_a_call_of_listed_lengths_has_them() -> None:
    """Offsets, heads and label are those asked for; another seed gives other contents."""
    call = cases.call_of((3, 0, 5), (12, 1), 7, label="mine")
    assert call.inputs["cu_seqlens_k"].tolist() == [0, 3, 3, 8]
    assert (call.inputs["q"].shape, call.inputs["k"].shape, call.label) == ((3, 12, 256), (8, 1, 256), "mine")
    assert not torch.equal(call.inputs["k"], cases.call_of((3, 0, 5), (12, 1), 8, label="mine").inputs["k"])
