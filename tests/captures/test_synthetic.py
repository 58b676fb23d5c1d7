"""Synthetic captures say that they are synthetic, name their seed, and come back the same from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kda_lab.captures.store import CaptureSet
from kda_lab.captures.synthetic import synthetic_set
from kda_lab.errors import ParameterError
from kda_lab.ops.registry import load_op

OP = "qsa.packed_decode"
LABELS = [row.label for row in load_op(OP).cases.rows()][:2]


def test_a_synthetic_set_is_labelled_with_its_seed(tmp_path: Path) -> None:
    """Kind, seed and note say it; nothing is pinned; the call is the one that the op draws."""
    captures = CaptureSet.open(synthetic_set(OP, tmp_path / "set", seed=7, labels=LABELS))
    assert captures.names() == LABELS and captures.verify() == []
    assert "seed 7" in captures.manifest.note
    cases = load_op(OP).cases
    drawn = {row.label: row for row in cases.rows() if row.label in LABELS}
    for name in LABELS:
        capture, wanted = captures.load(name), cases.synthesise(drawn[name], 7, "cpu")
        assert (capture.kind, capture.entry.seed, capture.pinned) == ("synthetic", 7, {})
        assert all(torch.equal(capture.call.inputs[n], t) for n, t in wanted.inputs.items())
        assert (capture.call.scalars, capture.call.facts) == (wanted.scalars, wanted.facts)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    """A synthetic set can be made again anywhere."""
    first, again, other = (
        CaptureSet.open(synthetic_set(OP, tmp_path / name, seed=seed, labels=LABELS[:1]))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first.manifest.files == again.manifest.files
    assert first.load(LABELS[0]).sha256 != other.load(LABELS[0]).sha256


def test_an_unknown_label_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    """Nothing is written."""
    with pytest.raises(ParameterError, match=f"labels is \\['no such row'\\]; allowed: .*{LABELS[0]}"):
        synthetic_set(OP, tmp_path / "set", seed=1, labels=["no such row"])
    assert not (tmp_path / "set").exists()
