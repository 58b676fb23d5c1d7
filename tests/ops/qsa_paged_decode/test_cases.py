"""Rows, synthetic calls, guard rows, changed contents and input sets of the paged decode."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_packed_decode import cases as packed
from kda_lab.ops.qsa_paged_decode import cases, oracle
from kda_lab.verify.metrics import rel_l2

SMALL = cases.drawn("small", (12, 1), (70, 1, 0, 9), "draft", 0)


def counts(call: Call) -> tuple[int, ...]:
    return oracle.geometry(call).counts


@pytest.mark.parametrize("kind", ["short", "medium", "saturated", "mixed"])
def test_classes_are_those_of_packed_decode(kind: str) -> None:
    """A row of one class has the same live counts in both ops, so their times can be compared."""
    assert cases.lengths(kind, 17) == packed.lengths(kind, 17)


def test_draft_and_verify_rows() -> None:
    """Draft rows bring full and short selections with newer tokens; verify rows grow by one within a request."""
    assert cases.lengths("draft", 9) == (6, 72, 2055, 518, 2, 1301, 2052, 257, 6)
    assert cases.lengths("verify", 8) == (64, 65, 66, 67, 2048, 2049, 2050, 2051)


@pytest.mark.parametrize(
    ("kind", "batch", "message"),
    [
        ("long", 1, r"qsa\.paged_decode: kind is 'long'; allowed: 'short', 'medium'"),
        ("short", 0, r"qsa\.paged_decode: batch is 0; allowed: 1 or more"),
        ("draft", 0, r"qsa\.paged_decode: batch is 0; allowed: 1 or more"),
        ("published", 2, r"qsa\.paged_decode: batch is 2; allowed: 1, 3, 4, 12 for published"),
    ],
)
def test_unknown_lengths_are_refused(kind: str, batch: int, message: str) -> None:
    """Kinds and batches outside the op are refused with what there is."""
    with pytest.raises(ParameterError, match=message):
        cases.lengths(kind, batch)


def test_rows_are_labelled_and_ordered() -> None:
    """One row a topology, batch and kind, in that order."""
    labels = [row.label for row in cases.rows(["tp1"], [1, 4], ["short", "saturated"])]
    assert labels == ["tp1-B1-short", "tp1-B1-saturated", "tp1-B4-short", "tp1-B4-saturated"]
    with pytest.raises(ParameterError, match=r"topology is 'tp4'; allowed: 'tp1', 'tp2'"):
        cases.rows(["tp4"])


def test_a_synthetic_call_has_its_shapes_and_facts() -> None:
    """Shapes, dtypes and host-side facts of a row, and its counts read back from the tensors."""
    call = cases.synthesise(cases.rows(["tp1"], [3], ["short"])[0], 1)
    i = call.inputs
    assert (i["q"].shape, i["tokens"].shape, i["req_to_slot"].shape) == ((3, 24, 256), (3, 2051), (5, 2688))
    assert i["k_pool"].shape == i["v_pool"].shape == (i["k_pool"].shape[0], 2, 256)
    assert {t.dtype for n, t in i.items() if n in ("tokens", "lengths", "requests", "req_to_slot")} == {torch.int32}
    assert call.facts["lengths"] == [17, 54, 91] == list(counts(call))
    assert call.facts["pool_rows"] == 162
    assert call.outputs["out"].shape == i["q"].shape


def test_the_same_seed_gives_the_same_call() -> None:
    """Label and seed alone decide the contents."""
    row = cases.rows(["tp2"], [2], ["short"])[0]
    first, again, other = (cases.synthesise(row, seed) for seed in (1, 1, 2))
    assert all(torch.equal(first.inputs[n].nan_to_num(), again.inputs[n].nan_to_num()) for n in first.inputs)
    assert not torch.equal(first.inputs["q"], other.inputs["q"])
    assert not torch.equal(first.inputs["tokens"], other.inputs["tokens"])


@pytest.mark.parametrize("grown", [0, 128])
def test_slots_that_no_row_names_hold_nan(grown: int) -> None:
    """Every slot outside the selection is NaN, wherever it lies; the selected ones are numbers and stay."""
    call = cases.with_guard_rows(SMALL, grown)
    used = torch.cat(oracle.geometry(SMALL).slots).unique()
    for name in ("k_pool", "v_pool"):
        dead = call.inputs[name].isnan().all(-1).all(-1)
        assert not dead[used].any()
        assert int((~dead).sum()) == len(used) == 80
        assert torch.equal(call.inputs[name][used], SMALL.inputs[name][used])


def test_guard_rows_silence_what_was_there() -> None:
    """Numbers at slots that no row names become NaN too."""
    filled = SMALL.with_inputs(k_pool=torch.ones_like(SMALL.inputs["k_pool"]))
    assert (
        int(cases.with_guard_rows(filled, 0).inputs["k_pool"].isnan().all(-1).sum())
        == len(filled.inputs["k_pool"]) - 80
    )


@pytest.mark.parametrize("real", [False, True], ids=["synthetic", "real"])
@pytest.mark.parametrize("wanted", ["shorter", "longer"])
def test_changed_contents_fit_their_buffers(wanted: str, real: bool) -> None:
    """Every input keeps its shape and dtype; counts move as asked; pages, requests and columns are others."""
    roomy = cases.with_guard_rows(SMALL, 1024)
    fresh = roomy.with_inputs(**cases.changed(roomy, wanted, 3, roomy if real else None))
    assert {n: (t.shape, t.dtype) for n, t in fresh.inputs.items()} == {
        n: (t.shape, t.dtype) for n, t in roomy.inputs.items()
    }
    assert counts(fresh) == ((28, 1, 0, 3) if wanted == "shorter" else (233, 129, 128, 141))
    assert not torch.equal(fresh.inputs["req_to_slot"], roomy.inputs["req_to_slot"])
    assert torch.isfinite(oracle.oracle_fp32(fresh)["out"]).all()


def test_real_rows_are_reused() -> None:
    """With a source the changed pool holds its rows and no others."""
    fresh = cases.changed(SMALL, "shorter", 3, SMALL)
    used = torch.cat(oracle.geometry(SMALL.with_inputs(**fresh)).slots).unique()
    old = {bytes(row.view(torch.uint8).numpy()) for row in SMALL.inputs["k_pool"].view(-1, 256)}
    assert {bytes(row.view(torch.uint8).numpy()) for row in fresh["k_pool"][used].view(-1, 256)} <= old


def test_counts_may_be_given() -> None:
    """A list of counts is taken as it stands, or refused with what is allowed."""
    fresh = SMALL.with_inputs(**cases.changed(SMALL, [9, 0, 3, 1], 0))
    assert counts(fresh) == (9, 0, 3, 1)
    with pytest.raises(ParameterError, match=r"lengths is \(9, 0\); allowed: 4 counts of 0 to 2055"):
        cases.changed(SMALL, [9, 0], 0)
    with pytest.raises(ParameterError, match=r"lengths is 'wider'; allowed: 'shorter', 'longer' or one count a row"):
        cases.changed(SMALL, "wider", 0)


def test_a_full_pool_cannot_grow() -> None:
    """Where no page is free longer contents are refused; where every row is full the counts stay."""
    tight = cases.drawn("tight", (12, 1), (64, 64), "short", 0)
    full = tight.with_inputs(**{n: tight.inputs[n][: 3 * 64] for n in ("k_pool", "v_pool")})
    full = full.with_inputs(req_to_slot=full.inputs["req_to_slot"] % 192)
    with pytest.raises(ParameterError, match=r"lengths is 'longer'; allowed: 'shorter', since the pool has no free"):
        cases.new_counts(full, "longer")
    widest = cases.drawn("widest", (12, 1), (2051,), "saturated", 0)
    assert cases.new_counts(widest, "longer") == (2051,)


def test_a_source_of_other_heads_is_refused() -> None:
    """Rows of two key heads cannot fill a pool of one."""
    other = cases.drawn("other", (24, 2), (4,), "short", 0)
    with pytest.raises(ParameterError, match=r"source is \(24, 2\); allowed: the call's heads, \(12, 1\)"):
        cases.changed(SMALL, "shorter", 0, other)


def test_input_sets_are_distinct_calls_of_one_geometry() -> None:
    """Each set has memory of its own on 16-byte bounds, the row's counts, and another selection than its neighbour."""
    row = cases.rows(["tp2"], [3], ["draft"])[0]
    sets = cases.make_sets(row, 3, 5, "cpu")
    for call in sets:
        assert counts(call) == (6, 72, 2055)
        assert all(t.is_contiguous() and t.data_ptr() % 16 == 0 for t in call.inputs.values())
        assert torch.isfinite(oracle.oracle_fp32(call)["out"]).all()
    assert len({call.inputs[n].data_ptr() for call in sets for n in call.inputs}) == 3 * 7
    assert not torch.equal(sets[0].inputs["tokens"], sets[1].inputs["tokens"])
    other = cases.make_sets(row, 1, 6, "cpu")[0]
    assert {n: t.shape for n, t in other.inputs.items()} == {n: t.shape for n, t in sets[0].inputs.items()}
    assert not torch.equal(other.inputs["req_to_slot"], sets[0].inputs["req_to_slot"])


def test_selections_take_turns() -> None:
    """The ninth set has the first one's selection, on its own memory."""
    sets = cases.make_sets(cases.rows(["tp2"], [1], ["short"])[0], cases.INDEX_SETS + 1, 5, "cpu")
    assert torch.equal(sets[-1].inputs["tokens"], sets[0].inputs["tokens"])
    assert sets[-1].inputs["tokens"].data_ptr() != sets[0].inputs["tokens"].data_ptr()


def test_edge_calls_are_what_they_say() -> None:
    """Values at the edges that the definition fixes by itself."""
    edges = cases.edge_calls(2)
    out = {name: oracle.oracle_fp64(call)["out"] for name, call in edges.items()}
    assert torch.count_nonzero(out["all_zero_rows"]) == 0
    single = edges["length_one"]
    v = torch.cat([single.inputs["v_pool"][s] for s in oracle.geometry(single).slots]).double()
    assert torch.allclose(out["length_one"].view(4, 2, 12, 256), v[:, :, None].expand(4, 2, 12, 256))
    assert torch.allclose(out["equal_values"], torch.tensor(1.7109375, dtype=torch.float64))
    means = edges["zero_keys"]
    first = means.inputs["v_pool"][oracle.geometry(means).slots[0]].double().mean(0)
    assert rel_l2(out["zero_keys"][0].view(2, 12, 256)[:, 0], first) < 1e-9
