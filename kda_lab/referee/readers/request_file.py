"""Records of single requests, one JSON object a line, gathered into one run an arm, round and operating point.

```json
{"arm": "baseline", "round": 1, "order": 1, "concurrency": 4, "request": 0, "ttft_ms": 93.1, "tpot_ms": 8.4,
 "input_tokens": 1024, "output_tokens": 256, "start_s": 0.0, "end_s": 2.3, "error": ""}
```

Needed: `arm`, `ttft_ms`, `output_tokens`, and `tpot_ms`, `itl_ms` (a list) or `e2e_ms`. With `start_s` and `end_s` on
one clock the run has a throughput: the tokens of its answered requests over the time from first start to last end.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kda_lab.referee.readers.quantities import number
from kda_lab.referee.readers.text import refuse, short_name

KEY = ("arm", "round", "order", "concurrency", "mode", "commit", "hardware", "cache_state")
NUMBERS = ("ttft_ms", "tpot_ms", "e2e_ms", "input_tokens", "output_tokens", "start_s", "end_s")
Records = Sequence[tuple[int, Mapping[str, Any]]]


def is_request_record(record: Mapping[str, Any]) -> bool:
    """Whether a JSON object speaks of a single request."""
    return "ttft_ms" in record and "arm" in record and "metrics" not in record


def request_runs(path: Path, records: Records) -> list[tuple[int, dict[str, Any]]]:
    """Fields of a `Run` for each arm, round and operating point, with the line of its first request.

    Raises:
        RefereeError: a field is missing or no number, a request stands twice, or no request of a run was answered.
    """
    grouped: dict[tuple[Any, ...], list[tuple[int, Mapping[str, Any]]]] = {}
    seen: set[tuple[Any, ...]] = set()
    for line, record in records:
        if not isinstance(record.get("arm"), str) or not record["arm"]:
            refuse(path, line, "arm", repr(record.get("arm")), "a name")
        key = tuple(record.get(name) for name in KEY)
        if not all(isinstance(part, (str, int, type(None))) for part in key):
            refuse(path, line, "run", repr(key), f"{', '.join(KEY)} as texts and whole numbers")
        if record.get("request") is not None:
            named = (*key, repr(record["request"]))
            if named in seen:
                refuse(path, line, "request", repr(record["request"]), "each request of a round once")
            seen.add(named)
        grouped.setdefault(key, []).append((line, record))
    return [(members[0][0], _run(path, key, members)) for key, members in grouped.items()]


def _run(path: Path, key: tuple[Any, ...], members: Records) -> dict[str, Any]:
    first = members[0][0]
    answered = [_typed(path, line, r) for line, r in members if not r.get("error")]
    if not answered:
        refuse(path, first, "requests", "none that was answered", "at least one without an error")
    samples = {f"{s}_mean_ms": [a[f"{s}_ms"] for a in answered if f"{s}_ms" in a] for s in ("ttft", "tpot", "e2e")}
    metrics = {"completed": float(len(answered)), "failed": float(len(members) - len(answered))}
    for name, values in samples.items():
        if values:
            stem = name.removesuffix("_mean_ms")
            metrics |= {name: statistics.fmean(values), f"{stem}_median_ms": statistics.median(values)}
            metrics[f"{stem}_p99_ms"] = float(np.percentile(values, 99))
    metrics |= _rates(answered)
    run = {name: value for name, value in zip(KEY, key, strict=True) if value is not None}
    for field in ("input_tokens", "output_tokens"):
        lengths = {a.get(field) for a in answered}
        if len(lengths) == 1 and None not in lengths:
            run[field] = int(lengths.pop() or 0)
    source = {"file": short_name(path), "line": first, "note": f"{len(members)} requests"}
    return run | {"metrics": metrics, "samples": {n: v for n, v in samples.items() if v}, "source": source}


def _typed(path: Path, line: int, record: Mapping[str, Any]) -> dict[str, float]:
    found = {n: number(path, line, n, record[n]) for n in NUMBERS if record.get(n) is not None}
    for name in ("ttft_ms", "output_tokens"):
        if name not in found:
            refuse(path, line, name, "missing", "a number", "A request that failed has an `error`.")
    steps = found["output_tokens"] - 1
    gaps = record.get("itl_ms")
    if gaps is not None and not isinstance(gaps, list):
        refuse(path, line, "itl_ms", repr(gaps)[:60], "a list of gaps")
    if "e2e_ms" not in found and gaps is not None:
        found["e2e_ms"] = found["ttft_ms"] + sum(number(path, line, "itl_ms", g) for g in gaps)
    if "tpot_ms" not in found and "e2e_ms" in found and steps > 0:
        found["tpot_ms"] = (found["e2e_ms"] - found["ttft_ms"]) / steps
    if "e2e_ms" not in found and "tpot_ms" in found:
        found["e2e_ms"] = found["ttft_ms"] + steps * found["tpot_ms"]
    if "e2e_ms" not in found:
        refuse(path, line, "request", "no tpot_ms, itl_ms or e2e_ms", "one of them")
    return found


def _rates(answered: Sequence[Mapping[str, float]]) -> dict[str, float]:
    if not all("start_s" in a and "end_s" in a for a in answered):
        return {}
    wall_s = max(a["end_s"] for a in answered) - min(a["start_s"] for a in answered)
    if not wall_s > 0:
        return {}
    tokens = sum(a["output_tokens"] for a in answered)
    return {"duration_s": wall_s, "throughput_tok_s": tokens / wall_s, "request_rate_s": len(answered) / wall_s}
