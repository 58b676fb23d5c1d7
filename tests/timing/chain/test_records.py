"""A chain record is believable or refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kda_lab.errors import TimingError
from kda_lab.run_folder import RunFolder
from kda_lab.timing.chain.records import chain_records, validated

BAD = {"passed": False, "error": 1.0, "limit": 1e-5, "detail": "error is 1"}


def test_a_good_record_stays(chain_record: Callable[..., dict[str, Any]]) -> None:
    """Nothing but defaults is added, and the record validates again."""
    once = validated(chain_record())
    assert validated(once) == once
    assert once["median_us"] == 10.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"provenance": {"device": {"interpreter": True}}}, "a time of the interpreter is never recorded"),
        ({"samples_us": [0.0, 10.0, 12.0]}, "samples_us holds a time that is not above 0"),
        ({"median_us": 9.0}, "median_us is not the median of samples_us"),
        ({"cold_products": False}, "cold_products is not layers x product_bytes >= 5 x l2_bytes"),
        ({"product_bytes": 100}, "cold_products is not layers x product_bytes >= 5 x l2_bytes"),
        ({"recheck": {**BAD, "passed": True}, "dropped": "x"}, "recheck.detail must say what failed, and only then"),
        ({"recheck": BAD}, "recheck failed and the trial is not dropped"),
        ({"kernels": {"chain": None}}, "kernels are missing without kernels_reason, or the reverse"),
        ({"kernels_reason": "no profiler"}, "kernels are missing without kernels_reason, or the reverse"),
        ({"outputs_sha256": ""}, "outputs_sha256 is empty where there are products"),
        ({"role": "state"}, "outputs_sha256 is empty where there are products"),
        ({"kind": "row"}, "record.kind is 'row'; allowed: chain, check, refused"),
        ({"role": "winner"}, "record.role is 'winner'"),
        ({"layers": 1}, "record.layers is 1"),
        ({"colour": "blue"}, "record.colour is 'blue'; allowed: Extra inputs are not permitted"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_what_cannot_be_is_refused(
    chain_record: Callable[..., dict[str, Any]], change: dict[str, Any], words: str
) -> None:
    """Each rule has its words."""
    with pytest.raises(TimingError, match=words):
        validated(chain_record(**change))


def test_a_refusal_needs_a_reason(chain_record: Callable[..., dict[str, Any]]) -> None:
    """An empty reason is no reason."""
    shared = {k: chain_record()[k] for k in ("op", "axes", "layers", "state_bytes", "arm", "role", "provenance")}
    assert validated({**shared, "kind": "refused", "reason": "no GPU"})["reason"] == "no GPU"
    with pytest.raises(TimingError, match=r"record\.reason is ''"):
        validated({**shared, "kind": "refused", "reason": ""})


def test_records_stand_in_the_run(tmp_path: Path) -> None:
    """The file is chain.jsonl of the run's folder."""
    assert chain_records(RunFolder.at(tmp_path)) == tmp_path / "chain.jsonl"
