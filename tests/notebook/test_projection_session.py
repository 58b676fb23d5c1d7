"""The study of projection fusion as a notebook runs it, with and without times."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kda_lab.errors import ParameterError, VerificationError
from kda_lab.notebook import projection_session
from kda_lab.notebook.projection_session import ProjectionSession
from kda_lab.notebook.session import Session
from kda_lab.projection import policy
from kda_lab.projection.arms import CONTROL, FIVE, OUTPUTS, SIDE, THREE
from kda_lab.projection.plan import Plan
from kda_lab.projection.sizes import K3, SMALL
from kda_lab.projection.study import Study
from kda_lab.run_folder import read_json_lines

FOLDER = "data/captures/projection.inputs.smollm"
US = {FIVE: 20.0, CONTROL: 20.01, THREE: 16.0, SIDE: 14.0}


def opened(tmp_path: Path, x_source: str = "") -> ProjectionSession:
    plan = Plan(tokens=(1, 4), attn_tp=(2, 8), modes=("graph",))
    return ProjectionSession.open(Session.open("study", str(tmp_path), "cpu"), plan, x_source)


def measured(wrong: str = "") -> Study:
    """Records of four graph cells, as a GPU gives them."""
    records: list[dict[str, Any]] = []
    for size in (2, 8):
        for tokens in (1, 4):
            for arm, us in US.items():
                passed = arm != wrong
                summed = us * (1.3 if arm == SIDE else 0.9)
                records.append({
                    "kind": "projection", "attn_tp": size, "tokens": tokens, "mode": "graph", "arm": arm, "sets": 4,
                    "branch": "side" if arm == SIDE else "serial", "weight_bytes": 90, "l2_bytes": 60, "copy_gb_s": 4300.0,
                    "rounds_us": [us * (1 + 0.001 * ((i + tokens + len(arm)) % 5)) for i in range(8)], "median_us": us,
                    "floor_us": 10.0, "busy": {"summed_us": summed, "union_us": us * 0.9, "overlap_us": summed - us * 0.9},
                    "bits": dict.fromkeys(OUTPUTS, True), "check": {"passed": passed, "error": 1e-3, "limit": 5e-3},
                })  # fmt: skip
    records[0]["provenance"] = {"device": {"name": "NVIDIA H200"}}
    return Study(tuple(records), 3.0)


def test_without_a_gpu_sizes_are_small_and_nothing_is_timed(tmp_path: Path) -> None:
    """Equality and truth table are checked, every step about times says why it shows nothing, and it passes."""
    study = opened(tmp_path)
    assert study.plan.model is SMALL
    study.check(0)
    nothing = [
        study.measure(),
        study.table(),
        study.figure(),
        study.sums(),
        study.bits(),
        study.trace([8, 4]),
        study.lanes(),
    ]
    assert all(str(said).startswith("not timed") for said in nothing)
    verdict = study.verdict()
    assert verdict.passed
    assert verdict.sentence.startswith("pass: truth tables of 3 versions, 16 of 16 arms right; not timed")
    assert json.loads((tmp_path / "verdict.json").read_text())["evidence"] == {
        "policy_rows": 8, "equality_rows": 16, "timed_cells": 0
    }  # fmt: skip


def test_tables_of_policy_and_sizes(tmp_path: Path) -> None:
    """Eight settings of which two are marked as changed; one line an attention-parallel size."""
    study = opened(tmp_path)
    truth = study.truth_table().data
    assert (len(truth), int((truth[""] == "changed").sum())) == (8, 2)
    assert list(truth.columns[3:6]) == ["before", "thread", "landed"]
    full = replace(study, plan=replace(study.plan, model=K3)).sizes().data
    assert full["QKVG rows"].tolist() == [24576, 6144]
    assert full["split"].tolist() == ["18432 / 6144", "4608 / 1536"]


def test_measured_cells_are_shown(tmp_path: Path) -> None:
    """Speedups, sums that rise while walls fall, bits, a figure in the run's folder, and one sentence of them all."""
    study = opened(tmp_path)
    study.check(0)
    study.study = measured()
    table = study.table().data
    assert table["verdict"].tolist() == ["faster"] * 8
    assert study.sums().data[""].tolist() == ["sum rises, wall falls"] * 4
    assert study.bits().data["same bits"].tolist() == [4, 4]
    picture = study.figure()
    assert "three + side, graph 1.43×" in picture.title
    assert (tmp_path / "projection_fusion.svg").is_file()
    assert any("NVIDIA H200 · 8 rounds in mirrored order" in text.get_text() for text in picture.texts)
    sentence = study.verdict().sentence
    assert "three_side graph geomean 1.4" in sentence
    assert sentence.endswith("4 faster, 0 slower of 4")


def test_drawn_x_is_told_in_a_sentence(tmp_path: Path) -> None:
    """The worst error and how far the largest element stands out; no picture. Every compared line is on disk."""
    study = opened(tmp_path)
    assert len(study.check(0).data) == 16
    said = study.errors()
    assert re.fullmatch(r"x is drawn: worst error [1-4]\.\d\de-3, \|x\| up to [34]\.\d times its rms", str(said))
    assert not (tmp_path / "projection_errors.svg").exists()
    lines = list(read_json_lines(tmp_path / "equality.jsonl"))
    assert len(lines) == 16 and {line["x"]["source"] for line in lines} == {"random"}


def test_real_x_stands_beside_drawn_x(tmp_path: Path) -> None:
    """One width, four kinds of rows of five sizes; records name both sources; figures and verdict say what is real."""
    study = opened(tmp_path, FOLDER)
    assert study.plan.model == replace(SMALL, hidden=576) and study.plan.x is study.inputs.timed
    shown = study.check(0).data
    assert shown["x"].unique().tolist() == ["random", "layer 0", "layer 15", "layer 29"] and len(shown) == 80
    lines = list(read_json_lines(tmp_path / "equality.jsonl"))
    assert {(line["x"]["source"], line["hidden"], line["weights"]) for line in lines} == {
        ("random", 576, "random"), ("smollm", 576, "random")
    }  # fmt: skip
    picture = study.errors()
    assert "on real x (|x| up to 27 × rms)" in picture.title and (tmp_path / "projection_errors.png").is_file()
    study.study = measured()
    feet = [" ".join(text.get_text() for text in figure.texts) for figure in (picture, study.figure())]
    assert all("SmolLM2" in foot and "weights drawn" in foot for foot in feet)
    assert "4 heads of 8" in feet[0]
    verdict = study.verdict()
    assert verdict.passed
    assert re.search(r"x random: worst error [1-4]\.", verdict.sentence)
    assert re.search(r"x smollm: worst error [1-4]\.\d\de-3, \|x\| up to 27 times its rms", verdict.sentence)


@pytest.mark.parametrize("source", ["random", "smollm"])
def test_an_arm_that_is_wrong_on_one_source_fails(source: str, tmp_path: Path) -> None:
    """Right on the other one is not enough; nor is a source on which nothing was compared."""
    study = opened(tmp_path, FOLDER)
    study.check(0)
    rows = study.rows
    study.rows = [replace(r, error=6e-3) if r.x.record()["source"] == source else r for r in rows]
    assert not study.verdict().passed
    study.rows = [r for r in rows if r.x.record()["source"] != source]
    assert any("was not compared on" in failure for failure in study.verdict().failures)
    study.rows = rows
    assert study.verdict().passed


def test_a_source_that_cannot_serve_is_refused(tmp_path: Path) -> None:
    """An unknown one, and a plan with more tokens than it has."""
    with pytest.raises(ParameterError, match="x_source is 'gemma'"):
        opened(tmp_path, "gemma")
    with pytest.raises(ParameterError, match="tokens is 512; allowed: at most 256"):
        ProjectionSession.open(Session.open("study", str(tmp_path), "cpu"), Plan(tokens=(512,)), FOLDER)


@pytest.mark.parametrize("broken", ["policy", "values", "laws"])
def test_what_is_wrong_fails_the_verdict(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that differs from its table, a record beyond its limit, a law that does not hold."""
    study = opened(tmp_path)
    study.check(0)
    if broken == "policy":
        monkeypatch.setitem(policy.VERSIONS, "landed", lambda s: True)
    elif broken == "values":
        study.study = measured(wrong=SIDE)
    else:
        study.laws = ["f_a or b does not share the memory of the merged weight"]
    verdict = study.verdict()
    assert not verdict.passed
    with pytest.raises(VerificationError, match="fail: truth tables"):
        verdict.raise_if_failed()


def test_a_gpu_without_a_measured_cell_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that reached nothing is no pass where something could have been timed."""
    study = opened(tmp_path)
    study.check(0)
    monkeypatch.setattr(projection_session, "why_not_timed", lambda device: "")
    assert study.verdict().failures == ("a GPU is here and no cell was measured",)


def test_traces_are_cut_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both arms' traces go through the slice tool; its files stand in the run's folder. An empty profile is said."""
    study = opened(tmp_path)
    made_up = Path(__file__).parents[2] / "data" / "traces"
    files = {FIVE: made_up / "made_up_unfused.pt.trace.json.gz", SIDE: made_up / "made_up_fused.pt.trace.json.gz"}
    monkeypatch.setattr(projection_session, "why_not_timed", lambda device: "")
    monkeypatch.setattr(projection_session, "cuda_bench", lambda device: None)
    monkeypatch.setattr(projection_session, "write_traces", lambda at, plan, bench, folder: {})
    assert study.trace([8, 4]) == "the profiler recorded no kernel"
    monkeypatch.setattr(projection_session, "write_traces", lambda at, plan, bench, folder: files)
    marker = projection_session.compare_traces.__globals__["Marker"]("moe_fused_gate", per_step=12, first=4, last=8)
    monkeypatch.setitem(projection_session.compare_traces.__globals__, "MARKER", marker)
    shown = study.trace([8, 4]).data
    assert shown["measure"].tolist()[:3] == ["wall, µs", "union of intervals, µs", "idle, µs"]
    assert (tmp_path / "slices" / "slices.csv").is_file()
    assert study.lanes().title.startswith("Wall of the slice")


def test_on_a_gpu_the_sizes_are_the_models() -> None:
    """A session on a CUDA device has the model's sizes; with real x all but the width."""
    session = Session(None, torch.device("cuda", 0))  # type: ignore[arg-type]
    assert ProjectionSession.open(session, Plan()).plan.model is K3
    assert ProjectionSession.open(session, Plan(), FOLDER).plan.model == replace(K3, hidden=576)


@pytest.mark.parametrize("at", [[8], [], [8, 4, 2], [7, 4], [8, 0], [8, 512]])
def test_calls_that_cannot_be_traced_are_refused_at_once(tmp_path: Path, at: list[int]) -> None:
    """Not two numbers, a size that does not divide the heads, no tokens, or more than the real rows."""
    with pytest.raises(ParameterError, match=r"trace_at is|attn_tp|tokens is"):
        ProjectionSession.open(Session.open("study", str(tmp_path), "cpu"), Plan(tokens=(1,)), FOLDER, at)
