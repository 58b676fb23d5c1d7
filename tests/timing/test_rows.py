"""All rows of a run: nothing on a CPU, a whole file after every row, and resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

from kda_lab.errors import ParameterError, TimingError
from kda_lab.ops import registry
from kda_lab.ops.protocol import Row
from kda_lab.run_folder import RunFolder
from kda_lab.timing import rows
from kda_lab.timing.protocol import Protocol

QUICK = Protocol(trials=2, spare_trials=0)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.at(tmp_path / "run")


@pytest.fixture
def cases() -> list[Row]:
    return [Row("fake.double", label, {"W": 64}) for label in ("first", "second", "third")]


@pytest.fixture
def arms(make_arm: Callable[..., Any]) -> list[tuple[Any, str]]:
    return [(make_arm("slow", 20.0), "baseline"), (make_arm("fast", 10.0), "candidate")]


@pytest.fixture
def on_gpu(op: Any, make_machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that a GPU is there: the fake machine and the fake op."""
    monkeypatch.setattr(registry, "load_op", lambda name: op)
    monkeypatch.setattr(rows, "why_not_timed", lambda device: "")
    monkeypatch.setattr(rows, "machine_for", lambda device: make_machine())
    return op


def test_nothing_is_timed_in_the_interpreter(
    op: Any, run: RunFolder, cases: Any, arms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the interpreter nothing runs, nothing is written, and the reason says so."""
    monkeypatch.setattr(rows.runtime, "interpreter_on", lambda: True)
    found = rows.time_rows("fake.double", cases, arms, run, device=torch.device("cpu"))
    assert found == rows.TimingRun([], 0, 0, "not timed (interpreter)")
    assert list(run.path.iterdir()) == []
    monkeypatch.setattr(rows.runtime, "interpreter_on", lambda: False)
    assert rows.time_rows("fake.double", cases, arms, run, device=torch.device("cpu")).reason == "not timed (no GPU)"


def test_all_rows_are_in_the_file_and_the_table(on_gpu: Any, run: RunFolder, cases: Any, arms: Any) -> None:
    """Three rows, three arms, two trials: eighteen lines, in order, and the same in Parquet."""
    found = rows.time_rows("fake.double", cases, arms, run, protocol=QUICK, progress=False)
    assert (found.timed_rows, found.resumed_rows, found.reason) == (3, 0, "")
    assert run.read_timing() == found.records
    assert [r["row"] for r in found.records] == ["first"] * 6 + ["second"] * 6 + ["third"] * 6
    assert len(pandas.read_parquet(run.path / rows.PARQUET)) == 18


def test_killed_run_keeps_whole_rows_and_resumes(on_gpu: Any, run: RunFolder, cases: Any, arms: Any) -> None:
    """A run that dies in its second row keeps the first; the next call times only the other two."""
    make_sets = on_gpu.cases.make_sets

    def dying(row: Row, count: int, seed: int, device: torch.device) -> Any:
        if row.label == "second":
            raise KeyboardInterrupt
        return make_sets(row, count, seed, device)

    on_gpu.cases.make_sets = dying
    with pytest.raises(KeyboardInterrupt):
        rows.time_rows("fake.double", cases, arms, run, protocol=QUICK, progress=False)
    first = run.read_timing()
    assert {r["row"] for r in first} == {"first"}
    on_gpu.cases.make_sets = make_sets
    again = rows.time_rows("fake.double", cases, arms, run, protocol=QUICK, progress=False)
    assert (again.timed_rows, again.resumed_rows) == (2, 1)
    assert again.records[:6] == first
    assert run.read_timing() == again.records


def test_complete_run_is_not_timed_again(on_gpu: Any, run: RunFolder, cases: Any, arms: Any) -> None:
    """A second call makes no input set, refused arms included."""
    arms[1][0].why_not = "unavailable, because of x"
    rows.time_rows("fake.double", cases, arms, run, protocol=QUICK, progress=False)
    made = len(on_gpu.made)
    again = rows.time_rows("fake.double", cases, arms, run, protocol=QUICK, progress=False)
    assert (again.timed_rows, again.resumed_rows, len(on_gpu.made)) == (0, 3, made)


@pytest.mark.parametrize("change", ["arm", "source", "role", "protocol", "device", "trials"])
def test_records_of_another_setup_are_timed_again(
    change: str,
    on_gpu: Any,
    run: RunFolder,
    cases: Any,
    arms: Any,
    make_arm: Callable[..., Any],
    make_machine: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another arm, source, role, protocol, device or number of trials makes a row incomplete."""
    rows.time_rows("fake.double", cases[:1], arms, run, protocol=QUICK, progress=False)
    protocol = QUICK
    if change == "arm":
        arms = [*arms, (make_arm("peer"), "peer")]
    elif change == "source":
        arms[1][0].source_sha256 = "0" * 64
    elif change == "role":
        arms = [arms[0], (arms[1][0], "peer")]
    elif change == "protocol":
        protocol = replace(QUICK, replays=3)
    elif change == "device":
        other = {"device": {"type": "cuda", "uuid": "other", "interpreter": False}}
        monkeypatch.setattr(rows, "machine_for", lambda device: make_machine(provenance=other))
    else:
        run.timing_records.write_text("".join(run.timing_records.read_text().splitlines(keepends=True)[:-1]))
    again = rows.time_rows("fake.double", cases[:1], arms, run, protocol=protocol, progress=False)
    assert (again.timed_rows, again.resumed_rows) == (1, 0)


def test_other_rows_and_modes_stay_in_the_file(on_gpu: Any, run: RunFolder, cases: Any, arms: Any) -> None:
    """A later call for other rows, or for warm times, adds to the file."""
    rows.time_rows("fake.double", cases[:1], arms, run, protocol=QUICK, progress=False)
    rows.time_rows("fake.double", cases[:1], arms, run, protocol=QUICK.warm(), progress=False)
    rows.time_rows("fake.double", cases[1:2], arms, run, protocol=QUICK, progress=False)
    assert list(dict.fromkeys(r["row"] for r in run.read_timing())) == ["first", "first (warm L2)", "second"]
    again = rows.time_rows("fake.double", cases[:1], arms, run, protocol=QUICK.warm(), progress=False)
    assert again.resumed_rows == 1


def test_lost_device_leaves_the_rows_before(
    on_gpu: Any,
    run: RunFolder,
    cases: Any,
    arms: Any,
    make_machine: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the device is lost in the second row, the first is in the file."""
    state: dict[str, bool] = {}
    make_sets = on_gpu.cases.make_sets

    def breaking(row: Row, count: int, seed: int, device: torch.device) -> Any:
        if row.label == "second":
            state["dead"] = True
            raise RuntimeError("illegal memory access")
        return make_sets(row, count, seed, device)

    def synchronise() -> None:
        if state:
            raise RuntimeError("gone")

    on_gpu.cases.make_sets = breaking
    monkeypatch.setattr(rows, "machine_for", lambda device: make_machine(synchronise=synchronise))
    with pytest.raises(TimingError, match="the device is lost after arm 'slow' on row 'second'"):
        rows.time_rows("fake.double", cases, arms, run, protocol=QUICK, progress=False)
    assert {r["row"] for r in run.read_timing()} == {"first"}


def test_rows_of_one_label_are_refused(run: RunFolder, cases: Any, arms: Any) -> None:
    """Two rows of one label would be one row in every table."""
    with pytest.raises(
        ParameterError, match=r"rows is \['first'\]; allowed: each label once\. Give the rows distinct labels\."
    ):
        rows.time_rows("fake.double", [*cases, cases[0]], arms, run)


def test_no_rows_write_nothing(on_gpu: Any, run: RunFolder, arms: Any) -> None:
    """An empty list of rows is an empty run, not an error."""
    assert rows.time_rows("fake.double", [], arms, run, progress=False).records == []
    assert list(run.path.iterdir()) == []


def test_eight_set_rows_stand_beside_the_cold_ones(on_gpu: Any, run: RunFolder, cases: Any, arms: Any) -> None:
    """A call in the mode eight adds labelled rows and leaves the cold ones; both resume on their own."""
    rows.time_rows("fake.double", cases[:1], arms, run, protocol=QUICK, progress=False)
    rows.time_rows("fake.double", cases[:1], arms, run, protocol=QUICK.eight(), progress=False)
    assert list(dict.fromkeys(r["row"] for r in run.read_timing())) == ["first", "first (eight sets)"]
    assert rows.time_rows("fake.double", cases[:1], arms, run, protocol=QUICK.eight(), progress=False).resumed_rows == 1
