"""What the torch functions of KDA share: which slots are written, and formulas against those of the ops."""

from __future__ import annotations

import pytest
import torch

from kda_lab.dispatch import kda_recurrence as shared
from kda_lab.ops.kda import convolution, gate, recurrence


@pytest.mark.parametrize("indices", [[3, 1], [3, -1, 1], [-1, 3, 1], [3, 1, -1, -1]])
def test_only_named_slots_are_written(indices: list[int]) -> None:
    """Each live row reaches its slot, wherever padding stands, and no other memory changes, gaps included."""
    memory, named = torch.arange(20.0).reshape(5, 4).clone(), torch.tensor(indices, dtype=torch.int32)
    mine, wide = memory[:, :3], memory.clone()
    values = torch.tensor([[100.0 * i] * 3 for i in range(len(indices))])
    shared.write_slots(mine, named, values, named >= 0)
    for row, slot in enumerate(indices):
        if slot >= 0:
            wide[slot, :3] = values[row]
    assert torch.equal(memory, wide)


@pytest.mark.parametrize("indices", [[], [-1], [-1, -1]])
def test_nothing_but_padding_leaves_every_bit(indices: list[int]) -> None:
    """Slot 0, which stands in for padding, keeps even the payload of a NaN."""
    mine, named = torch.zeros(3, 2), torch.tensor(indices, dtype=torch.int32)
    mine.view(torch.int32)[0, 0] = 0x7FC12345
    before = mine.view(torch.int32).clone()
    shared.write_slots(mine, named, torch.ones(len(indices), 2), named >= 0)
    assert torch.equal(mine.view(torch.int32), before)


def test_padding_beside_a_live_slot_zero_does_not_disturb_it() -> None:
    """Rows of padding read slot 0; when a live row writes it, its value stands."""
    for indices in ([0, -1], [-1, 0]):
        mine, named = torch.zeros(2, 1), torch.tensor(indices, dtype=torch.int32)
        shared.write_slots(mine, named, torch.tensor([[7.0 + i] for i in indices]), named >= 0)
        assert mine[:, 0].tolist() == [7.0, 0.0]


def test_values_are_rounded_to_the_pool() -> None:
    """A BF16 pool gets the nearest BF16 of an FP32 value."""
    mine, named = torch.zeros(1, 1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.int32)
    shared.write_slots(mine, named, torch.tensor([[1.0 + 2**-8 + 2**-9]]), named >= 0)
    assert mine.item() == 1.0 + 2**-7


@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_gate_step_and_convolution_are_those_of_the_ops(lower_bound: float | None) -> None:
    """Formulas written twice agree to FP32's last digits, with K other than V and x beyond the linear softplus."""
    draw = torch.Generator().manual_seed(3)
    a, a_log = 8 * torch.randn(2, 12, generator=draw), torch.randn(3, generator=draw)
    bias = torch.randn(12, generator=draw)
    g = shared.log_decay(a, a_log, bias, lower_bound)
    assert g.shape == (2, 3, 4)
    right = gate.log_decay(a.double(), a_log.double(), bias.double(), lower_bound)
    torch.testing.assert_close(g.double(), right, rtol=1e-6, atol=1e-12)
    state, v = torch.randn(2, 3, 6, 4, generator=draw), torch.randn(2, 3, 6, generator=draw)
    q, k = torch.randn(2, 2, 3, 4, generator=draw)
    beta = torch.rand(2, 3, generator=draw)
    after = shared.advance(state, shared.normalised(k), v, g, beta)
    out = shared.read_out(after, shared.normalised(q) / 2)
    wide = [t.double() for t in (v, g, beta)]
    wanted, kept = recurrence.step(
        state.double(), recurrence.normalise_q(q.double()), recurrence.normalise_k(k.double()), *wide
    )
    torch.testing.assert_close(after.double(), kept, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(x, y) for x, y in zip(shared.step(state, q, k, v, g, beta), (after, out), strict=True))
    x, window = torch.randn(2, 5, generator=draw).bfloat16(), torch.randn(2, 3, 5, generator=draw).bfloat16()
    weight = torch.randn(4, 5, generator=draw)
    y, shifted = shared.convolved(x, window, weight)
    wanted, windows = convolution.convolve(x[:, None].float(), weight, window.float())
    assert torch.equal(shifted.float(), windows[:, 0])
    torch.testing.assert_close(y.float(), wanted[:, 0], rtol=2**-8, atol=1e-6)


def test_tiny_rows_are_normalised_with_the_epsilon_inside_the_root() -> None:
    """A row of 1e-4 shrinks, and a zero row stays zero."""
    row = torch.tensor([[1e-4, 0.0], [0.0, 0.0]])
    found = shared.normalised(row)
    assert found[0, 0].item() == pytest.approx(1e-4 / (1e-8 + 1e-6) ** 0.5, rel=1e-6)
    assert found[1].tolist() == [0.0, 0.0]


def test_value_heads_share_query_heads_by_neighbours() -> None:
    """Four value heads of two query heads read 0, 0, 1, 1."""
    heads = torch.tensor([[10.0], [20.0]])
    assert shared.for_value_heads(heads, 4)[:, 0].tolist() == [10.0, 10.0, 20.0, 20.0]


def test_a_row_splits_into_queries_keys_and_values() -> None:
    """q heads, then k heads, then v heads, each head's numbers adjacent."""
    row = torch.arange(2 * 2 * 2 + 4 * 3.0)[None]
    q, k, v = shared.split_heads(row, 4, 3, 2)
    assert q[0].tolist() == [[0, 1], [2, 3]] and k[0].tolist() == [[4, 5], [6, 7]]
    assert v[0].tolist() == [[8, 9, 10], [11, 12, 13], [14, 15, 16], [17, 18, 19]]
