"""Reading of runs in any state: broken lines are named, never fatal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kda_lab.report.records import NOT_TIMED, NOT_TIMED_INTERPRETER, flat, read_run, started
from kda_lab.run_folder import RunFolder, write_json, write_json_lines


def test_an_empty_folder_is_an_empty_run(tmp_path: Path) -> None:
    """Missing files are no problem: there is simply nothing."""
    found = read_run(RunFolder.at(tmp_path))
    assert (found.verify, found.timing, found.verdict, found.problems, found.ops) == ((), (), None, (), ())
    assert (found.not_timed, found.captures_sha256, found.device) == (NOT_TIMED, "", {})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "verify.jsonl line 2: cannot be read: Expecting property name"),
        ("[1]", "verify.jsonl line 2: holds list; allowed: a JSON object."),
        ('{"kind": "dream"}', "verify.jsonl line 2: kind is 'dream'; allowed: replay, power, timing, stress, refused."),
        ('{"kind": []}', "verify.jsonl line 2: kind is []; allowed: replay, power"),
        ('{"kind": "refused", "arm": 3, "reason": "r"}', "a refused record whose arm has the wrong type."),
        (
            '{"kind": "timing", "op": "o", "row": "r", "axes": {}, "arm": "a", "role": "peer", "trial": 0, "median_us": NaN}',
            "median_us is nan; allowed: a finite time above 0.",
        ),
        ("[" * 100_000, "verify.jsonl line 2: cannot be read: "),
        ('{"kind": "refused", "arm": "a"}', "verify.jsonl line 2: a refused record without reason."),
        (
            '{"kind": "power", "capture": "c", "killed": "x", "total": 1, "mutants": []}',
            "whose killed has the wrong type.",
        ),
        ('{"kind": "power", "capture": "c", "killed": 1, "total": 1, "mutants": [3]}', "with an entry without name."),
        (
            '{"kind": "replay", "op": "o", "capture": "c", "arm": "a", "checks": 3, "errors": {}}',
            "whose checks has the wrong type.",
        ),
    ],
)
def test_a_broken_line_is_named_and_the_others_are_kept(tmp_path: Path, line: str, words: str) -> None:
    """The problem gives file, line and fault; the good line before it is still read."""
    run = RunFolder.at(tmp_path)
    run.verify_records.write_text('{"kind": "refused", "arm": "a", "reason": "r"}\n' + line + "\n")
    found = read_run(run)
    assert len(found.verify) == 1 and len(found.problems) == 1 and words in found.problems[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("{", "chain.jsonl line 1: cannot be read: Expecting property name"),
        ("[]", "chain.jsonl line 1: holds list; allowed: a JSON object."),
        ({"kind": "timing"}, "chain.jsonl line 1: timing: record.kind is 'timing'; allowed: chain, check, refused"),
        ({"median_us": -1.0}, "chain.jsonl line 1: timing: record.median_us is -1.0"),
        ({"telemetry": {}}, "chain.jsonl line 1: timing: record.telemetry.sm_clock_mhz"),
        ({"axes": {"M": 8}}, "chain.jsonl line 1: axes.rows is None; allowed: the labels of the layer's products."),
        ({"axes": {"rows": [3]}}, "chain.jsonl line 1: axes.rows is [3]; allowed"),
    ],
)
def test_a_broken_line_of_a_chain_is_named(
    tmp_path: Path, fill_chain: Callable[..., RunFolder], change: str | dict[str, Any], words: str
) -> None:
    """The problem gives line and fault; the other lines are still read."""
    run = fill_chain(tmp_path)
    path = run.path / "chain.jsonl"
    lines = path.read_text().splitlines()
    last = json.loads(lines[-1])
    broken = change if isinstance(change, str) else json.dumps({**last, **change})
    path.write_text("\n".join([broken, *lines]))
    found = read_run(run)
    assert len(found.chain) == len(lines)
    assert len(found.problems) == 1 and found.problems[0].startswith(words), found.problems


def test_a_chain_alone_is_a_timed_run(tmp_path: Path, fill_chain: Callable[..., RunFolder]) -> None:
    """Op, device and times are known from chain.jsonl; its checks alone, on a CPU, are no times."""
    run = fill_chain(tmp_path)
    run.timing_records.unlink()
    run.provenance.unlink()
    found = read_run(run)
    assert (found.ops, found.device["name"], found.not_timed) == (("nvfp4.gemm",), "NVIDIA H200", "")
    assert len(found.chained) == 25
    checks = [{**r, "interpreter": True} for r in found.chain if r["kind"] == "check"]
    write_json_lines(run.path / "chain.jsonl", checks)
    assert read_run(run).not_timed == NOT_TIMED_INTERPRETER


@given(st.binary(max_size=80))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_no_bytes_at_all_make_reading_fail(tmp_path: Path, data: bytes) -> None:
    """Whatever bytes a file holds, reading gives records or problems, never an exception."""
    run = RunFolder.at(tmp_path)
    for path in (run.verify_records, run.path / "chain.jsonl", run.verdict, run.provenance, run.parameters):
        path.write_bytes(data)
    found = read_run(run)
    assert found.problems or not data.strip() or isinstance(found.parameters, dict)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "verdict.json: cannot be read"),
        ("[]", "verdict.json: holds list"),
        ('{"passed": "yes"}', "verdict.json: passed is 'yes'; allowed: true, false."),
    ],
)
def test_a_broken_verdict_is_no_verdict(tmp_path: Path, text: str, words: str) -> None:
    """A verdict that cannot be read is None and named; it never counts as passed."""
    run = RunFolder.at(tmp_path)
    run.verdict.write_text(text)
    found = read_run(run)
    assert found.verdict is None and found.problems[0].startswith(words)


def test_kinds_are_sorted_and_refusals_counted_once(
    tmp_path: Path, verify_records: list[dict[str, Any]], fill_run: Callable[..., RunFolder]
) -> None:
    """Replays, power and refusals are told apart; the same refusal twice is one."""
    run = fill_run(tmp_path, [], verify_records)
    write_json_lines(run.timing_records, [verify_records[-1], verify_records[-1]])
    found = read_run(run)
    assert (len(found.replays), len(found.power), len(found.refused), len(found.stress)) == (75, 15, 1, 0)
    assert found.ops == ("demo.attention",) and len(found.captures_sha256) == 64


def test_a_cpu_run_says_not_timed_interpreter(tmp_path: Path, verify_records: list[dict[str, Any]]) -> None:
    """A CPU or interpreter, from the provenance or a replay, is why there are no times."""
    run = RunFolder.at(tmp_path)
    write_json(run.provenance, {"device": {"type": "cpu", "name": "x"}})
    assert read_run(run).not_timed == NOT_TIMED_INTERPRETER
    run.provenance.unlink()
    write_json_lines(run.verify_records, [{**verify_records[0], "interpreter": True}])
    assert read_run(run).not_timed == NOT_TIMED_INTERPRETER


def test_device_falls_back_to_the_records(tmp_path: Path, verify_records: list[dict[str, Any]]) -> None:
    """Without provenance.json the device of a record is used."""
    run = RunFolder.at(tmp_path)
    write_json_lines(run.verify_records, [{**verify_records[0], "provenance": {"device": {"name": "H200"}}}])
    assert read_run(run).device == {"name": "H200"}


def test_flat_names_nested_values_in_order() -> None:
    """Nested mappings become dotted names; lists are joined and empty mappings shown."""
    value = {"b": {"y": [1, "two"], "x": None}, "a": True, "c": {}}
    assert flat(value) == [("a", "true"), ("b.x", "null"), ("b.y", "1, two"), ("c", "{}")]


def test_start_time_is_text_or_nothing() -> None:
    """Only a text counts as a start time."""
    assert (started({"started_utc": "2026"}), started({"started_utc": 3}), started({})) == ("2026", "", "")


def test_records_are_json(verify_records: list[dict[str, Any]]) -> None:
    """The fixtures are what a JSON file could hold."""
    assert json.loads(json.dumps(verify_records)) == verify_records
