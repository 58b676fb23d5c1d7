"""One streamed request to an OpenAI-compatible endpoint, and when its tokens came.

Server-sent events, one a line `data: {…}`, ended by `data: [DONE]`. Times are taken when bytes arrive, before they are
parsed. An answer without its end, with an error in it or with no token is a failure with a kind and a detail; nothing
that a server sends raises.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

DETAIL_CHARACTERS = 200
LARGEST_LINE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Outcome:
    """What became of one request; times in milliseconds from its sending."""

    index: int
    """Place of its prompt in the cell."""
    start_s: float
    """When it was sent, from the start of the cell."""
    failure: str = ""
    """Kind: `timeout`, `refused`, `http 500`, `truncated stream`, `bad event`, `server error`, `no token`,
    `false count`; or empty."""
    detail: str = ""
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    """To the last token."""
    tpot_ms: float | None = None
    """(e2e - ttft) / (output tokens - 1); None for one token, and where all came in one event."""
    itl_ms: tuple[float, ...] = ()
    """Gaps between the events that carry tokens."""
    input_tokens: int | None = None
    output_tokens: int = 0
    counted_by: str = "usage"
    """`usage`: the server's count. `events`: it sent none, and an event may carry more than one token."""
    finish_reason: str = ""
    text_sha256: str = ""

    @property
    def ok(self) -> bool:
        return not self.failure


@dataclass
class Answer:
    """An answer while it comes in."""

    sent_ns: int
    token_ns: list[int] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str = ""
    done: bool = False
    text: Any = field(default_factory=hashlib.sha256)


class StreamError(Exception):
    """An answer that is not one; never leaves this module."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


@dataclass(frozen=True)
class Request:
    """What is sent."""

    url: str
    body: dict[str, Any]
    index: int
    limit_s: float
    """Of the whole request."""


async def send(client: httpx.AsyncClient, request: Request, cell_start_ns: int) -> Outcome:
    """Send one request and read its answer to the end; failures come back as an outcome."""
    answer = Answer(time.perf_counter_ns())
    start_s = (answer.sent_ns - cell_start_ns) / 1e9
    try:
        await asyncio.wait_for(_receive(client, request, answer), request.limit_s)
        return _outcome(request, start_s, answer)
    except StreamError as failure:
        kind, detail = failure.kind, failure.detail
    except (asyncio.TimeoutError, httpx.TimeoutException) as error:
        kind, detail = (
            "timeout",
            f"{type(error).__name__} after {(time.perf_counter_ns() - answer.sent_ns) / 1e9:.1f} s",
        )
    except httpx.ConnectError as error:
        kind, detail = "refused", str(error)
    except httpx.HTTPError as error:
        kind = "truncated stream" if answer.token_ns else "connection lost"
        detail = f"{type(error).__name__}: {error}"
    return Outcome(index=request.index, start_s=start_s, failure=kind, detail=detail[:DETAIL_CHARACTERS])


async def _receive(client: httpx.AsyncClient, request: Request, answer: Answer) -> None:
    async with client.stream("POST", request.url, json=request.body) as response:
        if response.status_code != httpx.codes.OK:
            text = (await response.aread())[:DETAIL_CHARACTERS].decode(errors="replace")
            raise StreamError(f"http {response.status_code}", text)
        async for line, arrived_ns in _lines(response):
            # Read on after the end, so that the connection can be used again.
            if not answer.done:
                take_line(answer, line, arrived_ns)


async def _lines(response: httpx.Response) -> AsyncIterator[tuple[bytes, int]]:
    """Lines of the body with the time of the bytes that ended them.

    httpx's own line reader splits at every Unicode line break, and those stand unescaped inside JSON.
    """
    rest = b""
    async for piece in response.aiter_bytes():
        arrived_ns = time.perf_counter_ns()
        *whole, rest = (rest + piece).split(b"\n")
        if len(rest) > LARGEST_LINE_BYTES:
            raise StreamError("bad event", f"a line of more than {LARGEST_LINE_BYTES} bytes")
        for line in whole:
            yield line, arrived_ns
    if rest:
        yield rest, time.perf_counter_ns()


def take_line(answer: Answer, line: bytes, arrived_ns: int) -> None:
    """Take one line of the stream in.

    Raises:
        StreamError: the event is no JSON object, or says that the server failed.
    """
    line = line.strip()
    if not line.startswith(b"data:"):
        return
    data = line[len(b"data:") :].strip()
    if data == b"[DONE]":
        answer.done = True
        return
    try:
        event = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StreamError("bad event", f"{data[:DETAIL_CHARACTERS]!r}") from error
    if not isinstance(event, dict):
        raise StreamError("bad event", f"{data[:DETAIL_CHARACTERS]!r}")
    if event.get("error") or event.get("object") == "error":
        raise StreamError("server error", str(event.get("error") or event))
    if isinstance(event.get("usage"), dict):
        answer.usage = event["usage"]
    choices = event.get("choices") or []
    if not isinstance(choices, list):
        raise StreamError("bad event", f"choices {choices!r:.80}")
    for choice in choices:
        _take_choice(answer, choice, arrived_ns)


def _take_choice(answer: Answer, choice: Any, arrived_ns: int) -> None:
    delta = choice.get("delta") or {} if isinstance(choice, dict) else None
    if not isinstance(delta, dict):
        raise StreamError("bad event", f"choice {choice!r:.80}")
    pieces = (choice.get("text"), delta.get("content"), delta.get("reasoning_content"), delta.get("reasoning"))
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    if choice.get("finish_reason"):
        answer.finish_reason = str(choice["finish_reason"])
    if text:
        answer.token_ns.append(arrived_ns)
        answer.text.update(text.encode(errors="backslashreplace"))


def _outcome(request: Request, start_s: float, answer: Answer) -> Outcome:
    if not answer.done:
        raise StreamError("truncated stream", f"no [DONE] after {len(answer.token_ns)} events with text")
    if not answer.token_ns:
        raise StreamError("no token", f"the stream ended without text, finish_reason {answer.finish_reason!r}")
    counted = _count(answer.usage.get("completion_tokens"))
    tokens = _tokens(request.body.get("max_tokens"), counted, len(answer.token_ns))
    ttft_ms = _ms(answer.token_ns[0] - answer.sent_ns)
    e2e_ms = _ms(answer.token_ns[-1] - answer.sent_ns)
    streamed = min(tokens, len(answer.token_ns)) > 1
    return Outcome(
        index=request.index,
        start_s=start_s,
        ttft_ms=ttft_ms,
        e2e_ms=e2e_ms,
        tpot_ms=(e2e_ms - ttft_ms) / (tokens - 1) if streamed else None,
        itl_ms=tuple(_ms(b - a) for a, b in zip(answer.token_ns, answer.token_ns[1:], strict=False)),
        input_tokens=_count(answer.usage.get("prompt_tokens")),
        output_tokens=tokens,
        counted_by="events" if counted is None else "usage",
        finish_reason=answer.finish_reason,
        text_sha256=answer.text.hexdigest(),
    )


def _tokens(most: int | None, counted: int | None, events: int) -> int:
    """Tokens of an answer; a count that the stream itself contradicts makes no rate."""
    if counted is not None and counted < events:
        raise StreamError("false count", f"usage says {counted} completion tokens, {events} events carried text")
    tokens = events if counted is None else counted
    if most is not None and tokens > most:
        said = f"{events} events carried text" if counted is None else f"usage says {counted} completion tokens"
        raise StreamError("false count", f"{said}, max_tokens is {most}")
    return tokens


def _ms(nanoseconds: int) -> float:
    # A tenth of a microsecond: what lies below is no measurement and would fill the records.
    return round(nanoseconds / 1e6, 4)


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
