"""What a packed-decode kernel must beat: the per-head Triton kernel, torch SDPA, FlashInfer's paths, the thread's schedule.

The first arm is the speed baseline: every ratio of a report divides by it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kda_lab import interpreter, runtime
from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Arm, Call, Launcher

# FlashInfer's wrappers ask for a zeroed float workspace of 128 MiB (its documentation).
WORKSPACE_BYTES = 128 * 1024 * 1024
INTERPRETED_BLOCK_K = 1024


def scale_of(call: Call) -> float:
    """The softmax scale of a call: the one given, else 1/sqrt(D)."""
    given = call.scalars.get("softmax_scale")
    return float(given) if isinstance(given, (int, float)) else 1.0 / math.sqrt(call.inputs["q"].shape[-1])


@dataclass(frozen=True)
class PerHeadArm:
    """The one-program-per-query-head Triton kernel of `per_head.py`."""

    name: str = "per_head"
    reads_live_lengths: bool = True

    @property
    def source_sha256(self) -> str:
        return hashlib.sha256(Path(__file__).with_name("per_head.py").read_bytes()).hexdigest()

    def unavailable(self, device: torch.device) -> str:
        """Why the kernel cannot run on `device`; empty when it can."""
        if device.type == "cuda" or runtime.interpreter_on():
            return ""
        return "unavailable, because per_head is a Triton kernel and there is neither a GPU nor the interpreter"

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """One launcher a call; on a CPU the interpreter is mended first."""
        if calls and calls[0].device.type == "cpu":
            interpreter.ensure_faithful()
        from kda_lab.ops.qsa_packed_decode import per_head  # lazy: triton

        def bound(call: Call) -> Launcher:
            i = call.inputs
            arguments = (i["q"], i["k"], i["v"], i["cu_seqlens_k"], scale_of(call), call.outputs["out"])
            if call.device.type == "cpu":
                return lambda: _interpret(per_head, *arguments)
            return lambda: per_head.packed_decode(*arguments)

        return [bound(call) for call in calls]


def _interpret(
    per_head: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ends: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """The same kernel on larger KV tiles: the interpreter's cost is per operation, so it is five times as fast."""
    axes = {"HQ": q.shape[1], "HKV": k.shape[1], "D": q.shape[2], "BLOCK_D": 1 << (q.shape[2] - 1).bit_length()}
    per_head._per_head_kernel[q.shape[:2]](q, k, v, ends, out, scale, BLOCK_K=INTERPRETED_BLOCK_K, **axes)


@dataclass
class UpstreamArm:
    """The source thread's schedule, in the Triton kernel of `upstream.py`; one workspace a device, kept."""

    name: str = "upstream_schedule"
    reads_live_lengths: bool = True
    concurrency: str = "one workspace a device: launches of several streams or graphs must not overlap"
    _workspaces: dict[torch.device, Any] = field(default_factory=dict, repr=False)

    @property
    def source_sha256(self) -> str:
        return hashlib.sha256(Path(__file__).with_name("upstream.py").read_bytes()).hexdigest()

    def unavailable(self, device: torch.device) -> str:
        """Why the kernel cannot run on `device`; empty when it can."""
        if device.type == "cuda" or runtime.interpreter_on():
            return ""
        return f"unavailable, because {self.name} is a Triton kernel and there is neither a GPU nor the interpreter"

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """One launcher a call; the workspace is made here, so that no graph capture allocates it."""
        if calls and calls[0].device.type == "cpu":
            interpreter.ensure_faithful()
        from kda_lab.ops.qsa_packed_decode import upstream  # lazy: triton

        def bound(call: Call) -> Launcher:
            i, q = call.inputs, call.inputs["q"]
            if q.shape[0] > upstream.MAX_BATCH:
                allowed = f"1 to {upstream.MAX_BATCH}"
                raise ParameterError("qsa.packed_decode", [Reason(f"B of {self.name}", repr(q.shape[0]), allowed)])
            if q.device not in self._workspaces:
                self._workspaces[q.device] = upstream.Workspace.of(q.device, q.shape[2])
            arguments = (i["q"], i["k"], i["v"], i["cu_seqlens_k"], scale_of(call), call.outputs["out"])
            workspace = self._workspaces[q.device]
            return lambda: upstream.packed_decode(*arguments, workspace)

        return [bound(call) for call in calls]

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """The arrival counters of every device, all zero between launches."""
        return {f"count[{device}]": workspace.count for device, workspace in self._workspaces.items()}

    def reset_state(self) -> None:
        """Zero every counter after launches that were aborted or overlapped; none may be in flight."""
        for workspace in self._workspaces.values():
            workspace.count.zero_()


@dataclass(frozen=True)
class SdpaArm:
    """torch's scaled_dot_product_attention, one call a row; the lengths are read on the host at bind."""

    name: str = "torch_sdpa"
    source_sha256: str = ""
    reads_live_lengths: bool = False

    def unavailable(self, device: torch.device) -> str:
        return ""

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        return [_sdpa_launcher(call) for call in calls]


def _sdpa_launcher(call: Call) -> Launcher:
    q, k, v, out = call.inputs["q"], call.inputs["k"], call.inputs["v"], call.outputs["out"]
    scale = scale_of(call)
    ends = [0]
    for length in call.facts["lengths"]:
        ends.append(ends[-1] + length)

    def launch() -> None:
        for row, (start, end) in enumerate(itertools.pairwise(ends)):
            if start == end:
                out[row].zero_()
                continue
            keys = k[start:end].transpose(0, 1)[None]  # [1, HKV, L, D]
            values = v[start:end].transpose(0, 1)[None]
            done = torch.nn.functional.scaled_dot_product_attention(
                q[row][None, :, None], keys, values, scale=scale, enable_gqa=True
            )
            out[row].copy_(done[0, :, 0])

    return launch


@dataclass(frozen=True)
class FlashInferArm:
    """A FlashInfer wrapper: planned once for the calls of one geometry, then run on each.

    The plan reads the lengths on the host, so a bound launcher serves those lengths only.
    """

    name: str
    make: Callable[[Any, Call], Callable[[Call], None]]
    """Takes the module and one call; plans; returns what runs a call of the same geometry."""
    source_sha256: str = ""
    reads_live_lengths: bool = False

    def unavailable(self, device: torch.device) -> str:
        """Why FlashInfer cannot run on `device`; empty when it can."""
        if device.type != "cuda":
            return f"unavailable, because FlashInfer needs a CUDA device and this one is {device.type}"
        return runtime.import_optional("flashinfer").reason

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """Plan once for the geometry of the first call; one launcher a call."""
        flashinfer = runtime.import_optional("flashinfer").module
        run = self.make(flashinfer, calls[0])
        return [lambda call=call: run(call) for call in calls]  # type: ignore[misc]


def _axes(call: Call) -> tuple[int, int, int]:
    q, k = call.inputs["q"], call.inputs["k"]
    return q.shape[1], k.shape[1], q.shape[2]


def _workspace(call: Call) -> torch.Tensor:
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=call.device)


def _plan_ragged(backend: str) -> Callable[[Any, Call], Callable[[Call], None]]:
    def make(flashinfer: Any, call: Call) -> Callable[[Call], None]:
        heads, kv_heads, width = _axes(call)
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(_workspace(call), "NHD", backend=backend)
        wrapper.plan(
            call.inputs["cu_seqlens_q"],
            call.inputs["cu_seqlens_k"],
            heads,
            kv_heads,
            width,
            causal=False,
            sm_scale=scale_of(call),
            q_data_type=torch.bfloat16,
        )
        return lambda c: wrapper.run(c.inputs["q"], c.inputs["k"], c.inputs["v"], out=c.outputs["out"])

    return make


def _plan_paged(flashinfer: Any, call: Call) -> Callable[[Call], None]:
    """Paged decode with page size 1: the packed rows are the pages, in order."""
    heads, kv_heads, width = _axes(call)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(_workspace(call), "NHD", use_tensor_cores=True)
    indptr = call.inputs["cu_seqlens_k"]
    pages = torch.arange(sum(call.facts["lengths"]), dtype=torch.int32, device=call.device)
    last_page = torch.ones(call.facts["B"], dtype=torch.int32, device=call.device)
    wrapper.plan(
        indptr,
        pages,
        last_page,
        heads,
        kv_heads,
        width,
        1,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
        sm_scale=scale_of(call),
    )

    def run(c: Call) -> None:
        cache = (c.inputs["k"][:, None], c.inputs["v"][:, None])  # [N, 1, HKV, D] each
        wrapper.run(c.inputs["q"], cache, out=c.outputs["out"])

    return run


ARMS: tuple[Arm, ...] = (
    PerHeadArm(),
    SdpaArm(),
    FlashInferArm("flashinfer_ragged_fa2", _plan_ragged("fa2")),
    FlashInferArm("flashinfer_ragged_fa3", _plan_ragged("fa3")),
    FlashInferArm("flashinfer_paged_tc", _plan_paged),
    UpstreamArm(),
)
