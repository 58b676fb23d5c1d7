"""A QSA session walks the pipeline once: every stage checked, pictures drawn, and a fault in a stage fails the verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kda_lab.errors import ParameterError, VerificationError
from kda_lab.notebook import Session, qsa_session
from kda_lab.notebook.qsa_session import QsaSession, selected_count
from kda_lab.ops.protocol import Arm, Row
from kda_lab.ops.registry import Op
from kda_lab.run_folder import RunFolder

NOT_TIMED = "not timed (interpreter)"
CONTEXT, BATCH = 96, 2


def opened(run: Path, topology: str = "tp2", context: int = CONTEXT, batch: int = BATCH) -> QsaSession:
    """A session over a short text on the CPU."""
    session = Session.open("test", str(run), "cpu")
    return QsaSession.open(session, context=context, batch=batch, topology=topology, seed=3)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> QsaSession:
    """A session after every step but the verdict."""
    pipeline = opened(tmp_path_factory.mktemp("run"))
    pipeline.compress()
    pipeline.select()
    pipeline.attend("direct")
    return pipeline


def test_every_stage_is_checked_and_right(walked: QsaSession) -> None:
    """From the keys of the prompt to the drafted row; index work is equal, the rest within its limit."""
    assert [c.stage for c in walked.checks if not c.passed] == []
    stages = {c.stage: c for c in walked.checks}
    assert [name for name, check in stages.items() if check.limit == 0] == [
        "blocks", "tokens", "compaction", "draft row: tokens", "draft row: compaction",
    ]  # fmt: skip
    assert {"keys of the prompt", "key of the step", "scores", "packed attention", "paged attention"} < set(stages)
    assert stages["end to end: packed attention"].error < 5e-3
    assert stages["packed attention"].arm == "kda_lab.qsa.packed_decode"


def test_the_verdict_passes_and_is_written(walked: QsaSession) -> None:
    """Counts, and that nothing was timed; the file holds the same."""
    assert walked.time(5, ["direct"]) == NOT_TIMED
    assert walked.time_figure() == NOT_TIMED
    verdict = walked.verdict()
    verdict.raise_if_failed()
    count = len(walked.checks)
    assert verdict.sentence == f"pass: {count} of {count} checks along the pipeline right; {NOT_TIMED}"
    assert json.loads(walked.session.run.verdict.read_text())["passed"] is True


def test_on_a_gpu_every_stage_and_way_is_timed(
    walked: QsaSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row a stage with kernel and baseline, one row with the ways; the verdict asks for a time of each."""
    asked: dict[str, list[tuple[str, str]]] = {}

    def time_rows(op: Op, rows: list[Row], arms: list[tuple[Arm, str]], run: RunFolder, **how: object) -> None:
        asked[rows[0].label] = [(arm.name, role) for arm, role in arms]
        assert how["protocol"].label == "v1 (trials=7, max_calls_per_graph=1024, max_graph_us=20000.0)"  # type: ignore[attr-defined]

    monkeypatch.setattr(qsa_session, "why_not_timed", lambda device: "")
    monkeypatch.setattr(qsa_session, "time_rows", time_rows)
    here = replace(walked, session=Session.open("timed", str(tmp_path), "cpu"))
    assert here.time(7, ["direct"]) == "0 records"
    assert list(asked) == [
        "key of the step", "scores", "blocks", "tokens", "compaction", "packed attention", "paged attention",
    ]  # fmt: skip
    assert all([role for _, role in arms] == ["candidate", "baseline"] for arms in list(asked.values())[:-1])
    assert [role for _, role in asked["paged attention"]] == ["candidate", "baseline", "peer"]
    failures = here.verdict().failures
    assert failures == tuple(f"{stage}: not timed" for stage in asked)
    with pytest.raises(ParameterError, match="no stage has a time"):
        here.time_figure()


def test_tables_and_pictures_tell_what_was_found(walked: QsaSession) -> None:
    """Rows, counts on the curve, the draft's gap; pictures and records stand in the run's folder."""
    assert "synthetic" in walked.inputs().to_html()
    assert "2 of 2 rows of this run lie on the curve" in walked.counts().title
    assert "reads 3 holes and drops the 3 newest tokens" in walked.draft_figure().title
    assert f"Of {len(walked.checks)} checks along the pipeline {len(walked.checks)} are right" in (
        walked.error_figure().title
    )
    names = ("selection", "counts", "draft", "stage_errors")
    assert all((walked.session.run.path / f"{name}.png").is_file() for name in names)
    lines = [json.loads(line) for line in (walked.session.run.path / "stages.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in lines] == [c.stage for c in walked.checks]
    assert "row 1" in walked.left_out().to_html()


def test_the_naive_copy_is_far_off(walked: QsaSession) -> None:
    """Three stale rows instead of the newest tokens: no rounding looks like that."""
    assert walked.draft is not None
    assert walked.draft.naive_error > 0.05


def test_a_wrong_choice_is_found_by_the_exact_scores(walked: QsaSession) -> None:
    """Leaving out the best block of a row shows, whatever the order of the others."""
    blocks = walked.calls["blocks"].outputs["blocks"].clone()
    best = int(walked.calls["scores"].outputs["scores"][0, : CONTEXT // 4].argmax())
    row = blocks[0][blocks[0] != best]
    blocks[0] = torch.cat([row, row.new_tensor([-1])])
    check = walked._check_choice(blocks)
    assert not check.passed
    assert f"row 0: {CONTEXT // 4 - 1} ids; allowed: {CONTEXT // 4}" in check.detail
    assert check.error > check.limit


def test_a_wrong_stage_fails_the_verdict(walked: QsaSession) -> None:
    """The failure names stage, arm and what is wrong; a stage that was not checked is one too."""
    broken = replace(
        walked, checks=[replace(walked.checks[0], detail="error is 1; allowed: at most 0.002"), *walked.checks[2:]]
    )
    verdict = broken.verdict()
    assert any(f.startswith("keys of the prompt (") and "error is 1" in f for f in verdict.failures)
    assert "key of the step: not checked" in verdict.failures
    with pytest.raises(VerificationError, match="fail: "):
        verdict.raise_if_failed()


def test_steps_out_of_order_are_refused(tmp_path: Path) -> None:
    """The message names the step that is missing."""
    pipeline = opened(tmp_path)
    with pytest.raises(ParameterError, match=r"indexed is None; allowed: what compress\(\) makes"):
        pipeline.select()
    with pytest.raises(ParameterError, match=r"draft is None; allowed: a drafted row. Call attend\(\) first"):
        pipeline.draft_figure()


def test_an_unknown_topology_is_refused(tmp_path: Path) -> None:
    """The message lists the known ones."""
    with pytest.raises(ParameterError, match="topology is 'tp4'; allowed: 'tp1', 'tp2'"):
        opened(tmp_path, "tp4")


@pytest.mark.parametrize(
    ("length", "count"),
    [(1, 1), (3, 3), (4, 4), (2047, 2047), (2050, 2050), (2051, 2051), (2052, 2048), (262143, 2051), (262144, 2048)],
)
def test_the_saw_tooth(length: int, count: int) -> None:
    """Golden values of the count of selected tokens."""
    assert selected_count(length) == count
