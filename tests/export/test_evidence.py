"""Evidence: records of this very source, on hardware, judged again, gate by gate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kda_lab.contracts.model import Declaration
from kda_lab.errors import ExportError
from kda_lab.export import evidence
from kda_lab.export.candidate import Candidate, read_candidate
from kda_lab.export.evidence import (
    ArchitectureEvidence,
    check_power,
    check_replays,
    check_scalars,
    check_timing,
    collect,
    consolidated,
)
from kda_lab.run_folder import RunFolder

Record = dict[str, Any]
WriteRun = Callable[..., RunFolder]
FAST = {(1, "short"): 10.0, (2, "short"): 10.0}


@pytest.fixture
def toy() -> Candidate:
    return read_candidate(Path(__file__).with_name("toy_candidate.py"))


def hashes(records: Any) -> dict[str, str]:
    return {name: capture.sha256 for name, capture in records.captures.items()}


def only(found: dict[tuple[int, int], ArchitectureEvidence]) -> ArchitectureEvidence:
    (one,) = found.values()
    return one


def test_records_are_sorted_by_capability(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """Replays, gate power and rows of one GPU land in its evidence, with the hashes of the files read."""
    run = write_run(records.verify(), records.timing(FAST, peer_us=30.0))
    found = collect([run], toy)
    assert list(found) == [(9, 0)]
    one = only(found)
    assert (one.name, len(one.replays), len(one.powers), len(one.timings)) == ("sm90", 2, 2, 10)
    assert [(r.row, r.verdict, r.baseline) for r in one.rows] == [
        ("tp2-B1-short", "faster", "slow"),
        ("tp2-B2-short", "faster", "slow"),
    ]
    assert [round(r.ratio) for r in one.peer_rows] == [3, 3]
    assert set(one.runs) == {"run"} and set(one.runs["run"]) == {"verify.jsonl", "timing.jsonl", "verdict.json"}
    check_replays(one, hashes(records))
    check_power(one)
    check_timing(one, toy.declaration)


def test_no_run_and_two_runs_of_one_name(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """Without a run there is no evidence, and two of one name could not be told apart."""
    with pytest.raises(ExportError, match=r"export\.evidence: runs is \(\); allowed: at least one run folder"):
        collect([], toy)
    run = write_run(records.verify())
    with pytest.raises(ExportError, match="allowed: runs with different names"):
        collect([run, run], toy)


def test_other_source_is_stale_evidence(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """Records of the same arm with another hash stop the export: the file was edited after the run."""
    records.sha256 = "0" * 64
    with pytest.raises(
        ExportError, match=r"source_sha256 is .*toy_candidate: \['000000000000'\].* run judged another version"
    ):
        collect([write_run(records.verify())], toy)


def test_arm_with_two_sources_is_stale_evidence(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """Timing of an older version does not count beside verification of the current one."""
    verify = records.verify()
    records.sha256 = "0" * 64
    with pytest.raises(ExportError, match="run it again"):
        collect([write_run(verify, records.timing(FAST))], toy)


def test_other_candidates_in_the_run_do_not_matter(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """A run may judge several candidates; the others are neither evidence nor an obstacle."""
    other = {**records.replay("tp2-B1-short"), "arm": "other", "source_sha256": "1" * 64, "passed": False}
    found = collect([write_run([*records.verify(), other], records.timing(FAST))], toy)
    assert len(only(found).replays) == 2


@pytest.mark.parametrize("where", ["cpu", "interpreter", "nothing"])
def test_cpu_runs_qualify_nothing(write_run: WriteRun, records: Any, toy: Candidate, where: str) -> None:
    """Records from a CPU, from the interpreter or without provenance are not evidence."""
    device = {
        "cpu": {"type": "cpu"},
        "interpreter": {"type": "cuda", "capability": [9, 0], "interpreter": True},
        "nothing": {},
    }[where]
    records.provenance = {"device": device}
    with pytest.raises(ExportError, match="no GPU record with source_sha256"):
        collect([write_run(records.verify())], toy)


def test_failed_replay_anywhere_stops_the_export(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """A replay that failed on a CPU is as bad as one that failed on a GPU."""
    failed = {**records.replay("tp2-B1-short"), "passed": False, "provenance": {"device": {"type": "cpu"}}}
    with pytest.raises(ExportError, match=r"export\.replays: run: replays of toy_candidate\.py failed on tp2-B1-short"):
        collect([write_run([*records.verify(), failed])], toy)


def test_summary_of_a_record_is_not_believed(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """A record that says `passed` while one of its checks did not is caught by judging again."""
    verify = records.verify()
    verify[0]["checks"][1]["passed"] = False
    one = only(collect([write_run(verify)], toy))
    with pytest.raises(ExportError, match=r"export\.replays: sm90: fail: "):
        check_replays(one, hashes(records))


def test_every_capture_must_have_been_replayed(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """A capture without a replay, or with other bytes than were replayed, is named."""
    one = only(collect([write_run([records.replay("tp2-B1-short"), records.power("tp2-B1-short")])], toy))
    with pytest.raises(ExportError, match=r"no replay of tp2-B2-short"):
        check_replays(one, hashes(records))
    with pytest.raises(ExportError, match=r"no replay of tp2-B1-short"):
        check_replays(one, {"tp2-B1-short": "0" * 64})
    with pytest.raises(ExportError, match="no captures"):
        check_replays(one, {})


@pytest.mark.parametrize(("killed", "total"), [(0, 1), (0, 0)])
def test_surviving_mutant_stops_the_export(
    write_run: WriteRun, records: Any, toy: Candidate, killed: int, total: int
) -> None:
    """Fewer killed than there are, or none at all, fails the gate with the capture's name."""
    verify = [*records.verify()]
    verify[1].update(killed=killed, total=total)
    with pytest.raises(ExportError, match=rf"export\.power: sm90 killed is 'tp2-B1-short {killed}/{total}'"):
        check_power(only(collect([write_run(verify)], toy)))


def test_missing_power_is_no_power() -> None:
    """Without any power record the gate fails."""
    with pytest.raises(ExportError, match="no power record"):
        check_power(ArchitectureEvidence((9, 0)))


def test_timing_gate_wants_rechecks_kernels_and_trials(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """A failed recheck (dropped or not), another number of kernels, or no trial at all is refused."""
    one = only(collect([write_run(records.verify(), records.timing(FAST))], toy))
    one.timings[0]["recheck"]["passed"] = False
    one.timings[0]["dropped"] = "wrong result"
    with pytest.raises(ExportError, match=r"export\.timing: sm90 tp2-B1-short trial 0 recheck is "):
        check_timing(one, toy.declaration)
    one.timings[0]["recheck"]["passed"] = True
    with pytest.raises(ExportError, match=r"kernels is \{'_toy_kernel': 1\}; allowed: 2 a call"):
        check_timing(one, toy.declaration.model_copy(update={"kernels_per_call": 2}))
    one.timings[1]["kernels"] = None
    with pytest.raises(ExportError, match=r"trial 1 kernels is None; allowed: 1 a call"):
        check_timing(one, toy.declaration)
    with pytest.raises(ExportError, match="sm90 trials is 0"):
        check_timing(ArchitectureEvidence((9, 0)), toy.declaration)


def test_warm_and_eager_rows_decide_nothing(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """Rows of another protocol than the cold one are no evidence for dispatch."""
    other = [{**r, "protocol": "v1-warm", "row": f"{r['row']} (warm L2)"} for r in records.timing({(4, "short"): 30.0})]
    one = only(collect([write_run(records.verify(), [*records.timing(FAST), *other])], toy))
    assert [r.row for r in one.rows] == ["tp2-B1-short", "tp2-B2-short"]


def test_runs_add_up(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """Verification and timing may come from two runs; both are cited."""
    runs = [write_run(records.verify(), name="verify"), write_run([], records.timing(FAST), name="timing")]
    one = only(collect(runs, toy))
    assert (len(one.replays), len(one.rows), set(one.runs)) == (2, 2, {"verify", "timing"})


def test_consolidated_file_is_small_and_complete(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """The committed file names source, runs, replays, power and rows, and holds no raw samples."""
    one = only(collect([write_run(records.verify(), records.timing(FAST))], toy))
    content = json.loads(consolidated(one, toy))
    assert content["source_sha256"] == toy.sha256 and content["capability"] == [9, 0]
    assert [r["capture"] for r in content["replays"]] == ["tp2-B1-short", "tp2-B2-short"]
    assert content["replays"][0]["checks"]["error_fp32"] == [0.0, 0.005]
    assert content["rows"][0]["verdict"] == "faster" and "samples_us" not in content["rows"][0]


def test_evidence_too_large_to_commit_is_refused(
    write_run: WriteRun, records: Any, toy: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evidence above the size limit is refused with both numbers."""
    monkeypatch.setattr(evidence, "SIZE_LIMIT_BYTES", 100)
    one = only(collect([write_run(records.verify())], toy))
    with pytest.raises(ExportError, match=r"sm90 evidence bytes is \d+; allowed: at most 100"):
        consolidated(one, toy)


def stress(records: Any, **changes: Any) -> Record:
    keys = ("op", "capture", "capture_sha256", "arm", "role", "source_sha256", "provenance")
    replay = records.replay("tp2-B1-short")
    sound = {"launches": 100, "differing": 0, "nonzero_state": {}, "failure": "", "passed": True}
    return {"kind": "stress", **{k: replay[k] for k in keys}, **sound, **changes}


def test_stress_is_judged_with_the_replays(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """A sound stress is kept; one that differs is refused, whether its record admits the failure or not."""
    one = only(collect([write_run([*records.verify(), stress(records)])], toy))
    assert len(one.stresses) == 1
    check_replays(one, hashes(records))
    lying = only(collect([write_run([*records.verify(), stress(records, differing=3)])], toy))
    with pytest.raises(
        ExportError, match=r"export\.replays: sm90: fail: .*toy_candidate on tp2-B1-short: stress failed"
    ):
        check_replays(lying, hashes(records))
    with pytest.raises(ExportError, match=r"run: stress of toy_candidate\.py failed on tp2-B1-short"):
        collect([write_run([*records.verify(), stress(records, differing=3, passed=False)])], toy)


def test_lax_limit_in_a_record_stops_the_export(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """The replay gate holds each recorded limit against the op's gates."""
    verify = records.verify()
    verify[0]["checks"][1].update(limit=1.0, value=0.5)
    one = only(collect([write_run(verify)], toy))
    with pytest.raises(ExportError, match=r"limit of error_fp32 is 1\.0; allowed: at most 0\.005"):
        check_replays(one, hashes(records))


def test_timing_gate_wants_a_declared_function(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """A trial in which only foreign kernels ran, such as those of a torch twin, timed something else."""
    records.kernel = "at::native::elementwise_kernel"
    one = only(collect([write_run(records.verify(), records.timing(FAST))], toy))
    words = (
        r"kernels is \{'at::native::elementwise_kernel': 1\}; allowed: a function of compile_units: \['_toy_kernel'\]"
    )
    with pytest.raises(ExportError, match=words):
        check_timing(one, toy.declaration)


CUDA_TOY = Path(__file__).with_name("toy_cuda_candidate.py")


def test_gpu_records_of_device_and_host_code_are_evidence(write_run: WriteRun, cuda_records: Any) -> None:
    """Records that carry the digest over both files of a CUDA C++ candidate are its evidence."""
    candidate = read_candidate(CUDA_TOY)
    one = only(collect([write_run(cuda_records.verify(), cuda_records.timing(FAST))], candidate))
    check_timing(one, candidate.declaration)
    assert (one.name, len(one.replays), len(one.rows)) == ("sm90", 2, 2)


def test_other_device_code_is_stale_evidence(write_run: WriteRun, cuda_records: Any, tmp_path: Path) -> None:
    """One changed byte of the .cu file, with the same Python file, needs new evidence."""
    for suffix in (".py", ".cu"):
        copied = (tmp_path / CUDA_TOY.name).with_suffix(suffix)
        copied.write_bytes(CUDA_TOY.with_suffix(suffix).read_bytes())
    copied.write_text(copied.read_text() + "\n")
    run = write_run(cuda_records.verify(), cuda_records.timing(FAST))
    with pytest.raises(ExportError, match=r"judged another version of toy_cuda_candidate\.py: run it again"):
        collect([run], read_candidate(tmp_path / CUDA_TOY.name))


def cpu_machine(record: Record) -> Record:
    return {**record, "provenance": {"device": {"type": "cpu", "interpreter": False}}, "device": "cpu"}


def cpu_on_a_gpu_machine(record: Record) -> Record:
    return {**record, "device": "cpu"}


def said_to_be_the_twin(record: Record) -> Record:
    return {**record, "stand_in": "torch twin"}


@pytest.mark.parametrize("move", [cpu_machine, cpu_on_a_gpu_machine, said_to_be_the_twin])
def test_replays_of_a_twin_qualify_nothing(write_run: WriteRun, cuda_records: Any, move: Any) -> None:
    """A CPU replay judged the torch twin of a CUDA C++ kernel: no evidence, interpreter or not."""
    replays = [move(r) for r in cuda_records.verify() if r["kind"] == "replay"]
    with pytest.raises(ExportError, match=r"runs is no GPU record with source_sha256"):
        collect([write_run(replays)], read_candidate(CUDA_TOY))


def two_dtypes(toy: Candidate, *allowed: str) -> Declaration:
    gate = {"kind": "dtype", "allowed": allowed}
    return Declaration.model_validate({**toy.declaration.model_dump(), "scalars": {"out_dtype": gate}})


def test_every_value_of_a_dtype_needs_a_replay(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """Replays of BF16 say nothing of FP32; a record without the field counts for neither, and the run to add is named."""
    both = two_dtypes(toy, "bfloat16", "float32")
    one = only(collect([write_run(records.verify())], toy))
    with pytest.raises(ExportError, match=r"no replay of \['bfloat16', 'float32'\]"):
        check_scalars(one, both)
    one.replays[0]["scalars"] = {"out_dtype": "bfloat16"}
    words = (
        r"export\.replays: sm90 out_dtype is no replay of \['float32'\]; allowed: a passed replay of each of bfloat16, "
        r"float32\. Add a run that verifies rows or captures with out_dtype=float32, or narrow"
    )
    with pytest.raises(ExportError, match=words):
        check_scalars(one, both)
    one.replays[1]["scalars"] = {"out_dtype": "float32"}
    check_scalars(one, both)
    summaries = json.loads(consolidated(one, toy))["replays"]
    assert [r["scalars"]["out_dtype"] for r in summaries] == ["bfloat16", "float32"]
    one.replays[1]["passed"] = False
    with pytest.raises(ExportError, match=r"no replay of \['float32'\]"):
        check_scalars(one, both)


def test_one_value_and_other_scalars_need_no_such_replay(write_run: WriteRun, records: Any, toy: Candidate) -> None:
    """A kernel with one output dtype, or an op without a dtype, is judged by its replays as ever."""
    one = only(collect([write_run(records.verify())], toy))
    check_scalars(one, two_dtypes(toy, "bfloat16"))
    check_scalars(one, toy.declaration)
    assert "scalars" not in json.loads(consolidated(one, toy))["replays"][0]
