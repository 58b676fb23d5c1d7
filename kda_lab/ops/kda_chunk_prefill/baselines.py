"""What a prefill kernel must beat: the usual four launches in plain Triton, eager torch, fla-core's chunk_kda.

The first arm is the speed baseline: every ratio of a report divides by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kda_lab.ops.kda.chunked import chunked
from kda_lab.ops.kda.gate import bound_of
from kda_lab.ops.kda.reference_arms import FlaArm, TritonArm, memory_of
from kda_lab.ops.kda_chunk_prefill.oracle import compute
from kda_lab.ops.protocol import Arm, Call, FunctionArm, Launcher


class _Prepared:
    """What a launcher reads on the host beforehand: tensors that stay where they are while the launcher lives.

    A graph reads them for as long. It serves calls of the key that it was captured with.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], tuple[torch.Tensor, ...]] = {}

    def _keep(self, key: tuple[int, ...], made: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The tensors of this key, with the contents of those made now."""
        for kept, new in zip(self._kept.setdefault(key, made), made, strict=True):
            kept.copy_(new)
        return self._kept[key]


class PlainLauncher(_Prepared):
    """Runs one call with the tables of its chunks, which are read on the host beforehand."""

    def __init__(self, module: Any, call: Call) -> None:
        super().__init__()
        self._module, self._call = module, call
        self.prepare()

    def prepare(self) -> None:
        """Make the tables again, for each number of chunks in memory of its own."""
        made = self._module.tables(self._call.inputs["cu_seqlens"])
        self._where = self._keep((made[0].shape[0],), made)

    def __call__(self) -> None:
        self._module.prefill(memory_of(self._call), bound_of(self._call), self._call.outputs["out"], self._where)


def _plain(calls: Sequence[Call]) -> list[Launcher]:
    """`plain.py`: gate and sums, scores and inverse, states, outputs, with all that lies between them in memory."""
    from kda_lab.ops.kda_chunk_prefill import plain  # lazy: triton

    return [PlainLauncher(plain, call) for call in calls]


def _torch(call: Call) -> None:
    """torch: chunk by chunk in FP32, in some two hundred launches a chunk; reads lengths on the host."""
    found = compute(call.with_inputs(state=call.outputs["state"]), torch.float32, chunked)
    call.outputs["out"].copy_(found["out"])
    call.outputs["state"].copy_(found["state"])


class FlaLauncher(_Prepared):
    """fla-core's chunk_kda, V first, from raw gates, with normalisation and gate in its kernels.

    It takes states by sequence and returns new tensors: the named states are copied out and back, and the output into
    place, which the timed launch includes (by bytes about 12 us of 593 at 8192 tokens and 12 heads).
    """

    def __init__(self, prefill: Any, call: Call) -> None:
        super().__init__()
        self._prefill, self._call = prefill, call
        self.prepare()

    def prepare(self) -> None:
        """Read lengths and slots again, for each set of lengths and of live sequences into memory of its own.

        Of its own also because fla-core remembers the chunks of a tensor of lengths by the tensor's identity.
        """
        i = self._call.inputs
        counts = i["cu_seqlens"].diff().long()
        live = (i["state_indices"] >= 0) & (counts > 0)
        rows = live.nonzero()[:, 0]
        # -1 among the indices: its tokens are computed with the others, then overwritten.
        padding = (i["state_indices"] < 0).repeat_interleave(counts)
        made = (rows, i["state_indices"][rows].long(), padding, i["cu_seqlens"].to(torch.int64, copy=True))
        key = (*counts.tolist(), *live.tolist())
        self._rows, self._slots, self._padding, ends = self._keep(key, made)
        self._ends = ends if counts.numel() > 1 else None
        self._has_padding = bool(padding.any())

    def __call__(self) -> None:
        i, call = self._call.inputs, self._call
        pool, bound = call.outputs["state"], bound_of(call)
        T, HV = i["v"].shape[:2]
        start = torch.zeros(i["state_indices"].numel(), *pool.shape[1:], dtype=pool.dtype, device=pool.device)
        has = i["has_state"][self._rows].view(-1, 1, 1, 1)
        start[self._rows] = pool[self._slots] * has
        out, last = self._prefill(
            i["q"][None],
            i["k"][None],
            i["v"][None],
            i["a"].view(1, T, HV, -1),
            i["beta"][None],
            A_log=i["a_log"],
            dt_bias=i["dt_bias"],
            initial_state=start,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            safe_gate=bound is not None,
            lower_bound=bound,
            state_v_first=True,
            cu_seqlens=self._ends,
        )
        call.outputs["out"].copy_(out[0])
        if self._has_padding:
            call.outputs["out"].masked_fill_(self._padding[:, None, None], 0.0)
        pool.index_copy_(0, self._slots, last[self._rows])


ARMS: tuple[Arm, ...] = (
    TritonArm("plain_four_launches", (Path(__file__).with_name("plain.py"),), _plain, reads_live_lengths=False),
    FunctionArm("torch_chunked", _torch),
    FlaArm("fla_chunk_kda", "fla.ops.kda", "chunk_kda", FlaLauncher),
)
