"""Child process of the audit: replay an exported kernel on captures, prove that it ran, compare it with its candidate.

Reads one JSON request from stdin: `folder` (the exported kernel), `candidate` (its source file, or empty),
`captures` (a folder), `names` (captures to replay), `functions` (device functions of the contract), `device`. Prints
one JSON object: `device`, `unavailable` (why nothing ran; empty), `launches` (capture to function to count, of one
call), `foreign` (functions that came from other files), `failed` (capture to the checks of the op's gates that
failed), `different` (captures on which the candidate gives other bits), `candidate_fault` (what it raised instead).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kda_lab import runtime
from kda_lab.ops.protocol import Call

FAULT_CHARACTERS = 300


class LaunchCount:
    """Counts the launches of a module's Triton functions, through the hook that Triton runs before each of them."""

    def __init__(self, module: ModuleType) -> None:
        self.counts: Counter[str] = Counter()
        self.files: dict[str, str] = {}
        hooked = {id(f): f for f in map(_hookable, vars(module).values()) if f is not None}
        for function in hooked.values():
            name = function.fn.__name__
            self.files[name] = function.fn.__code__.co_filename
            function.add_pre_run_hook(self._hook(name))

    def _hook(self, name: str) -> Callable[..., None]:
        def seen(*_arguments: Any, **_options: Any) -> None:
            self.counts[name] += 1

        return seen

    def of(self, launch: Callable[[], Any]) -> dict[str, int]:
        """Function to launches while `launch` ran."""
        self.counts.clear()
        launch()
        return dict(sorted(self.counts.items()))


def _hookable(value: Any) -> Any:
    """The Triton function in a module's attribute, below autotuning and heuristics; None for anything else."""
    while value is not None and not hasattr(value, "add_pre_run_hook"):
        value = getattr(value, "fn", None) if hasattr(value, "run") else None
    return value if hasattr(value, "fn") else None


def profiled(launch: Callable[[], None], device: torch.device) -> dict[str, int]:
    """Device activities of one launch by the profiler, for kernels that Triton does not launch; empty without one."""
    from kda_lab.timing.activity import profile_call  # lazy: triton

    return profile_call(launch, device).kernels or {}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Replay as the request says; a kernel that raises ends the process with its traceback."""
    # Triton reads TRITON_INTERPRET when a kernel is defined, so the switch comes before anything imports one.
    runtime.use_interpreter_on_cpu()
    from kda_lab.captures.store import CaptureSet  # lazy: triton
    from kda_lab.export.bits_worker import fresh_output  # lazy: triton
    from kda_lab.ops.arms import exported_arm  # lazy: triton
    from kda_lab.ops.registry import load_op  # lazy: triton
    from kda_lab.verify.replay import replay  # lazy: triton

    device = runtime.resolve_device(request["device"])
    folder = Path(request["folder"]).resolve()
    exported = exported_arm(folder)
    found: dict[str, Any] = {"device": str(device), "unavailable": exported.unavailable(device)}
    found |= {"different": [], "launches": {}, "foreign": [], "failed": {}, "candidate_fault": ""}
    if found["unavailable"]:
        return found
    seen = LaunchCount(exported.module)
    outputs: dict[str, dict[str, torch.Tensor]] = {}
    captures = CaptureSet.open(request["captures"])
    for name in request["names"]:
        capture = captures.load(name, device)
        own: dict[str, torch.Tensor] = {}
        counts = seen.of(lambda call=capture.call, own=own: own.update(fresh_output(call, exported.bind)))  # type: ignore[misc]
        if not counts and device.type == "cuda":
            counts = profiled(exported.bind([capture.call.to(device)])[0], device)
        found["launches"][name], outputs[name] = counts, own
        judged = replay(load_op(captures.op), exported, capture, device)
        if not judged.passed:
            found["failed"][name] = list(judged.failed)
    ran = {function for counts in found["launches"].values() for function in counts} | set(request["functions"])
    found["foreign"] = sorted(n for n, f in seen.files.items() if n in ran and not Path(f).is_relative_to(folder))
    if request["candidate"]:
        calls = {name: captures.load(name, device).call for name in outputs}
        found["different"], found["candidate_fault"] = compared(Path(request["candidate"]), calls, outputs)
    return found


def compared(
    source: Path, calls: dict[str, Call], outputs: dict[str, dict[str, torch.Tensor]]
) -> tuple[list[str], str]:
    """Captures on which a candidate gives other bits than `outputs`, and what it raised; empty when it ran."""
    from kda_lab.export.bits_worker import fresh_output, same_bits  # lazy: triton
    from kda_lab.ops.arms import candidate_arm  # lazy: triton

    try:
        arm = candidate_arm(source)
        return [n for n, call in calls.items() if not same_bits(outputs[n], fresh_output(call, arm.bind))], ""
    # Expected: anything that a candidate under work raises when it is imported, compiled or run.
    except Exception as error:  # noqa: BLE001
        return [], f"{type(error).__name__}: {error}"[:FAULT_CHARACTERS]


def main() -> None:
    """Answer the request on stdin with one line of JSON."""
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin))) + "\n")


if __name__ == "__main__":
    main()
