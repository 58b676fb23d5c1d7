"""What a paged-decode kernel must beat: compaction and the packed kernel, FlashInfer on pages of one token, torch.

The first arm is the speed baseline: every ratio of a report divides by it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import kda_lab
from kda_lab import interpreter, qsa, runtime
from kda_lab.dispatch.qsa_attention import paged_decode
from kda_lab.ops import arms
from kda_lab.ops.protocol import Arm, Call, FunctionArm, Launcher
from kda_lab.ops.qsa_paged_decode.oracle import slots_of, valid_columns
from kda_lab.ops.qsa_paged_decode.spec import SPEC

# FlashInfer's wrappers ask for a zeroed float workspace of 128 MiB (its documentation).
WORKSPACE_BYTES = 128 * 1024 * 1024
PACKED_KERNEL = "qsa_packed_decode_grouped"
INDICES = "_paged_kv_indices_buf"
"""Attribute in which FlashInfer 0.6's wrapper keeps the page indices of its plan."""


def scale_of(call: Call) -> float:
    """The softmax scale of a call: the one given, else 1/sqrt(D)."""
    given = call.scalars.get("softmax_scale")
    return float(given) if isinstance(given, (int, float)) else 1.0 / math.sqrt(call.inputs["q"].shape[-1])


@dataclass(frozen=True)
class CompactArm:
    """Compaction of `compact.py`, then packed decode: its public door on a GPU, the exported kernel on a CPU.

    All launchers of a bind share one packed scratch, as a server does: attention reads it from L2 where it fits.
    """

    name: str = "compact_then_packed"
    reads_live_lengths: bool = True

    @property
    def source_sha256(self) -> str:
        return hashlib.sha256(Path(__file__).with_name("compact.py").read_bytes()).hexdigest()

    def unavailable(self, device: torch.device) -> str:
        """Why its kernels cannot run on `device`; empty when they can."""
        return arms.cuda_or_interpreter(device, self.name)

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """One launcher a call; on a CPU the interpreter is mended first."""
        on_cpu = calls[0].device.type == "cpu"
        if on_cpu:
            interpreter.ensure_faithful()
        from kda_lab.ops.qsa_paged_decode import compact  # lazy: triton

        decode: Callable[..., Any] = _exported_packed_decode() if on_cpu else qsa.packed_decode
        batch, width = calls[0].inputs["tokens"].shape
        packed = compact.packed_for(calls[0].inputs["k_pool"], batch, width)

        def bound(call: Call) -> Launcher:
            ends = (packed.cu_seqlens_q, packed.cu_seqlens_k)
            scalars: dict[str, Any] = {
                "max_seqlen_k": width,
                "softmax_scale": scale_of(call),
                "out": call.outputs["out"],
            }

            def launch() -> None:
                compact.compact(call.inputs, packed)
                decode(call.inputs["q"], packed.k, packed.v, *ends, **scalars)

            return launch

        return [bound(call) for call in calls]


def _exported_packed_decode() -> Any:
    """The entry of the exported packed kernel, for the interpreter: the door serves CUDA devices only."""
    arm = arms.exported_arm(Path(kda_lab.__file__).parent / "kernels" / PACKED_KERNEL)
    return getattr(arm.module, arm.declaration.entry)


def _gather_sdpa(call: Call) -> None:
    """torch: every column's K and V row is gathered, holes included, then one masked scaled_dot_product_attention."""
    tensors = [call.inputs[name] for name in SPEC.tensors]
    paged_decode(*tensors, softmax_scale=scale_of(call), out=call.outputs["out"])


@dataclass(frozen=True)
class FlashInferArm:
    """FlashInfer's paged decode on tensor cores with pages of one token: a row's slots are its page indices.

    Its plan reads the counts on the host, so a bound launcher serves those counts only; which slots they are may
    change, since `prepare()` looks them up again. The look-up is not part of what is timed, in FlashInfer's favour.
    """

    name: str = "flashinfer_paged_page1"
    source_sha256: str = ""
    reads_live_lengths: bool = False
    planned: bool = False
    """Every launch looks up the slots, plans and runs, as a serving step must: host work that no graph can hold.

    Such an arm is timed in mode `eager` only, and there as the baseline, since that mode leaves peers out."""

    def unavailable(self, device: torch.device) -> str:
        """Why FlashInfer cannot run on `device`; empty when it can."""
        if device.type != "cuda":
            return f"unavailable, because FlashInfer needs a CUDA device and this one is {device.type}"
        return runtime.import_optional("flashinfer").reason

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """Plan once for the counts of the first call; one launcher a call."""
        flashinfer = runtime.import_optional("flashinfer").module
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=calls[0].device)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)  # type: ignore[union-attr]
        if self.planned:
            return [lambda call=call: _plan_and_run(wrapper, call) for call in calls]  # type: ignore[misc]
        _plan(wrapper, calls[0], calls[0].facts["lengths"])
        return [PlannedLauncher(wrapper, call, page_indices(call)) for call in calls]


@dataclass(frozen=True)
class PlannedLauncher:
    """Runs one call under the plan of its geometry, on page indices of its own."""

    wrapper: Any
    call: Call
    indices: torch.Tensor
    """[sum of counts] int32: the slots of the call's valid columns, row by row."""

    def prepare(self) -> None:
        """Look the slots up again, into the same memory: the contents may be others than at the bind."""
        self.indices.copy_(page_indices(self.call))

    def __call__(self) -> None:
        # One plan serves all calls of a geometry, and the indices are no part of it.
        setattr(self.wrapper, INDICES, self.indices)
        _run(self.wrapper, self.call)


def page_indices(call: Call) -> torch.Tensor:
    """The slots of a call's valid columns, row by row, int32; waits for the device, to learn how many there are."""
    valid = valid_columns(call)
    return slots_of(call, valid)[valid].to(torch.int32)


def _plan_and_run(wrapper: Any, call: Call) -> None:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("FlashInfer plans on the host, which no graph can hold; time this arm in mode 'eager'.")
    _plan(wrapper, call, valid_columns(call).sum(1).tolist())
    _run(wrapper, call)


def _plan(wrapper: Any, call: Call, counts: Sequence[int]) -> None:
    q, k_pool = call.inputs["q"], call.inputs["k_pool"]
    # From the host: the plan reads the offsets there.
    offsets = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
    last_page = torch.ones(len(counts), dtype=torch.int32)
    wrapper.plan(
        offsets,
        page_indices(call),
        last_page,
        q.shape[1],
        k_pool.shape[1],
        q.shape[2],
        1,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
        sm_scale=scale_of(call),
    )
    if not isinstance(getattr(wrapper, INDICES, None), torch.Tensor):
        raise RuntimeError(f"FlashInfer's wrapper has no {INDICES}; allowed: FlashInfer 0.6, whose wrapper has it")


def _run(wrapper: Any, call: Call) -> None:
    cache = (call.inputs["k_pool"][:, None], call.inputs["v_pool"][:, None])  # [S, 1, HKV, D] each
    wrapper.run(call.inputs["q"], cache, out=call.outputs["out"])


ARMS: tuple[Arm, ...] = (
    CompactArm(),
    FunctionArm("torch_gather_sdpa", _gather_sdpa),
    FlashInferArm(),
    FlashInferArm("flashinfer_paged_page1_planned", planned=True),
)
