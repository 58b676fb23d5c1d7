"""Results of the two serving benchmarks: their field names, their units, their lists of single requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kda_lab.errors import RefereeError
from kda_lab.referee.claim import Run
from kda_lab.referee.readers.serving_file import is_serving_record, serving_run

PATH = Path("runs/baseline.jsonl")


def sglang(**changes: Any) -> dict[str, Any]:
    """A record of sglang.bench_serving with details of three requests, the last one failed."""
    record = {
        "backend": "sglang", "dataset_name": "random", "request_rate": float("inf"), "max_concurrency": 4,
        "random_input_len": 1024, "random_output_len": 4, "random_range_ratio": 1, "duration": 2.0, "completed": 2,
        "total_input_tokens": 2048, "total_output_tokens": 8, "request_throughput": 1.0, "input_throughput": 1024.0,
        "output_throughput": 4.0, "mean_e2e_latency_ms": 130.0, "median_e2e_latency_ms": 130.0, "mean_ttft_ms": 100.0,
        "p99_ttft_ms": 120.0, "mean_tpot_ms": 10.0, "mean_itl_ms": 10.0, "p95_itl_ms": 11.0, "concurrency": 3.9,
        "accept_length": None, "input_lens": [1024, 1024, 1024], "output_lens": [4, 4, 0], "ttfts": [0.1, 0.12, 0.0],
        "itls": [[0.01, 0.01, 0.01], [0.02, 0.02], []], "generated_texts": ["", "", ""], "errors": ["", "", "refused"],
    }  # fmt: skip
    return record | changes


def vllm(**changes: Any) -> dict[str, Any]:
    """A record of vllm bench serve without details."""
    record = {
        "date": "20261129-235552", "endpoint_type": "openai", "label": None, "model_id": "m", "num_prompts": 32,
        "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 8, "duration": 10.0, "completed": 32, "failed": 0,
        "total_input_tokens": 32768, "total_output_tokens": 8192, "request_throughput": 3.2, "request_goodput": None,
        "output_throughput": 819.2, "total_token_throughput": 4096.0, "mean_ttft_ms": 90.0, "mean_e2el_ms": 2300.0,
        "p99_e2el_ms": 2500.0, "arm": "fused", "round": "2", "hardware": "H200",
    }  # fmt: skip
    return record | changes


def test_the_fields_of_sglang(tmp_path: Path) -> None:
    """Rates, latencies and the client's settings; the arm is the file's name; Infinity is text."""
    run = Run.model_validate(serving_run(PATH, 3, sglang()))
    assert run.arm == "baseline"
    assert run.metrics == {
        "throughput_tok_s": 4.0, "input_throughput_tok_s": 1024.0, "request_rate_s": 1.0, "duration_s": 2.0,
        "completed": 2.0, "failed": 1.0, "ttft_mean_ms": 100.0, "ttft_p99_ms": 120.0, "tpot_mean_ms": 10.0,
        "itl_mean_ms": 10.0, "itl_p95_ms": 11.0, "e2e_mean_ms": 130.0, "e2e_median_ms": 130.0,
    }  # fmt: skip
    assert (run.concurrency, run.input_tokens, run.output_tokens) == (4, 1024, 4)
    assert run.resolved["client.request_rate"] == "inf"
    assert (run.source.line, run.source.note) == (3, "sglang.bench_serving")


def test_single_requests_are_turned_into_milliseconds() -> None:
    """Failed requests are left out; time per token divides by tokens, not by events."""
    samples = serving_run(PATH, 1, sglang())["samples"]
    assert samples["ttft_mean_ms"] == pytest.approx([100, 120])
    assert samples["tpot_mean_ms"] == pytest.approx([10, 40 / 3])
    assert samples["e2e_mean_ms"] == pytest.approx([130, 160])


def test_without_errors_an_answer_has_a_first_token() -> None:
    """Older records have no list of errors: a time of zero to the first token is no answer."""
    record = sglang()
    del record["errors"]
    assert len(serving_run(PATH, 1, record)["samples"]["ttft_mean_ms"]) == 2


def test_the_fields_of_vllm() -> None:
    """Metadata typed on the command line names arm, round and hardware; lengths drawn at random stay unknown."""
    run = Run.model_validate(serving_run(Path("a.json"), 1, vllm()))
    assert (run.arm, run.round, run.hardware, run.concurrency) == ("fused", 2, "H200", 8)
    assert (run.metrics["e2e_mean_ms"], run.metrics["e2e_p99_ms"], run.metrics["total_throughput_tok_s"]) == (
        2300,
        2500,
        4096,
    )
    assert (run.input_tokens, run.output_tokens, run.samples) == (None, None, {})
    assert run.source.note == "vllm bench serve"


@pytest.mark.parametrize(("key", "named"), [("tag", "a"), ("label", "b")])
def test_a_tag_or_a_label_is_the_arm(key: str, named: str) -> None:
    """SGLang has --tag, vLLM has --label."""
    assert serving_run(PATH, 1, sglang(**{key: named}))["arm"] == named


def test_lengths_that_vary_are_unknown() -> None:
    """A mean length would be taken for every request's."""
    run = serving_run(PATH, 1, sglang(input_lens=[1000, 1024, 1024]))
    assert "input_tokens" not in run
    run = serving_run(
        PATH, 1, sglang(input_lens=[], output_lens=[], ttfts=[], itls=[], errors=[], random_range_ratio=0.5)
    )
    assert "input_tokens" not in run


def test_fixed_lengths_are_known_without_details() -> None:
    """A range ratio of 1 fixes both lengths in SGLang's client."""
    record = {k: v for k, v in sglang().items() if k not in ("input_lens", "output_lens", "ttfts", "itls", "errors")}
    run = serving_run(PATH, 1, record)
    assert (run["input_tokens"], run["output_tokens"]) == (1024, 4)
    assert "failed" not in run["metrics"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"completed": 0}, r"completed is 0; allowed: at least 1\. The run measured nothing"),
        ({"mean_ttft_ms": "fast"}, r"baseline\.jsonl:5: mean_ttft_ms is 'fast'; allowed: a number"),
        ({"output_throughput": float("inf")}, r"output_throughput is inf; allowed: a finite number"),
        ({"max_concurrency": 1.5}, r"max_concurrency is 1\.5; allowed: a whole number"),
        ({"round": "two"}, r"round is 'two'; allowed: a number"),
        ({"ttfts": [0.1]}, r"ttfts is 1 entries; allowed: a list with one entry a request"),
        ({"itls": {"a": 1}}, r"itls is a dict; allowed: a list"),
        ({"itls": [0.1, 0.1, 0.1]}, r"itls is an entry that is no list; allowed: the gaps of each request"),
        ({"ttfts": [0.1, "x", 0.1]}, r"ttfts is 'x'; allowed: a number"),
    ],
)
def test_a_wrong_record_is_refused(changes: dict[str, Any], message: str) -> None:
    """The field and the line are named."""
    with pytest.raises(RefereeError, match=message):
        serving_run(PATH, 5, sglang(**changes))


def test_nan_reaches_the_judge() -> None:
    """The clients write NaN for a mean of nothing."""
    value = serving_run(PATH, 1, json.loads(json.dumps(sglang(mean_tpot_ms=float("nan")))))["metrics"]["tpot_mean_ms"]
    assert value != value


def test_other_records_are_no_results() -> None:
    """A latency alone may come from anything."""
    assert is_serving_record(sglang())
    assert is_serving_record(vllm())
    assert not is_serving_record({"mean_ttft_ms": 3})
