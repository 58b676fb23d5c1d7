"""The load of one cell against a real server: what is sent, in which order, and how preparation fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kda_lab.referee.serving.load import Measured, run_cell
from kda_lab.referee.serving.plan import Plan
from kda_lab.referee.serving.schedule import schedule


def measured(plan: Plan, place: int = 0) -> Measured:
    """One cell of a plan, measured."""
    return asyncio.run(run_cell(plan, schedule(plan)[place]))


def changed(plan: Plan, **fields: Any) -> Plan:
    """The plan with fields of its baseline replaced."""
    return plan.model_copy(update={"arms": (plan.arms[0].model_copy(update=fields), *plan.arms[1:])})


def test_each_prompt_is_answered_once(make_plan: Callable[..., Plan]) -> None:
    """All requests of a cell are there, in order of their prompts, within the cell's time."""
    made = measured(make_plan("load=each", requests=7, concurrency=[3]))
    assert [o.index for o in made.outcomes] == list(range(7))
    assert all(o.ok for o in made.outcomes)
    assert all(0 <= o.start_s <= made.wall_s for o in made.outcomes)


def test_no_more_requests_than_the_concurrency_are_on_their_way(make_plan: Callable[..., Plan]) -> None:
    """A closed loop sends the next request when one has ended."""
    made = measured(make_plan("load=closed,delay_ms=3", requests=8, concurrency=[2]))
    spans = [(o.start_s, o.start_s + (o.e2e_ms or 0) / 1e3) for o in made.outcomes]
    assert max(sum(a <= start < b for a, b in spans) for start, _ in spans) == 2


def test_the_body_is_what_the_plan_says(make_plan: Callable[..., Plan], server: Any) -> None:
    """Streaming with usage, greedy, the asked length, the first listed model, and the plan's further fields."""
    measured(make_plan("load=body", extra_body={"seed": 7}, warmup_requests=0))
    body = server.get("load=body", "/bodies")[0]
    assert len(body.pop("prompt").split()) == 16
    assert body == {
        "model": "toy",
        "max_tokens": 4,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "seed": 7,
    }
    measured(make_plan("load=chat", endpoint="chat", ignore_eos=False, warmup_requests=0))
    body = server.get("load=chat", "/bodies")[0]
    assert body["messages"][0]["role"] == "user"
    assert not {"prompt", "ignore_eos"} & set(body)


def test_arms_get_the_same_prompts(make_plan: Callable[..., Plan], server: Any) -> None:
    """Baseline and candidate of a round are asked the same, the repeat on the same server something else."""
    plan = make_plan("load=same1", "load=same2", warmup_requests=0)
    for place in range(3):
        measured(plan, place)
    base, cand = (sorted(b["prompt"] for b in server.get(h, "/bodies")) for h in ("load=same1", "load=same2"))
    assert set(cand) < set(base)
    assert len(set(base)) == 2 * len(set(cand)) == 8


def test_the_cache_is_flushed_after_the_warm_up(make_plan: Callable[..., Plan], server: Any) -> None:
    """One POST to the flush path a cell; warm-up requests are sent and not counted."""
    made = measured(changed(make_plan("load=flush", warmup_requests=3), flush_path="/flush_cache"))
    assert len(made.outcomes) == 4
    assert server.get("load=flush", "/seen") | {"GET /seen": 1} == {
        "GET /v1/models": 1,
        "POST /v1/completions": 7,
        "POST /flush_cache": 1,
        "GET /seen": 1,
    }


def test_the_resolved_configuration_is_read(make_plan: Callable[..., Plan]) -> None:
    """Dotted keys of the server's own description join what the plan declares."""
    arm = {"info_path": "/get_server_info", "info_keys": ("tp_size", "backend.attention"), "resolved": {"pin": "1.2"}}
    made = measured(changed(make_plan("backend=triton"), **arm))
    assert made.resolved == {"pin": "1.2", "tp_size": 1, "backend.attention": "triton"}


@pytest.mark.parametrize(
    ("how", "arm", "words"),
    [
        ("fault=no_v1_models", {}, "GET /v1/models answered 503"),
        ("fault=no_flush_cache", {"flush_path": "/flush_cache"}, "POST /flush_cache answered 503"),
        ("x=1", {"flush_path": "/flush"}, "POST /flush answered 404"),
        (
            "x=1",
            {"info_path": "/get_server_info", "info_keys": ("backend.moe",)},
            "/get_server_info has no 'backend.moe'",
        ),
        ("fault=http500", {}, "1 of 1 warm-up requests failed, the first: http 500 (boom)"),
        ("x=1", {"base_url": "http://127.0.0.1:9"}, "GET /v1/models failed: ConnectError"),
    ],
)
def test_a_server_that_cannot_be_prepared_fails_the_cell(
    make_plan: Callable[..., Plan], how: str, arm: dict[str, Any], words: str
) -> None:
    """No load is sent to a server that was not prepared as the plan says, and the reason is kept."""
    made = measured(changed(make_plan(how), **arm))
    assert words in made.failure
    assert made.outcomes == []


def test_faults_under_load_are_outcomes(make_plan: Callable[..., Plan]) -> None:
    """Every second request fails and the others are answered."""
    made = measured(make_plan("load=half,fault=truncate,every=2", requests=6, warmup_requests=0))
    assert sorted(o.failure for o in made.outcomes) == ["", "", "", *["truncated stream"] * 3]


def test_a_bearer_token_is_sent_with_each_request(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    """A server that demands a token answers with the one from the file, and not without."""
    (tmp_path / "key").write_text("secret\n")
    plan = make_plan("load=key,key=secret")
    made = measured(changed(plan, api_key_file=str(tmp_path / "key")))
    assert [o.ok for o in made.outcomes] == [True] * 4
    assert measured(plan).failure == "GET /v1/models answered 401"


def test_the_client_watches_its_own_lag(make_plan: Callable[..., Plan]) -> None:
    """How late the driver's own loop wakes is sampled while the load runs."""
    made = measured(make_plan("load=lag,delay_ms=20", warmup_requests=0))
    assert len(made.lag_ms) >= 2
    assert all(lag >= -1 for lag in made.lag_ms)
