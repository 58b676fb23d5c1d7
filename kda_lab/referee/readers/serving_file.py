"""Results of serving benchmarks: `sglang.bench_serving` and `vllm bench serve`, one record a run.

| client | file | read from source at |
|---|---|---|
| SGLang | `--output-file`: JSON Lines; `--output-details` adds values of single requests | commit 0033168f |
| vLLM | `--save-result`: JSON, `--append-result`: JSON Lines; `--save-detailed` adds single requests | v0.9.1 to v0.15 |

Neither client knows arms or rounds. The arm is the first of: the record's `arm` (vLLM: `--metadata arm=…`), `tag`
(SGLang), `label` (vLLM), the file's name up to its first dot. `round`, `order`, `commit`, `hardware` and `cache_state`
are read from keys of these names (vLLM: `--metadata round=1`). Single requests are in seconds in both clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from kda_lab.referee.readers.quantities import number
from kda_lab.referee.readers.text import refuse, short_name

SGLANG_LATENCY, VLLM_LATENCY = "mean_e2e_latency_ms", "mean_e2el_ms"
"""Field by which a client is told from the other, where it was measured."""
FIELDS: MappingProxyType[str, str] = MappingProxyType(
    {
        "output_throughput": "throughput_tok_s",
        "input_throughput": "input_throughput_tok_s",
        "total_throughput": "total_throughput_tok_s",
        "total_token_throughput": "total_throughput_tok_s",
        "request_throughput": "request_rate_s",
        "duration": "duration_s",
        "completed": "completed",
        "failed": "failed",
        "accept_length": "accept_length",
    }
)
STATISTICS = ("mean", "median", "p90", "p95", "p99", "std")
STEMS = MappingProxyType({"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e_latency": "e2e", "e2el": "e2e"})
FACTS = ("commit", "hardware", "cache_state", "mode")
SETTINGS = (
    "backend", "endpoint_type", "model_id", "tokenizer_id", "dataset_name", "num_prompts", "request_rate", "burstiness",
    "sharegpt_output_len", "random_input_len", "random_output_len", "random_range_ratio", "ramp_up_strategy",
)  # fmt: skip
"""What the client was told: it has to be the same in both arms."""


def is_serving_record(record: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a result of one of the clients."""
    return "output_throughput" in record and "duration" in record and "completed" in record


def serving_run(path: Path, line: int, record: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a `Run` for one record.

    Raises:
        RefereeError: a value is no number, no request finished, or the lists of single requests differ in length.
    """
    metrics = _metrics(path, line, record)
    if metrics.get("completed") == 0:
        refuse(path, line, "completed", "0", "at least 1", "The run measured nothing; leave it out or run it again.")
    run: dict[str, Any] = {"arm": _arm(path, record), "metrics": metrics, "resolved": _settings(record)}
    run["source"] = {"file": short_name(path), "line": line, "note": _client(record)}
    run |= {name: str(record[name]) for name in FACTS if record.get(name)}
    run |= {name: _whole(path, line, name, record[name]) for name in ("round", "order") if record.get(name) is not None}
    if record.get("max_concurrency"):
        run["concurrency"] = _whole(path, line, "max_concurrency", record["max_concurrency"])
    lists = _lists(path, line, record)
    run |= _lengths(record, lists)
    if "ttfts" in lists and "itls" in lists:
        run["samples"] = _samples(lists)
        failed = sum(not ok for ok in _answered(lists))
        metrics.setdefault("failed", float(failed))
    return run


def _client(record: Mapping[str, Any]) -> str:
    if VLLM_LATENCY in record or "total_token_throughput" in record:
        return "vllm bench serve"
    return "sglang.bench_serving"


def _arm(path: Path, record: Mapping[str, Any]) -> str:
    named = next((record[k] for k in ("arm", "tag", "label") if isinstance(record.get(k), str) and record[k]), "")
    return named or path.name.split(".")[0]


def _metrics(path: Path, line: int, record: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for field, metric in FIELDS.items():
        if record.get(field) is not None:
            found[metric] = number(path, line, field, record[field])
    for stem, name in STEMS.items():
        for statistic in STATISTICS:
            field = f"{statistic}_{stem}_ms"
            if record.get(field) is not None:
                found[f"{name}_{statistic}_ms"] = number(path, line, field, record[field])
    return found


def _settings(record: Mapping[str, Any]) -> dict[str, Any]:
    # JSON has no infinity that every reader takes; the clients write `inf` or Infinity for a rate without limit.
    found = {k: record[k] for k in SETTINGS if isinstance(record.get(k), (str, int, float))}
    return {f"client.{k}": "inf" if v in (float("inf"), "inf") else v for k, v in found.items()}


def _whole(path: Path, line: int, field: str, value: Any) -> int:
    given = number(path, line, field, value)
    if math.isnan(given) or given != int(given):
        refuse(path, line, field, repr(value), "a whole number")
    return int(given)


def _lists(path: Path, line: int, record: Mapping[str, Any]) -> dict[str, list[Any]]:
    found = {k: record[k] for k in ("input_lens", "output_lens", "ttfts", "itls", "errors") if record.get(k)}
    for name, values in found.items():
        if not isinstance(values, list) or len(values) != len(next(iter(found.values()))):
            refuse(path, line, name, _size(values), "a list with one entry a request, as long as the others")
        if name != "errors":
            flat = [v for entry in values for v in (entry if isinstance(entry, list) else [entry])]
            for value in flat:
                number(path, line, name, value)
        if name == "itls" and not all(isinstance(entry, list) for entry in values):
            refuse(path, line, name, "an entry that is no list", "the gaps of each request as a list")
    return found


def _size(values: Any) -> str:
    return f"{len(values)} entries" if isinstance(values, list) else f"a {type(values).__name__}"


def _answered(lists: Mapping[str, Sequence[Any]]) -> list[bool]:
    if "errors" in lists:
        return [not error for error in lists["errors"]]
    return [first > 0 for first in lists["ttfts"]]


def _lengths(record: Mapping[str, Any], lists: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """Tokens a request, where every request has the same; clients that drew lengths at random say nothing."""
    found = {}
    for field, name in (("input_tokens", "input_lens"), ("output_tokens", "output_lens")):
        if name in lists:
            answered = _answered(lists) if "ttfts" in lists else [True] * len(lists[name])
            kept = {v for v, ok in zip(lists[name], answered, strict=True) if ok}
            if len(kept) == 1:
                found[field] = int(kept.pop())
        elif record.get("random_range_ratio") == 1 and isinstance(record.get(f"random_{name[:-5]}_len"), int):
            found[field] = record[f"random_{name[:-5]}_len"]
    return found


def _samples(lists: Mapping[str, Sequence[Any]]) -> dict[str, list[float]]:
    """Milliseconds of the answered requests; time per token is what follows the first token, over the gaps."""
    answered = _answered(lists)
    ttft = [float(t) for t, ok in zip(lists["ttfts"], answered, strict=True) if ok]
    gaps = [np.asarray(g, dtype=float) for g, ok in zip(lists["itls"], answered, strict=True) if ok]
    lens = [n for n, ok in zip(lists.get("output_lens", [0] * len(answered)), answered, strict=True) if ok]
    after = [float(g.sum()) for g in gaps]
    # Several tokens may come in one event: the count of tokens divides, where it is known.
    steps = [max(int(n) - 1, 0) or len(g) for n, g in zip(lens, gaps, strict=True)]
    return {
        "ttft_mean_ms": [1e3 * t for t in ttft],
        "tpot_mean_ms": [1e3 * a / n for a, n in zip(after, steps, strict=True) if n],
        "e2e_mean_ms": [1e3 * (t + a) for t, a in zip(ttft, after, strict=True)],
    }
