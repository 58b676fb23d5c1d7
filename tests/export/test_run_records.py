"""Record files: whole lines with the fields that the gates use, and each run once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kda_lab.errors import ExportError
from kda_lab.export.candidate import read_candidate
from kda_lab.export.evidence import collect
from kda_lab.export.run_records import check_distinct, is_finite_number, read_records
from kda_lab.run_folder import RunFolder

WriteRun = Callable[..., RunFolder]
TOY = Path(__file__).with_name("toy_candidate.py")


def test_whole_records_are_read_as_they_are(write_run: WriteRun, records: Any) -> None:
    """Every record of a sound run is returned unchanged; a missing file has none."""
    verify, timing = records.verify(), records.timing({(1, "short"): 10.0})
    run = write_run(verify, timing)
    assert read_records(run.verify_records) == json.loads(json.dumps(verify))
    assert len(read_records(run.timing_records)) == len(timing)
    assert read_records(run.path / "absent.jsonl") == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"kind": "replay", "op"', r"allowed: one JSON object\. The run was cut short"),
        ("\udcff", "allowed: one JSON object"),
        ("[1, 2]", r"line 5 is \[1, 2\]; allowed: dict"),
        ("null", "line 5 is None; allowed: dict"),
        ("{}", "line 5: kind is 'absent'; allowed: str"),
        ('{"kind": 3}', "line 5: kind is 3; allowed: str"),
        ('{"kind": "replay"}', "line 5: op is 'absent'; allowed: str"),
        (
            '{"kind": "stress", "op": "o", "capture": "c", "capture_sha256": "", "arm": "a", "role": "candidate",'
            ' "launches": true, "differing": 0, "nonzero_state": {}, "failure": "", "passed": true}',
            "line 5: launches is True; allowed: int",
        ),
        ('{"kind": "refused", "provenance": null}', "line 5: provenance is None; allowed: dict"),
        ('{"kind": "refused", "provenance": {"device": {"type": "cuda"}}}', "line 5: provenance.device is "),
    ],
)
def test_malformed_line_is_refused_with_file_and_line(write_run: WriteRun, records: Any, line: str, words: str) -> None:
    """A torn line, another JSON type or a missing field is one refusal of the evidence gate, never a traceback."""
    run = write_run(records.verify())
    with run.verify_records.open("ab") as stream:
        stream.write(line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(ExportError, match=rf"export\.evidence: .*verify\.jsonl line 5.*{words.removeprefix('line 5')}"):
        collect([run], read_candidate(TOY))


def test_malformed_parts_of_a_record_are_named(write_run: WriteRun, records: Any) -> None:
    """A check or control that is not an object with its fields is named by its place."""
    verify = records.verify()
    verify[0]["checks"][2] = "passed"
    verify[1]["control"] = {"passed": "yes", "failed": []}
    run = write_run(verify)
    with pytest.raises(ExportError, match=r"line 1: checks\[2\] is 'passed'; allowed: dict"):
        read_records(run.verify_records)
    run = write_run(verify[1:])
    with pytest.raises(ExportError, match=r"line 1: control: passed is 'yes'; allowed: bool"):
        read_records(run.verify_records)


@pytest.mark.parametrize("median_us", [0, -1.5, True, "10", 10**400])
def test_impossible_times_are_refused(write_run: WriteRun, records: Any, median_us: object) -> None:
    """A time that is not a finite number above 0 would make any ratio, so it is no evidence."""
    timing = records.timing({(1, "short"): 10.0})
    timing[0]["median_us"] = median_us
    run = write_run([], timing)
    with pytest.raises(ExportError, match=r"export\.evidence: .*timing\.jsonl line 1: median_us is "):
        read_records(run.timing_records)


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    """A folder in the place of a record file is said so."""
    with pytest.raises(ExportError, match="allowed: a file that can be read"):
        read_records(tmp_path)


def test_copied_run_counts_once(write_run: WriteRun, records: Any) -> None:
    """The same record file under another run name is refused; empty files are no copies of each other."""
    runs = [write_run(records.verify(), name=name) for name in ("a", "b")]
    with pytest.raises(ExportError, match=r"runs is 'a, b: the same verify\.jsonl'; allowed: each run once"):
        collect(runs, read_candidate(TOY))
    check_distinct([runs[0], write_run([], name="c"), write_run([], name="d")])


@pytest.mark.parametrize(
    ("value", "expected"), [(1, True), (0.5, True), (True, False), ("1", False), (None, False), (float("nan"), False)]
)
def test_what_counts_as_a_number(value: object, expected: bool) -> None:
    """Whole and floating numbers do; booleans, text, nothing and NaN do not."""
    assert is_finite_number(value) is expected


def test_scalars_of_a_record_are_an_object(write_run: WriteRun, records: Any) -> None:
    """A record may lack them; anything but an object is refused before a gate asks for a value of it."""
    verify = records.verify()
    verify[0]["scalars"] = "bfloat16"
    with pytest.raises(ExportError, match=r"line 1: scalars is 'bfloat16'; allowed: dict"):
        read_records(write_run(verify).verify_records)
