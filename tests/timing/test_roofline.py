"""The roofline: units, and the bandwidth that no cold time can have."""

from __future__ import annotations

import pytest
import torch

from kda_lab.ops.protocol import Work
from kda_lab.timing import roofline


def test_roof_and_bandwidth_are_inverse() -> None:
    """16.8 MB at 4300 GB/s take 3.91 us, and 16.8 MB in 3.91 us are 4300 GB/s."""
    work = Work(16_801_792, 49_152, 0)
    roof = roofline.roof_us(work, 4300.0)
    assert roof == pytest.approx(3.9188, rel=1e-4)
    assert roofline.bandwidth_gb_s(work.bytes_moved, roof) == pytest.approx(4300.0)


@pytest.mark.parametrize(
    ("share", "state", "words"),
    [
        (0.97, "cold", ""),
        (1.0, "cold", ""),
        (1.01, "warm", "above the memory rate of 4000 GB/s; some bytes came from a cache"),
        (2.0, "warm", "some bytes came from a cache"),
        (2.01, "invalid", "8040 GB/s, 2.01 times the memory rate of 4000 GB/s; work is missing"),
    ],
)
def test_state_by_implied_bandwidth(share: float, state: str, words: str) -> None:
    """Up to the memory rate cold, above it warm, above twice the rate invalid; each with its numbers."""
    found, reason = roofline.state_of(share * 4000.0, 4000.0, 1.0)
    assert found == state
    assert words in reason
    assert bool(reason) == (state != "cold")


def test_allowance_moves_only_the_warm_border() -> None:
    """The allowance widens cold; invalid stays at twice the memory rate."""
    assert roofline.state_of(4180.0, 4000.0, 1.05)[0] == "cold"
    assert roofline.state_of(8040.0, 4000.0, 3.0)[0] == "invalid"


@pytest.mark.gpu
def test_copy_rate_is_below_the_datasheet() -> None:
    """The measured copy rate of a data-centre GPU lies between 0.5 and 10 TB/s and repeats within 5 %."""
    first, second = (roofline.measure_copy_bandwidth(torch.device("cuda", 0)) for _ in range(2))
    assert 200 < first < 10_000
    assert second == pytest.approx(first, rel=0.05)


@pytest.mark.gpu
def test_read_rate_is_near_the_copy_rate() -> None:
    """Reading alone is between 0.8 and 1.3 times as fast as copying."""
    device = torch.device("cuda", 0)
    assert 0.8 < roofline.measure_read_bandwidth(device) / roofline.measure_copy_bandwidth(device) < 1.3


def test_a_record_is_cold_only_with_its_rotation_proof() -> None:
    """Too few rotated bytes make a record warm whatever its bandwidth; a failed recheck makes it invalid."""
    record = {
        "recheck": {"passed": True, "detail": ""},
        "bytes_rotated": 500,
        "l2_bytes": 100,
        "bandwidth_gb_s": 1.0,
        "copy_bandwidth_gb_s": 4.0,
        "read_bandwidth_gb_s": 5.0,
    }
    assert roofline.record_state(record, 1.0) == ("cold", "")
    assert roofline.record_state({**record, "bandwidth_gb_s": 4.9}, 1.0)[0] == "cold"
    few = roofline.record_state({**record, "bytes_rotated": 499}, 1.0)
    fits = roofline.record_state({**record, "bytes_rotated": 100}, 1.0)[1]
    assert fits == (
        "warm: the input sets rotate over 100 bytes, which all fit in the L2 of 100 bytes; a cold time needs 500 (5 x L2)"
    )
    assert few == ("warm", "warm: the input sets rotate over 499 bytes; a cold time needs 500 (5 x L2)")
    wrong = {**record, "recheck": {"passed": False, "detail": "x"}}
    assert roofline.record_state(wrong, 1.0) == ("invalid", "invalid: recheck failed: x")
