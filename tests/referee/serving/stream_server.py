"""A small OpenAI-compatible server on real sockets, for tests: paced tokens, and faults on demand.

The first part of the path says how it behaves, so that one process plays every arm:

    /delay_ms=4,jitter_ms=0.2,seed=1,fault=http500,every=3/v1/completions

`delay_ms` between tokens, `first_ms` before the first, each with Gaussian jitter from a seed; every `every`-th
request of that behaviour meets the fault. Tokens come at absolute times, so that a late wake-up does not add up.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter, defaultdict

TOKEN = " tok\u2028"
"""Ends in a line break of Unicode, which stands unescaped in the events."""
seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
bodies: defaultdict[str, list[dict]] = defaultdict(list)


def behaviour(part: str) -> dict[str, str]:
    """`a=1,b=2` as a dict."""
    return dict(pair.split("=", 1) for pair in part.split(",") if "=" in pair)


async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer requests of one connection until it closes."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
            length = next((int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")), 0)
            body = json.loads(await reader.readexactly(length)) if length else {}
            token = next(
                (h[22:].decode() for h in head.split(b"\r\n") if h.lower().startswith(b"authorization: bearer ")), ""
            )
            how, path = target.lstrip("/").partition("/")[::2]
            if behaviour(how).get("key", token) != token:
                writer.write(b"HTTP/1.1 401 X\r\nContent-Length: 0\r\n\r\n")
            elif not await answer(writer, how, method, f"/{path}", body):
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def answer(writer: asyncio.StreamWriter, how: str, method: str, path: str, body: dict) -> bool:
    """Answer one request; False when the connection is to be closed."""
    settings = behaviour(how)
    seen[how][f"{method} {path}"] += 1
    if path.endswith("completions"):
        bodies[how].append(body)
        return await stream(writer, how, path, body)
    known = {
        "/v1/models": {"data": [{"id": "toy"}]},
        "/flush_cache": {"ok": True},
        "/get_server_info": {"tp_size": 1, "backend": {"attention": settings.get("backend", "fa3")}},
        "/seen": seen[how],
        "/bodies": bodies[how],
    }
    status = 503 if settings.get("fault") == f"no{path.replace('/', '_')}" else 200 if path in known else 404
    data = json.dumps(known.get(path, {"error": "unknown"})).encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()
    return True


def event(path: str, text: str, finish: str | None = None) -> dict:
    """One event with a piece of text."""
    if "chat" in path:
        return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], "usage": None}
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": None}


async def stream(writer: asyncio.StreamWriter, how: str, path: str, body: dict) -> bool:
    """Stream the tokens of one request."""
    settings = behaviour(how)
    number = len(bodies[how])
    fault = settings.get("fault", "") if number % int(settings.get("every", 1)) == 0 else ""
    if fault == "http500":
        writer.write(b"HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\nboom")
        await writer.drain()
        return True
    if fault == "hangup":
        return False
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    async def send(data: str) -> None:
        whole = data.encode()
        cut = len(whole) // 2 if settings.get("split") else 0
        for raw in filter(None, (whole[:cut], whole[cut:])):
            writer.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.001 if cut else 0)

    tokens, count = int(body["max_tokens"]), 0
    generator = random.Random(f"{settings.get('seed', 0)} {number}")
    due = asyncio.get_running_loop().time() + float(settings.get("first_ms", 1)) / 1e3
    for place in range(tokens):
        if fault == "truncate" and place == tokens // 2:
            return False
        if fault == "silence" and place == 1:
            await asyncio.sleep(0.6)
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        pause_ms = float(settings.get("delay_ms", 0)) + generator.gauss(0, float(settings.get("jitter_ms", 0)))
        due += max(pause_ms, 0) / 1e3
        count += 1
        if fault == "bad_event" and place == 1:
            await send("data: {not json\n\n")
        elif fault == "server_error" and place == 1:
            await send('data: {"error": {"message": "out of memory"}}\n\n')
        elif fault != "empty":
            finish = "length" if place == tokens - 1 else None
            await send(f"data: {json.dumps(event(path, TOKEN, finish), ensure_ascii=False)}\n\n")
    if settings.get("usage", "1") == "1":
        usage = {"prompt_tokens": len(str(body.get("prompt", body.get("messages")))), "completion_tokens": count}
        await send(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n")
    if fault != "no_done":
        await send("data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


async def main() -> None:
    """Serve on a free port, printed first, until standard input closes."""
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
