"""What a page says of a chain: results by the trials of the records, notes before verdicts, problems instead of crashes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kda_lab.report.chain_part import chain_part, kernel_rows
from kda_lab.report.comparisons import compare
from kda_lab.report.records import read_run
from kda_lab.run_folder import RunFolder, read_json_lines, write_json_lines

Fill = Callable[..., RunFolder]


def test_the_win_of_one_product_is_followed_into_the_chain(tmp_path: Path, fill_chain: Fill) -> None:
    """Findings name the product that wins alone; the short table holds the chain only."""
    part = chain_part(read_run(fill_chain(tmp_path)))
    assert len(part.timed) == 25 and part.problems == ()
    told = [text for text in part.findings if "9b_down alone (eight sets)" in text]
    assert len(told) == 1 and told[0].startswith("streamed stream/persist: 9b_down alone (eight sets) +2.0")
    assert told[0].endswith("the isolated win turns into a loss")
    assert {line[0] for line in part.short.lines} == {"in the chain"}
    assert [line[1] for line in part.short.lines] == [
        "streamed stream/persist",
        "streamed persist/persist",
        "cublas_bf16",
    ]
    assert len(part.table.lines) > len(part.short.lines)
    assert part.short.caption == "In the chain, in short: µs of one layer against streamed stream/stream."


def test_the_index_is_told_the_ratios_in_the_chain(tmp_path: Path, fill_chain: Fill) -> None:
    """One entry a policy, named as of the chain."""
    told = chain_part(read_run(fill_chain(tmp_path))).speedups
    assert [s["arm"] for s in told] == ["streamed stream/persist in the chain", "streamed persist/persist in the chain"]
    assert all(s["geomean"] == s["minimum"] < 1 and s["count"] == 1 for s in told)


def test_few_trials_are_said_before_their_verdicts(tmp_path: Path, fill_chain: Fill) -> None:
    """Two trials are judged as two, with a note; five need none."""
    part = chain_part(read_run(fill_chain(tmp_path / "few", trials=2)))
    assert {r.verdict for r in part.results if r.role == "policy"} <= {"faster", "slower", "same"}
    assert any(note.startswith("Only 2 trials an arm: ") and "the 5 of protocol v1" in note for note in part.notes)
    assert len(chain_part(read_run(fill_chain(tmp_path / "five"))).notes) == 1


def test_a_chain_that_is_not_cold_says_so(tmp_path: Path, fill_chain: Fill) -> None:
    """The bytes of a pass and those that a cold one needs are in the note."""
    run = fill_chain(tmp_path)
    lines = [{**r, "layers": 2, **({"cold_products": False} if r["kind"] == "chain" else {})}
             for r in read_json_lines(run.path / "chain.jsonl")]  # fmt: skip
    write_json_lines(run.path / "chain.jsonl", lines)
    assert chain_part(read_run(run)).notes[-1] == (
        "The chain is not cold, so weights may outlast a pass: "
        "the products of a pass move 171200000 bytes; a cold pass needs 314572800 (5 x L2)."
    )


def test_checks_without_times_have_a_table(tmp_path: Path, fill_chain: Fill) -> None:
    """A CPU run has no results, yet its checks are shown; a run without a chain has nothing."""
    run = fill_chain(tmp_path)
    write_json_lines(
        run.path / "chain.jsonl", [r for r in read_json_lines(run.path / "chain.jsonl") if r["kind"] == "check"]
    )
    part = chain_part(read_run(run))
    assert (part.results, part.findings, part.table.lines, len(part.checks.lines)) == ((), [], (), 4)
    (run.path / "chain.jsonl").unlink()
    assert chain_part(read_run(run)).checks.lines == ()


def test_isolated_records_that_cannot_be_compared_are_a_problem(tmp_path: Path, fill_chain: Fill) -> None:
    """A timing record without `dropped` leaves a sentence, not a crash."""
    run = fill_chain(tmp_path)
    lines = [{k: v for k, v in r.items() if k != "dropped"} for r in read_json_lines(run.timing_records)]
    write_json_lines(run.timing_records, lines)
    part = chain_part(read_run(run))
    assert part.results == () and part.problems == ("chain.jsonl: cannot be summarised: KeyError: 'dropped'",)


def test_only_the_reference_policy_stands_beside_the_peers(tmp_path: Path, fill_chain: Fill) -> None:
    """It is the candidate there, and no other policy is left."""
    rows = kernel_rows(compare(read_run(fill_chain(tmp_path))).rows)
    assert {(r.arm, r.role) for r in rows} == {
        ("streamed stream/stream", "candidate"), ("cublas_bf16", "peer"), ("streamed stream/stream", "control"),
    }  # fmt: skip
