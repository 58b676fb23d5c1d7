"""Compaction: golden rows, three roads to the same bits, and pool rows that come through bit by bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_compact_kv import cases, oracle
from kda_lab.verify.guarded import same_bits

ROADS = (oracle.oracle_fp32, oracle.oracle_fp64, oracle.emulate)
SLOTS = 12
EDGES = cases.edge_calls(3)


def small(tokens: list[list[int]], lengths: list[int], requests: list[int] | None = None) -> Call:
    """A call whose slot s holds the number s in K and -s in V; request r puts token t in slot (3 + 5·r + 7·t) % 12."""
    B, W = len(tokens), len(tokens[0])
    number = torch.arange(SLOTS).bfloat16()[:, None, None].expand(SLOTS, 1, 256).contiguous()
    table = (3 + 5 * torch.arange(2)[:, None] + 7 * torch.arange(16)) % SLOTS
    index = {"tokens": tokens, "lengths": lengths, "requests": requests or [0] * B, "req_to_slot": table.tolist()}
    inputs = {name: torch.tensor(value, dtype=torch.int32) for name, value in index.items()}
    outputs = {name: torch.empty(B * W, 1, 256, dtype=torch.bfloat16) for name in ("packed_k", "packed_v")}
    outputs["cu_seqlens_k"] = torch.empty(B + 1, dtype=torch.int32)
    return Call("qsa.compact_kv", {**inputs, "k_pool": number, "v_pool": -number}, {}, outputs, "small")


@pytest.mark.parametrize("road", ROADS, ids=lambda road: road.__name__)
@pytest.mark.parametrize(
    ("tokens", "lengths", "slots", "ends"),
    [
        ([[0, 1, -1, -1], [2, -1, -1, -1]], [2, 3], [3, 10, 5], [0, 2, 3]),
        ([[0, -1, 1, -1], [-1, -1, -1, 2]], [2, 3], [3, 10, 5], [0, 2, 3]),
        ([[1, 0, 5, 9], [2, 3, 1, 0]], [2, 3], [10, 3, 5, 10, 3], [0, 2, 5]),
        ([[-1, -1], [-1, -1]], [4, 4], [], [0, 0, 0]),
        ([[0, 1], [0, 1]], [0, 2], [3, 10], [0, 0, 2]),
        ([[1, 1], [-2, 0]], [2, 1], [10, 10, 3], [0, 2, 3]),
        # A draft row: a short selection, its hole, and the newer tokens in the last four columns.
        ([[0, 1, 2, 3, 4, -1, -1, 5, 6, -1, -1]], [7], [3, 10, 5, 0, 7, 2, 9], [0, 7]),
    ],
)
def test_golden_rows(road, tokens: list[list[int]], lengths: list[int], slots: list[int], ends: list[int]) -> None:
    """Valid columns in their order, whatever stands between them; zeros behind them; exclusive prefix sums."""
    call = small(tokens, lengths)
    found = road(call)
    wanted = slots + [0] * (call.outputs["packed_k"].shape[0] - len(slots))
    assert found["packed_k"][:, 0, 0].tolist() == wanted
    assert found["packed_v"][:, 0, 255].tolist() == [-slot for slot in wanted]
    assert found["cu_seqlens_k"].tolist() == ends


def test_each_row_goes_through_its_own_request() -> None:
    """Token 0 of request 0 lies in slot 3, that of request 1 in slot 8."""
    call = small([[0], [0], [0]], [1, 1, 1], [1, 0, 1])
    assert oracle.oracle_fp32(call)["packed_k"][:, 0, 0].tolist() == [8, 3, 8]


@pytest.mark.parametrize("name", sorted(EDGES))
def test_three_roads_lead_to_the_same_bits(name: str) -> None:
    """Loop, selection and ranks agree at every edge, with NaN in every slot that no token names."""
    call = cases.with_guard_rows(EDGES[name], 64)
    found = [road(call) for road in ROADS]
    for output in call.outputs:
        assert same_bits(found[0][output], found[1][output])
        assert same_bits(found[0][output], found[2][output])
        assert found[0][output].shape == call.outputs[output].shape
    assert found[0]["cu_seqlens_k"].diff().tolist() == oracle.live_counts(call)


@settings(max_examples=25)
@given(st.data())
def test_roads_agree_on_any_selection(data: st.DataObject) -> None:
    """Any ids, lengths and requests: the same bits, and as many rows as there are valid columns."""
    B, W = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    row = st.lists(st.integers(-2, 10), min_size=W, max_size=W)
    tokens = data.draw(st.lists(row, min_size=B, max_size=B))
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=B, max_size=B))
    requests = data.draw(st.lists(st.integers(0, 1), min_size=B, max_size=B))
    call = small(tokens, lengths, requests)
    found = [road(call) for road in ROADS]
    for output in call.outputs:
        assert same_bits(found[0][output], found[1][output])
        assert same_bits(found[0][output], found[2][output])


def test_minus_zero_comes_through_as_it_is() -> None:
    """Rows are copied bit by bit: a -0 stays one."""
    call = small([[0]], [1])
    call.inputs["k_pool"][3] = -0.0
    assert all(bool(road(call)["packed_k"].signbit().all()) for road in ROADS)


def test_what_cannot_be_packed_is_refused() -> None:
    """More valid tokens than packed rows, and slots outside of the pools, are errors of the call."""
    call = small([[0, 1, 2]], [3])
    short = call.with_outputs(packed_k=torch.empty(2, 1, 256, dtype=torch.bfloat16))
    with pytest.raises(ParameterError, match=r"packed_k\.shape\[0\] is 2; allowed: 3 or more, the valid tokens"):
        oracle.oracle_fp32(short)
    call.inputs["req_to_slot"][0, 1] = SLOTS
    with pytest.raises(ParameterError, match="req_to_slot at the valid tokens is 3 to 12; allowed: 0 to 11"):
        oracle.oracle_fp32(call)
