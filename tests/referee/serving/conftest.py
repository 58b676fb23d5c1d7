"""A real local server for the serving driver's tests, and plans against it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kda_lab.referee.serving.plan import Plan

SERVER = Path(__file__).with_name("stream_server.py")


class Server:
    """The address of the running server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def url(self, how: str = "plain=1") -> str:
        """Base URL of a server that behaves so."""
        return f"http://127.0.0.1:{self.port}/{how}"

    def get(self, how: str, path: str) -> Any:
        """JSON of a path."""
        with urllib.request.urlopen(f"{self.url(how)}{path}") as response:
            return json.load(response)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One process of the server for all tests."""
    with subprocess.Popen([sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Server(int(process.stdout.readline()))
        process.stdin.close()
        process.wait(timeout=10)


@pytest.fixture
def make_plan(server: Server) -> Callable[..., Plan]:
    """A small plan of two arms; fields can be replaced."""

    def make(base: str = "arm=base", cand: str = "arm=cand", **fields: Any) -> Plan:
        arms = [{"name": "base", "base_url": server.url(base)}, {"name": "cand", "base_url": server.url(cand)}]
        given = {
            "name": "toy",
            "arms": arms,
            "baseline": "base",
            "concurrency": [2],
            "rounds": 2,
            "requests": 4,
            "warmup_requests": 1,
            "prompts": {"input_tokens": 16, "output_tokens": 4},
        }
        return Plan.model_validate(given | fields)

    return make
