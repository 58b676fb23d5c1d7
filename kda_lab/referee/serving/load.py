"""The load of one cell: prepare the server, warm it up, empty its prefix cache, then send requests in a closed loop.

Closed loop: `concurrency` senders, each with one request on its way, until all prompts are answered. Open-loop arrival
(a request rate) is out of scope: with it two arms of different speed are compared at different occupancy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from kda_lab.referee.claim import Setting
from kda_lab.referee.serving.plan import Plan, ServedArm
from kda_lab.referee.serving.prompts import Prompt, make_prompts
from kda_lab.referee.serving.schedule import Cell
from kda_lab.referee.serving.stream import Outcome, Request, send

LAG_STEP_S = 0.02
DETAIL_CHARACTERS = 200


@dataclass
class Measured:
    """What one cell gave; `failure` says why it has no outcomes, or is empty."""

    started_s: float
    """Unix time."""
    outcomes: list[Outcome] = field(default_factory=list)
    wall_s: float = 0.0
    """From the first sending to the last answer."""
    lag_ms: list[float] = field(default_factory=list)
    """How late this program's own event loop woke up, sampled all through the cell."""
    resolved: dict[str, Setting] = field(default_factory=dict)
    failure: str = ""


class PreparationError(Exception):
    """The server could not be prepared; never leaves this module."""


async def run_cell(plan: Plan, cell: Cell) -> Measured:
    """Measure one cell; whatever the server does becomes part of the result."""
    arm = plan.arm(cell.arm)
    made = Measured(started_s=time.time())
    limits = httpx.Limits(max_connections=cell.concurrency, max_keepalive_connections=cell.concurrency)
    t = plan.timeouts
    timeout = httpx.Timeout(connect=t.connect_s, read=t.silence_s, write=t.silence_s, pool=None)
    # Proxies of the environment would stand between the driver and a local server. Certificates take a tenth of a
    # second to load and plain HTTP has none to verify.
    client = httpx.AsyncClient(
        timeout=timeout,
        limits=limits,
        headers=_headers(arm),
        trust_env=False,
        verify=arm.base_url.startswith("https:"),
    )
    async with client:
        try:
            model = await _model(client, arm)
            made.resolved = await _resolved(client, arm)
            await _warm_up(client, plan, cell, model)
            await _flush(client, arm)
        except PreparationError as failure:
            made.failure = str(failure)
            return made
        prompts = make_prompts(plan, cell.salt)
        lag = asyncio.create_task(_watch_lag(made.lag_ms))
        start_ns = time.perf_counter_ns()
        try:
            made.outcomes = await _closed_loop(client, _requests(plan, arm, model, prompts), cell.concurrency, start_ns)
            made.wall_s = (time.perf_counter_ns() - start_ns) / 1e9
        finally:
            lag.cancel()
    return made


async def _closed_loop(
    client: httpx.AsyncClient, requests: Sequence[Request], senders: int, start_ns: int
) -> list[Outcome]:
    waiting: Iterator[Request] = iter(requests)
    outcomes: list[Outcome] = []

    async def sender() -> None:
        for request in waiting:
            outcomes.append(await send(client, request, start_ns))

    await asyncio.gather(*(sender() for _ in range(senders)))
    return sorted(outcomes, key=lambda outcome: outcome.index)


def _requests(plan: Plan, arm: ServedArm, model: str, prompts: Sequence[Prompt]) -> list[Request]:
    path = "/v1/chat/completions" if plan.endpoint == "chat" else "/v1/completions"
    url = arm.base_url.rstrip("/") + path
    return [Request(url, _body(plan, model, p), i, plan.timeouts.request_s) for i, p in enumerate(prompts)]


def _body(plan: Plan, model: str, prompt: Prompt) -> dict[str, Any]:
    asked: dict[str, Any] = (
        {"messages": [{"role": "user", "content": prompt}]} if plan.endpoint == "chat" else {"prompt": prompt}
    )
    body = {
        "model": model,
        "max_tokens": plan.prompts.output_tokens,
        "temperature": plan.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        **asked,
        **plan.extra_body,
    }
    return body | {"ignore_eos": True} if plan.ignore_eos else body


async def _warm_up(client: httpx.AsyncClient, plan: Plan, cell: Cell, model: str) -> None:
    if not plan.warmup_requests:
        return
    requests = _requests(plan, plan.arm(cell.arm), model, make_prompts(plan, cell.key, warmup=True))
    outcomes = await _closed_loop(client, requests, cell.concurrency, time.perf_counter_ns())
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if failed:
        raise PreparationError(
            f"{len(failed)} of {len(outcomes)} warm-up requests failed, the first: {failed[0].failure} "
            f"({failed[0].detail})"
        )


async def _model(client: httpx.AsyncClient, arm: ServedArm) -> str:
    if arm.model:
        return arm.model
    answer = await _ask(client, arm, "GET", "/v1/models")
    try:
        return str(answer["data"][0]["id"])
    except (KeyError, IndexError, TypeError) as error:
        raise PreparationError(f"/v1/models names no model: {answer!r:.{DETAIL_CHARACTERS}}") from error


async def _resolved(client: httpx.AsyncClient, arm: ServedArm) -> dict[str, Setting]:
    found = dict(arm.resolved)
    if not arm.info_path:
        return found
    answer = await _ask(client, arm, "GET", arm.info_path)
    for key in arm.info_keys:
        value = answer
        for step in key.split("."):
            if not isinstance(value, dict) or step not in value:
                raise PreparationError(f"{arm.info_path} has no {key!r}")
            value = value[step]
        found[key] = value if isinstance(value, str | int | float | bool | None) else str(value)
    return found


async def _flush(client: httpx.AsyncClient, arm: ServedArm) -> None:
    """Empty the prefix cache; after the warm-up, whose prompts fill it."""
    if arm.flush_path:
        await _ask(client, arm, "POST", arm.flush_path, parse=False)


async def _ask(client: httpx.AsyncClient, arm: ServedArm, method: str, path: str, parse: bool = True) -> Any:
    try:
        response = await client.request(method, arm.base_url.rstrip("/") + path)
        if response.status_code != httpx.codes.OK:
            text = f"{method} {path} answered {response.status_code}: {response.text[:DETAIL_CHARACTERS]}"
            raise PreparationError(text.removesuffix(": "))
        return response.json() if parse else None
    except httpx.HTTPError as error:
        raise PreparationError(f"{method} {path} failed: {type(error).__name__} {error}".strip()) from error
    except ValueError as error:
        raise PreparationError(f"{method} {path} answered no JSON: {error}") from error


async def _watch_lag(lag_ms: list[float]) -> None:
    while True:
        before_ns = time.perf_counter_ns()
        await asyncio.sleep(LAG_STEP_S)
        lag_ms.append((time.perf_counter_ns() - before_ns) / 1e6 - LAG_STEP_S * 1e3)


def _headers(arm: ServedArm) -> dict[str, str]:
    if not arm.api_key_file:
        return {}
    return {"Authorization": f"Bearer {Path(arm.api_key_file).read_text().strip()}"}
