"""What both notebooks over chains share: where records go, and what is said where nothing is timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from kda_lab.notebook.chain_run import ChainRun
from kda_lab.notebook.session import Session
from kda_lab.timing.chain.plan import ChainPlan


class Kept(ChainRun):
    """A chain whose records go into one file of the run."""

    noun = "chain"

    @property
    def _path(self) -> Path:
        return self.session.run.path / "kept.jsonl"


def test_records_are_kept_and_told_apart(tmp_path: Path) -> None:
    """Checks and timed trials stand in one file; nothing timed on a CPU has a reason."""
    session = Session.open("a chain", str(tmp_path / "run"), "cpu")
    chain = Kept(session, op=None, plan=cast(ChainPlan, None), seed=0)
    records: list[dict[str, Any]] = [{"kind": "check", "n": 1}, {"kind": "chain", "n": 2}]
    chain._keep(records)
    assert [json.loads(line) for line in (tmp_path / "run" / "kept.jsonl").read_text().splitlines()] == records
    assert (chain._checks, chain._timed) == ([records[0]], [records[1]])
    assert chain._time(5) == chain._why_not() == "not timed (interpreter)"
    assert chain.protocol.trials == 5


def test_a_chain_of_no_kind_has_no_file(tmp_path: Path) -> None:
    """The file is the subclass's to name."""
    with pytest.raises(NotImplementedError):
        ChainRun(Session.open("none", str(tmp_path / "run"), "cpu"), None, cast(ChainPlan, None), 0)._keep([])
