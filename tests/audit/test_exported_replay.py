"""Replay in the audit: bits, path proof and gates of a real run, and how each answer of the worker is judged."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kda_lab.audit import exported_replay
from kda_lab.audit.exported_replay import check_replay, chosen
from kda_lab.audit.exported_replay_worker import answer
from kda_lab.captures.store import CaptureSet


def outcomes(toy: Any, every: bool = False) -> dict[str, Any]:
    """Check to outcome, on the CPU."""
    return {o.check: o for o in check_replay(toy.kernel, every, "cpu")}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is off on a machine with a GPU")
def test_a_real_replay_gives_the_bits_proves_the_path_and_passes_the_gates(
    toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The toy, loaded through its contract, runs in the interpreter on the smallest capture.

    In this process, which has the interpreter on already: a child would spend most of its time on imports.
    """
    monkeypatch.setattr(exported_replay, "_run", lambda request: (answer(request), ""))
    # Fewer, wider steps: the interpreter's time goes by their number.
    toy.export_source(toy.source.read_text().replace("BLOCK=32", "BLOCK=512"))
    found = outcomes(toy)
    assert {o.status for o in found.values()} == {"passed"}
    where = "tp2-B1-short on cpu in the interpreter"
    assert found["replay"].words == f"the candidate's bits, loaded through the contract; {where}"
    assert found["path"].words == "_toy_kernel ran, from the exported folder"
    assert found["gates"].words == f"every gate of qsa.packed_decode passed; {where}"


def test_the_smallest_capture_is_chosen_unless_all_are_asked_for(toy: Any) -> None:
    """One capture by default, the one with the fewest elements, whatever the order in the set."""
    captures = CaptureSet.open(toy.places.captures / "qsa.packed_decode")
    assert list(captures.names()) == ["tp2-B2-short", "tp2-B1-short"]
    assert chosen(captures, every=False) == ["tp2-B1-short"]
    assert chosen(captures, every=True) == ["tp2-B2-short", "tp2-B1-short"]


def test_many_captures_are_counted(toy: Any, replayed_before: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A few captures are named, more are counted, so that the line stays one."""
    monkeypatch.setattr(exported_replay, "chosen", lambda _captures, _every: [f"c{i}" for i in range(4)])
    assert outcomes(toy)["gates"].words.endswith("; 4 captures on cpu in the interpreter")


def test_cuda_without_a_gpu_is_not_replayed(toy: Any) -> None:
    """A torch twin never stands in for a kernel: nothing runs and nothing is called passed."""
    toy.edit_contract(lambda c: c.update(language="cuda"))
    found = outcomes(toy)
    assert {o.status for o in found.values()} == {"not run"}
    assert {o.words for o in found.values()} == {"not replayed: no GPU, and CUDA C++ has no interpreter"}


def test_without_captures_nothing_is_replayed(toy: Any) -> None:
    """The reason is the store's."""
    (toy.places.captures / "qsa.packed_decode" / "manifest.json").unlink()
    found = outcomes(toy)
    assert {o.status for o in found.values()} == {"not run"}
    assert found["gates"].words.startswith("not replayed: captures: ")


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({"different": ["tp2-B1-short"]}, "replay", "other bits than the candidate on tp2-B1-short"),
        ({"candidate_fault": "OSError: x"}, "replay", "does not run where the export does: OSError: x"),
        ({"launches": {"c": {}}}, "path", "one call on c launched 0 of its kernels; the contract says 1"),
        ({"launches": {"c": {"_toy_kernel": 2}}}, "path", "one call on c launched 2 of its kernels"),
        ({"launches": {"c": {"my_toy_kernel": 1}}}, "path", "one call on c launched 0 of its kernels"),
        ({"foreign": ["_toy_kernel"]}, "path", "_toy_kernel comes from a file outside the kernel's folder"),
        ({"failed": {"c": ["error_fp32"]}}, "gates", "on c the checks error_fp32 failed"),
    ],
    ids=["bits", "candidate", "nothing ran", "ran twice", "another ran", "foreign", "gates"],
)
def test_each_answer_fails_exactly_its_check(
    toy: Any, replayed_before: dict[str, Any], change: dict[str, Any], check: str, words: str
) -> None:
    """What the worker saw decides one check; the other two stand."""
    replayed_before.update(change)
    found = outcomes(toy)
    assert {name for name, o in found.items() if o.status == "failed"} == {check}
    assert words in found[check].words


def test_a_profilers_name_is_recognised(toy: Any, replayed_before: dict[str, Any]) -> None:
    """On a GPU a whole signature stands where the interpreter has a function's name; copies beside it do not count."""
    names = {"void _toy_kernel<12, 256>(unsigned short const*, int)": 1, "Memset (Device)": 3}
    replayed_before["launches"] = {"c": names}
    assert outcomes(toy)["path"].status == "passed"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "the candidate moved on and gives the same bits"),
        ({"different": ["c"]}, "the candidate moved on and gives other bits on c"),
        ({"candidate_fault": "SyntaxError: x"}, "the candidate moved on and does not run here (SyntaxError: x)"),
    ],
    ids=["same", "other", "broken"],
)
def test_a_candidate_that_moved_on_accuses_nobody(
    toy: Any, replayed_before: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    """Its bits are told and judged no further; the gates still judge the export."""
    toy.candidate.write_text(toy.candidate.read_text() + "\n")
    replayed_before.update(change)
    found = outcomes(toy)
    assert found["replay"].status == "noted"
    assert found["replay"].words.startswith(words)
    assert found["gates"].status == "passed"


def test_without_a_candidate_the_gates_still_judge(toy: Any, replayed_before: dict[str, Any]) -> None:
    """The export ran; there is only nothing to compare its bits with."""
    toy.candidate.unlink()
    found = outcomes(toy)
    assert found["replay"].status == "not run"
    assert found["gates"].status == found["path"].status == "passed"


def test_a_kernel_that_cannot_run_here_is_not_run(toy: Any, replayed_before: dict[str, Any]) -> None:
    """The arm's own reason is the words."""
    replayed_before["unavailable"] = "unavailable, because the moon is full"
    assert {o.words for o in outcomes(toy).values()} == {"not replayed: unavailable, because the moon is full"}


def _crash(*_arguments: Any, **_options: Any) -> Any:
    return subprocess.CompletedProcess([], 1, "", "Traceback\nValueError: no such luck\n")


def _silence(*_arguments: Any, **_options: Any) -> Any:
    return subprocess.CompletedProcess([], -9, "", "")


def _hang(*_arguments: Any, **_options: Any) -> Any:
    raise subprocess.TimeoutExpired("worker", 900)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (_crash, "the replay ended with exit code 1: ValueError: no such luck"),
        (_silence, "the replay ended with exit code -9: no word why"),
        (_hang, "the replay took more than 900 s"),
    ],
    ids=["crash", "killed", "hang"],
)
def test_a_kernel_that_ends_its_process_is_a_finding(
    toy: Any, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any], words: str
) -> None:
    """A crash, a kill or a hang of the worker fails the replay; path and gates are not called passed."""
    monkeypatch.setattr(exported_replay.subprocess, "run", run)
    found = outcomes(toy)
    assert found["replay"].words == words
    assert {name: o.status for name, o in found.items()} == {"replay": "failed", "path": "not run", "gates": "not run"}


def test_the_last_line_of_the_worker_is_its_answer(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel prints by itself is passed over; the child gets the folder, the captures and the device."""
    seen: dict[str, Any] = {}

    def run(command: list[str], **options: Any) -> Any:
        assert Path(command[1]).is_file()
        seen.update(json.loads(options["input"]))
        return subprocess.CompletedProcess(command, 0, 'noise\n{"unavailable": "not here", "device": "cpu"}\n', "")

    monkeypatch.setattr(exported_replay.subprocess, "run", run)
    assert outcomes(toy)["gates"].words == "not replayed: not here"
    assert seen["names"] == ["tp2-B1-short"]
    assert seen["functions"] == ["_toy_kernel"]
    assert (seen["folder"], seen["candidate"]) == (str(toy.folder.resolve()), str(toy.candidate.resolve()))
