"""The loop over captures and arms: records, resumption, refusals and what it will not start with."""

from __future__ import annotations

import json

import pytest
from toy_op import BoundArm, CaptureSet, make_capture, make_op, write, zero

from kda_lab.errors import ParameterError
from kda_lab.ops.protocol import FunctionArm
from kda_lab.run_folder import RunFolder
from kda_lab.verify import sweep

CAPTURES = (make_capture("toy-a", seed=0), make_capture("toy-b", seed=1))


class Counting(FunctionArm):
    """A right arm that counts its binds in a list shared by all copies of it."""

    binds: list[str] = []  # noqa: RUF012 - shared on purpose, emptied by the fixture

    def bind(self, calls):
        self.binds.append(self.name)
        return super().bind(calls)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch):
    """`load_op` hands the toy op out, and provenance is cheap."""
    op = make_op()
    Counting.binds.clear()
    monkeypatch.setattr(sweep, "load_op", lambda name: op)
    facts = {"device": {"name": "toy cpu"}, "versions": {"torch": "1", "triton": "2"}}
    monkeypatch.setattr(sweep.runtime, "provenance", lambda device: facts)
    return op


def right(name: str = "right", digest: str = "a") -> FunctionArm:
    return Counting(name, write, source_sha256=digest)


def run(folder, arms=None, captures=CAPTURES, resume: bool = True):
    chosen = arms or [(right(), "candidate")]
    done = sweep.run_replays("toy.mean", CaptureSet(captures), chosen, "cpu", RunFolder.at(folder), False, resume)
    return done, [json.loads(line) for line in (folder / "verify.jsonl").read_text().splitlines()]


def test_one_record_a_capture_and_arm_and_one_power_a_capture(tmp_path) -> None:
    """The file holds what the result holds, in the order of the captures."""
    done, lines = run(tmp_path, [(right(), "candidate"), (right("slow"), "baseline")])
    assert [(r["kind"], r["capture"], r.get("arm")) for r in lines] == [
        ("replay", "toy-a", "right"),
        ("replay", "toy-a", "slow"),
        ("power", "toy-a", None),
        ("replay", "toy-b", "right"),
        ("replay", "toy-b", "slow"),
        ("power", "toy-b", None),
    ]
    assert lines == done.records
    assert done.verdict().passed
    assert (done.kept, done.path) == (0, tmp_path / "verify.jsonl")


def test_a_failing_candidate_fails_the_verdict(tmp_path) -> None:
    """The verdict of the result is that of its records."""
    done, _ = run(tmp_path, [(FunctionArm("zeros", zero), "candidate")])
    assert done.verdict().word == "fail"


def test_an_unavailable_arm_is_refused_with_its_reason(tmp_path) -> None:
    """A refused arm leaves a record and does not stop the others."""
    gone = BoundArm("gpu_only", lambda call: print, reason="unavailable, because there is no GPU")
    _, lines = run(tmp_path, [(gone, "peer"), (right(), "candidate")])
    refused = [r for r in lines if r["kind"] == "refused"]
    assert [r["reason"] for r in refused] == ["unavailable, because there is no GPU"] * 2
    assert sum(r["kind"] == "replay" for r in lines) == 2


def test_resume_keeps_what_is_the_same(tmp_path) -> None:
    """A second run of the same inputs launches nothing and ends with the same file."""
    _, before = run(tmp_path)
    Counting.binds.clear()
    done, after = run(tmp_path)
    assert (Counting.binds, done.kept) == ([], 4)
    assert after == before


def test_a_killed_run_goes_on_where_it_was(tmp_path) -> None:
    """Captures that were finished before the kill are kept; the one in progress is done again."""

    class Killed(Exception):  # noqa: N818
        pass

    class Cut(CaptureSet):
        def load(self, name, device="cpu"):
            if name == "toy-b":
                raise Killed
            return super().load(name, device)

    with pytest.raises(Killed):
        sweep.run_replays("toy.mean", Cut(CAPTURES), [(right(), "candidate")], "cpu", RunFolder.at(tmp_path), False)
    Counting.binds.clear()
    done, lines = run(tmp_path)
    assert (Counting.binds, done.kept, len(lines)) == (["right"], 2, 4)


def test_a_failure_is_kept_and_not_tried_again(tmp_path) -> None:
    """A failed record of the same inputs stays failed: nothing is repeated until it passes."""
    run(tmp_path, [(FunctionArm("right", zero, source_sha256="a"), "candidate")])
    done, lines = run(tmp_path)
    assert Counting.binds == []
    assert [r["passed"] for r in lines if r["kind"] == "replay"] == [False, False]
    assert done.verdict().word == "fail"


@pytest.mark.parametrize("changed", ["source", "role", "capture", "judging", "resume"])
def test_anything_else_is_done_again(tmp_path, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    """Another source, role, capture or judging code, or resume=False, replays the arm anew."""
    run(tmp_path)
    Counting.binds.clear()
    arm = right(digest="b") if changed == "source" else right()
    captures = (
        CAPTURES if changed != "capture" else tuple(make_capture(c.name, seed=i + 7) for i, c in enumerate(CAPTURES))
    )
    if changed == "judging":
        monkeypatch.setattr(sweep, "judging_sha256", lambda op: "other")
    role = "baseline" if changed == "role" else "candidate"
    _, lines = run(tmp_path, [(arm, role)], captures, resume=changed != "resume")
    assert Counting.binds == ["right", "right"]
    assert len(lines) == 4


def test_records_of_other_captures_and_arms_stay(tmp_path) -> None:
    """Two sweeps into one run folder add up; the second replaces only its own records."""
    run(tmp_path, [(right("first"), "candidate")], CAPTURES[:1])
    _, lines = run(tmp_path, [(right("second"), "candidate")], CAPTURES[1:])
    assert [(r["kind"], r.get("arm")) for r in lines] == [
        ("replay", "first"),
        ("power", None),
        ("replay", "second"),
        ("power", None),
    ]


def test_every_record_says_what_judged_it(tmp_path, toy) -> None:
    """Records carry the hash of the judging code, the device's name and the versions they rest on."""
    _, lines = run(tmp_path)
    assert {(r["judging_sha256"], r["device_name"], r["torch"]) for r in lines} == {
        (sweep.judging_sha256(toy), "toy cpu", "1")
    }


def test_judging_hash_follows_the_ops_files(tmp_path, toy) -> None:
    """A change of any file in the op's folder is another judge."""
    file = tmp_path / "oracle.py"
    toy.oracle.__file__ = str(file)
    file.write_text("a = 1\n")
    before = sweep.judging_sha256(toy)
    file.write_text("a = 2\n")
    assert sweep.judging_sha256(toy) != before
    (tmp_path / "gates.py").write_text("\n")
    assert len({before, sweep.judging_sha256(toy)}) == 2


def test_judging_hash_follows_what_ops_share(tmp_path, toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits, comparisons and formats that stand beside the op folders are part of the judge too; another op is not."""
    monkeypatch.setattr(sweep.protocol, "__file__", str(tmp_path / "protocol.py"))
    (tmp_path / "gate.py").write_text("limit = 1\n")
    before = sweep.judging_sha256(toy)
    (tmp_path / "gate.py").write_text("limit = 2\n")
    assert sweep.judging_sha256(toy) != before
    for folder, counts in (("format", True), ("other_op", False)):
        before = sweep.judging_sha256(toy)
        (tmp_path / folder).mkdir()
        if not counts:
            (tmp_path / folder / "spec.py").write_text("\n")
        (tmp_path / folder / "rounding.py").write_text("\n")
        assert (sweep.judging_sha256(toy) != before) == counts


def test_a_progress_bar_is_shown_on_request(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    """With progress on, the bar names the op; with it off nothing is printed."""
    run(tmp_path / "quiet")
    assert capsys.readouterr().err == ""
    arms = [(right(), "candidate")]
    sweep.run_replays("toy.mean", CaptureSet(CAPTURES), arms, "cpu", RunFolder.at(tmp_path / "loud"))
    assert "replay toy.mean" in capsys.readouterr().err


@pytest.mark.parametrize(
    "captures, arms, words",
    [
        ((), [(FunctionArm("a", write), "candidate")], "captures is an empty set; allowed: at least one capture"),
        (CAPTURES, [], r"arms is an empty list; allowed: at least one \(arm, role\) pair"),
        (
            CAPTURES,
            [(FunctionArm("a", write), "judge")],
            "role of a is 'judge'; allowed: candidate, baseline, peer, control",
        ),
        (CAPTURES, [(FunctionArm("a", write), "mutant")], "role of a is 'mutant'"),
        (
            CAPTURES,
            [(FunctionArm("a", write), "candidate"), (FunctionArm("a", zero), "peer")],
            r"arms is \['a'\]; allowed: each name once. Rename one of the arms.",
        ),
    ],
    ids=["no-capture", "no-arm", "role", "mutant-role", "twice"],
)
def test_requests_that_are_refused(tmp_path, captures, arms, words: str) -> None:
    """Requests that could give no evidence, or records that overwrite each other, are refused before anything runs."""
    with pytest.raises(ParameterError, match=words):
        sweep.run_replays("toy.mean", CaptureSet(captures), arms, "cpu", RunFolder.at(tmp_path), False)
    assert not (tmp_path / "verify.jsonl").exists()


def test_stress_records_join_the_file(tmp_path) -> None:
    """Only candidates are stressed; new stress records replace the old ones and leave the others."""
    arms = [(right(), "candidate"), (right("slow"), "baseline")]
    done, _ = run(tmp_path, arms)
    for _ in range(2):
        records = sweep.run_stress("toy.mean", CaptureSet(CAPTURES), arms, "cpu", RunFolder.at(tmp_path), 3)
    assert [(r["capture"], r["arm"], r["launches"], r["differing"], r["passed"]) for r in records] == [
        ("toy-a", "right", 3, 0, True),
        ("toy-b", "right", 3, 0, True),
    ]
    lines = [json.loads(line) for line in (tmp_path / "verify.jsonl").read_text().splitlines()]
    assert lines == done.records + records
