"""`read(path)`: claims from any file or folder that holds some, whatever tool wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kda_lab.referee.claim import Claim, Control, Run, Source
from kda_lab.referee.readers.claim_file import read_claims, refuse_duplicates
from kda_lab.referee.readers.request_file import is_request_record, request_runs
from kda_lab.referee.readers.serving_file import is_serving_record, serving_run
from kda_lab.referee.readers.table_file import read_table
from kda_lab.referee.readers.text import complaint, json_records, refuse, short_name

SUFFIXES = (".yaml", ".yml", ".csv", ".json", ".jsonl")
NOT_CLAIMS = ("derived.csv",)
"""Files beside claims that other readers read."""
KINDS = "a result of sglang.bench_serving or vllm bench serve, a run with `metrics`, or a request with `ttft_ms`"
CONTROL_ARMS = ("control", "baseline_again")
"""Names of an arm that repeats the baseline, in files that have no place to say so."""
Made = tuple[Path, int, Run]


def read(path: str | Path) -> list[Claim]:
    """The claims of a file, or of all files of a folder.

    YAML and CSV files hold claims of their own. Records of JSON and JSON Lines files are runs: all runs of the call
    together make one claim an operating point (concurrency and tokens), of the arms `baseline` and `candidate`, and
    of `control`, the baseline again. A folder without files of its own is read folder by folder.

    Raises:
        RefereeError: a file cannot be read or holds something else; the file and the line are named.
    """
    path = Path(path)
    if path.is_dir() and not _candidates(path):
        return [claim for inner in _inner_folders(path) for claim in read(inner)]
    files = _files_of(path) if path.is_dir() else [path]
    claims: list[Claim] = []
    runs: list[Made] = []
    for file in files:
        if file.suffix in (".yaml", ".yml"):
            claims += read_claims(file)
        elif file.suffix == ".csv":
            claims += read_table(file)
        elif file.suffix in (".json", ".jsonl"):
            runs += _runs(file)
        else:
            refuse(file, 0, "suffix", repr(file.suffix), ", ".join(SUFFIXES))
    return claims + (_claims_of_runs(path, runs) if runs else [])


def _candidates(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and p.name not in NOT_CLAIMS)


def _inner_folders(folder: Path) -> list[Path]:
    found = sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink() and _candidates(p))
    if not found:
        refuse(folder, 0, "folder", "no claim in it", f"files ending in {', '.join(SUFFIXES)}")
    return found


def _files_of(folder: Path) -> list[Path]:
    files = _candidates(folder)
    for file in files:
        if file.is_symlink() and not file.resolve().is_relative_to(folder.resolve()):
            refuse(file, 0, "link", f"to {str(file.resolve())!r}", "files of the folder", "Copy the file there.")
    return files


def _runs(path: Path) -> list[Made]:
    records = json_records(path)
    requests = [(line, record) for line, record in records if is_request_record(record)]
    fields: list[tuple[int, dict[str, Any]]] = list(request_runs(path, requests)) if requests else []
    for line, record in records:
        if is_request_record(record):
            continue
        if is_serving_record(record):
            fields.append((line, serving_run(path, line, record)))
        elif "metrics" in record and "arm" in record:
            source = record.get("source") or {"file": short_name(path), "line": line}
            fields.append((line, {**record, "source": source}))
        else:
            refuse(path, line, "record", f"keys {sorted(record)[:6]!r}", KINDS)
    return [(path, line, _validated(path, line, item)) for line, item in sorted(fields, key=lambda f: f[0])]


def _validated(path: Path, line: int, fields: dict[str, Any]) -> Run:
    try:
        return Run.model_validate(fields)
    except ValidationError as error:
        place, given, allowed = complaint(error.errors(include_url=False)[0])
        refuse(path, line, ".".join(map(str, place)) or "run", given, allowed)


def _claims_of_runs(path: Path, runs: Sequence[Made]) -> list[Claim]:
    grouped: dict[tuple[int | None, int | None, int | None], list[Made]] = {}
    for made in runs:
        run = made[2]
        grouped.setdefault((run.concurrency, run.input_tokens, run.output_tokens), []).append(made)
    stem = path.name.split(".")[0]
    return [_claim(stem, point, members) for point, members in grouped.items()]


def _claim(stem: str, point: tuple[int | None, int | None, int | None], members: Sequence[Made]) -> Claim:
    arms = list(dict.fromkeys(run.arm for _, _, run in members))
    file, line, _ = members[0]
    words = [f"{letter}{value}" for letter, value in zip(("c", "in", "out"), point, strict=True) if value is not None]
    baseline, candidate = _two_arms(file, line, arms, " ".join(words) or "any load")
    claim = Claim(
        name="-".join([stem, *words]),
        metric=_metric(run for _, _, run in members),
        baseline=baseline,
        candidate=candidate,
        runs=tuple(run for _, _, run in members),
        controls=tuple(Control(arm=a, repeats=baseline, adjacent=True) for a in arms if a in CONTROL_ARMS),
        source=Source(file=short_name(file), line=line),
    )
    places = [(f, n) for f, n, _ in members]
    refuse_duplicates(claim, lambda number: places[number])
    return claim


def _two_arms(file: Path, line: int, arms: Sequence[str], point: str) -> tuple[str, str]:
    others = [arm for arm in arms if arm != "baseline" and arm not in CONTROL_ARMS]
    if "baseline" not in arms or len(others) != 1:
        allowed = "baseline, one candidate, and control where the baseline was repeated"
        given = f"{list(arms)!r} at {point}"
        refuse(file, line, "arms", given, allowed, "Name them in `arm`, `tag` or `label`, or by the file.")
    return "baseline", others[0]


def _metric(runs: Iterable[Run]) -> str:
    """What the verdict is about: output throughput where all have it, else what all have."""
    shared = set.intersection(*(set(run.metrics) for run in runs))
    preferred = ("throughput_tok_s", "request_rate_s", "e2e_mean_ms", "tpot_mean_ms", "ttft_mean_ms", "kernel_us")
    return next((m for m in preferred if m in shared), min(shared, default="throughput_tok_s"))
