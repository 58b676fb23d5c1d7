"""One streamed request over a real socket: times, counts, and every kind of failure by name."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.referee.serving.stream import Answer, Outcome, Request, StreamError, _outcome, send, take_line


def sent(base_url: str, tokens: int = 4, chat: bool = False, limit_s: float = 5.0, silence_s: float = 5.0) -> Outcome:
    """What becomes of one request."""
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "hi"}
    path = "/v1/chat/completions" if chat else "/v1/completions"

    async def go() -> Outcome:
        async with httpx.AsyncClient(timeout=silence_s, trust_env=False, verify=False) as client:
            request = Request(base_url + path, asked | {"max_tokens": tokens}, 3, limit_s)
            return await send(client, request, time.perf_counter_ns())

    return asyncio.run(go())


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_an_answer_is_timed_token_by_token(server: Any, chat: bool) -> None:
    """Times add up, the server's count is taken, and a paced server is not faster than its pace."""
    outcome = sent(server.url("first_ms=10,delay_ms=5"), tokens=6, chat=chat)
    assert outcome.ok, outcome.detail
    assert (outcome.index, outcome.output_tokens, outcome.counted_by, outcome.finish_reason) == (
        3,
        6,
        "usage",
        "length",
    )
    assert outcome.ttft_ms is not None
    assert outcome.e2e_ms is not None
    assert outcome.ttft_ms >= 10
    assert outcome.tpot_ms == pytest.approx((outcome.e2e_ms - outcome.ttft_ms) / 5)
    assert len(outcome.itl_ms) == 5
    assert outcome.ttft_ms + sum(outcome.itl_ms) == pytest.approx(outcome.e2e_ms, abs=1e-3)
    assert outcome.e2e_ms >= 10 + 5 * 5
    assert outcome.input_tokens is not None


def test_without_usage_events_are_counted(server: Any) -> None:
    """A server that sends no usage has its tokens counted by events, and the outcome says so."""
    outcome = sent(server.url("usage=0"))
    assert (outcome.output_tokens, outcome.counted_by, outcome.input_tokens) == (4, "events", None)


def test_events_may_come_in_pieces(server: Any) -> None:
    """An event that arrives in two pieces is one event."""
    whole, pieces = sent(server.url()), sent(server.url("split=1"))
    assert pieces.ok, pieces.detail
    assert (pieces.output_tokens, len(pieces.itl_ms)) == (whole.output_tokens, len(whole.itl_ms))
    assert pieces.text_sha256 == whole.text_sha256


def test_the_same_text_has_the_same_digest(server: Any) -> None:
    """Outputs can be compared by the digest of their text."""
    assert sent(server.url()).text_sha256 == sent(server.url()).text_sha256 != sent(server.url(), 5).text_sha256


@pytest.mark.parametrize(
    ("fault", "kind", "detail"),
    [
        ("http500", "http 500", "boom"),
        ("truncate", "truncated stream", "RemoteProtocolError"),
        ("no_done", "truncated stream", "no [DONE] after 4 events with text"),
        ("hangup", "connection lost", "RemoteProtocolError"),
        ("bad_event", "bad event", "{not json"),
        ("server_error", "server error", "out of memory"),
        ("empty", "no token", "the stream ended without text"),
    ],
)
def test_a_fault_has_a_kind_and_a_detail(server: Any, fault: str, kind: str, detail: str) -> None:
    """Whatever the server does wrong is an outcome, never an exception, and carries no times."""
    outcome = sent(server.url(f"fault={fault}"))
    assert (outcome.failure, detail in outcome.detail) == (kind, True), outcome.detail
    assert (outcome.ttft_ms, outcome.e2e_ms, outcome.output_tokens) == (None, None, 0)


def test_a_silent_server_times_out(server: Any) -> None:
    """Silence inside an answer and an answer that takes too long as a whole are both timeouts."""
    for limits in ({"silence_s": 0.1}, {"limit_s": 0.1}):
        outcome = sent(server.url("fault=silence"), **limits)
        assert outcome.failure == "timeout"
        assert " after 0." in outcome.detail


def test_a_closed_port_is_refused() -> None:
    """No server at all is `refused`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert sent(f"http://127.0.0.1:{port}").failure == "refused"


def taken(*lines: str) -> Answer:
    """An answer after some lines, one millisecond apart."""
    answer = Answer(0)
    for place, line in enumerate(lines, 1):
        take_line(answer, line.encode(), place * 1_000_000)
    return answer


def test_only_events_with_text_are_tokens() -> None:
    """A chat's first event with a role, comments, empty texts and the usage event carry no token."""
    text = {"choices": [{"delta": {"content": "a"}}]}
    thought = {"choices": [{"delta": {"reasoning_content": "b"}}]}
    answer = taken(
        ": comment",
        "event: x",
        'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}',
        f"data: {json.dumps(text)}",
        f"data:{json.dumps(thought)}\r",
        'data: {"choices": [], "usage": {"completion_tokens": 2}}',
        "data: [DONE]",
    )
    assert answer.token_ns == [4_000_000, 5_000_000]
    assert (answer.usage, answer.done) == ({"completion_tokens": 2}, True)


@pytest.mark.parametrize(
    "line",
    ["data: {", "data: 1", 'data: {"choices": [1]}', 'data: {"choices": 5}', 'data: {"choices": [{"delta": "x"}]}', "data: " + "[" * 20000],
    ids=["cut", "number", "choice", "choices", "delta", "deep"],
)  # fmt: skip
def test_an_event_of_another_shape_is_a_bad_event(line: str) -> None:
    """An event that is not what the protocol says is refused, not guessed at."""
    with pytest.raises(StreamError, match="bad event"):
        taken(line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "text", "content", "usage", "finish_reason", "error", "object"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=80)
@given(JSON.map(lambda value: b"data: " + json.dumps(value).encode()) | st.binary().map(lambda b: b"data: " + b))
def test_no_event_raises_anything_else(line: bytes) -> None:
    """Whatever stands in an event, it is taken in or it is a failure of the stream."""
    answer = Answer(0)
    try:
        take_line(answer, line, 1)
    except StreamError as error:
        assert error.kind in ("bad event", "server error")
    assert isinstance(answer.usage, dict)


@pytest.mark.parametrize(
    ("said", "tokens", "detail"),
    [
        (10**9, 8, "usage says 1000000000 completion tokens, max_tokens is 8"),
        (9, 8, "usage says 9 completion tokens, max_tokens is 8"),
        (7, 8, "usage says 7 completion tokens, 8 events carried text"),
        (0, 8, "usage says 0 completion tokens, 8 events carried text"),
        (None, 7, "8 events carried text, max_tokens is 7"),
    ],
)
def test_a_false_count_is_a_failure(said: int | None, tokens: int, detail: str) -> None:
    """A count above what was asked, or below the events that came, makes no rate."""
    answer = Answer(0, list(range(1, 9)), {} if said is None else {"completion_tokens": said}, done=True)
    with pytest.raises(StreamError, match=f"^false count: {detail}$"):
        _outcome(Request("u", {"max_tokens": tokens}, 0, 1.0), 0.0, answer)


@pytest.mark.parametrize("said", [8, 16, None, -1, True, "9"])
def test_a_true_count_counts(said: object) -> None:
    """An event may carry several tokens; a count that is no number is none."""
    answer = Answer(0, list(range(1, 9)), {"completion_tokens": said}, done=True)
    outcome = _outcome(Request("u", {"max_tokens": 16}, 0, 1.0), 0.0, answer)
    assert (outcome.output_tokens, outcome.counted_by) == ((said, "usage") if said in (8, 16) else (8, "events"))
