"""One launch as a CUDA graph, so that it can be replayed after its buffers were refilled in place."""

from __future__ import annotations

import warnings

import torch

from kda_lab.ops.protocol import Launcher

WARM_UP_LAUNCHES = 2
"""Launches on the capturing stream beforehand: compilation and scratch must not fall into the capture."""
_EMPTY = "graph is empty"
"""Words of torch's warning about a capture that holds no work, in lower case."""


def capture(launcher: Launcher, device: torch.device) -> Launcher:
    """Capture one launch and return what replays it. CUDA only; nothing is launched by the capture itself.

    The warm-up runs on the stream that is captured, since a kernel may keep a workspace per stream.

    Raises:
        RuntimeError: the launch cannot be captured, or put nothing on the captured stream.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_LAUNCHES):
            launcher()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.cuda.graph(graph, stream=stream):
            launcher()
    _hand_on(caught)
    return graph.replay


def _hand_on(caught: list[warnings.WarningMessage]) -> None:
    """Turn torch's remark about an empty graph into a failure; all other warnings are given again."""
    for warning in caught:
        if _EMPTY in str(warning.message).lower():
            raise RuntimeError("the captured graph is empty: the launch put nothing on the captured stream")
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
