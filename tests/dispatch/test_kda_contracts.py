"""The contracts of KDA's candidates: strides that dispatch admits are those that the kernels take, by op and tensor."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kda_lab import kda
from kda_lab.contracts.model import Declaration
from kda_lab.dispatch.dispatcher import Dispatcher
from kda_lab.dispatch.explanation import Explanation
from kda_lab.errors import ContractError
from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.protocol import Call
from kda_lab.ops.registry import load_op

CANDIDATES = Path(__file__).parents[2] / "notebooks" / "candidates"
FILES = {path.parent.name.removeprefix("kda."): path for path in sorted(CANDIDATES.glob("kda.*/*.py"))}
FREE = {
    "packed_decode": {"mixed_qkv": 1, "a": 1, "b": 1, "state": 1},
    "fused_decode": {"mixed_qkv": 1, "conv_state": 1, "a": 1, "b": 1, "gate": 1, "state": 1},
    "verify_snapshots": {"mixed_qkv": 2, "conv_state": 1, "a": 2, "b": 2, "state": 1},
    "verify_ring": {"mixed_qkv": 2, "conv_state": 1, "a": 2, "b": 2, "state": 1},
    "fold": {"state": 2},
    "replay_decode": {"mixed_qkv": 1, "a": 1, "b": 1, "state": 1},
    "chunk_prefill": {"state": 1},
    "attn_residuals": {},
}
"""For each op the tensors that may have gaps, and how many of their leading strides are free."""
NOTHING_TO_DO = {
    "packed_decode": {"B"},
    "fused_decode": {"B"},
    "verify_snapshots": {"B", "T"},
    "verify_ring": {"B", "T"},
    "fold": {"Y", "B", "T"},
    "replay_decode": {"B"},
    "chunk_prefill": {"T"},
    "attn_residuals": {"T"},
}
"""For each op the axes of which there may be none: requests, tokens, layers (Y)."""
Explain = Callable[[Call, dict[str, torch.Tensor]], Explanation]


def declaration(op: str) -> Declaration:
    """What an op's candidate says of itself."""
    return Declaration.model_validate(candidate_arm(FILES[op]).module.CONTRACT)


def small_call(op: str) -> Call:
    """A small call that the op's candidate takes; without padding it need not launch."""
    cases = load_op(f"kda.{op}").cases
    wide = op == "chunk_prefill"
    return cases.synthesise(cases.row("wide", {"HV": 12, "lengths": (3, 2)}) if wide else cases.capture_rows()[0], 0)


@pytest.fixture
def explain(write_kernel: Callable[..., Path], gpu: Any) -> Explain:
    """What dispatch says of a call with some tensors in place of its own, as if its candidate were exported."""

    def explained(call: Call, changes: dict[str, torch.Tensor]) -> Explanation:
        spec = kda.OPS[call.op.removeprefix("kda.")]
        declared = declaration(spec.name.removeprefix("kda.")).model_dump(mode="json")
        name = declared.pop("kernel")
        folder = write_kernel(name, **declared, dispatched=declared["callable"])
        tensors = {**{n: call.outputs[n] if n in call.updated else call.inputs[n] for n in spec.tensors}, **changes}
        return Dispatcher(folder.parent, (), gpu).explain(spec, list(tensors.values()), call.scalars, {})

    return explained


def spread(tensor: torch.Tensor, free: int) -> torch.Tensor:
    """The tensor with other strides of its first `free` axes, and no gap behind them."""
    kept, inner = tensor.shape[:free], tensor.shape[free:]
    storage = tensor.new_zeros(*(extent + 1 for extent in kept), inner.numel() + 16)
    view = storage[tuple(slice(extent) for extent in kept)][..., : inner.numel()].unflatten(-1, inner)
    assert not view.is_contiguous() and view.shape == tensor.shape
    return view.copy_(tensor)


def stretched(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with a gap behind every element of its last axis."""
    return tensor.repeat_interleave(2, -1)[..., ::2]


@pytest.mark.parametrize("op", FREE)
def test_rows_and_slots_may_lie_apart(op: str, explain: Explain) -> None:
    """With every free stride another one the kernel is chosen, as it is without gaps."""
    call, name = small_call(op), declaration(op).kernel
    assert explain(call, {}).kernel == name
    held = {**call.inputs, **{n: call.outputs[n] for n in call.updated}}
    assert explain(call, {n: spread(held[n], free) for n, free in FREE[op].items()}).kernel == name


@pytest.mark.parametrize("op", FREE)
def test_a_gap_inside_is_refused_by_dispatch_and_by_the_kernel(op: str, explain: Explain) -> None:
    """Each tensor, and where it is one with free strides, the kernel by itself too: nothing is launched."""
    call = small_call(op)
    entry = getattr(candidate_arm(FILES[op]).module, declaration(op).entry)
    held = {n: call.outputs[n] if n in call.updated else call.inputs[n] for n in call.inputs}
    for name, tensor in held.items():
        loose = stretched(tensor)
        said = explain(call, {name: loose})
        assert said.kernel == ""
        assert f"{name}.strides is {tuple(loose.stride())!r}; allowed: contiguous strides" in str(said)
        if name in FREE[op]:
            with pytest.raises(ValueError, match="contiguous"):
                entry(*{**held, name: loose}.values(), **call.scalars)


@pytest.mark.parametrize("op", FREE)
def test_other_tensors_have_no_gaps_between_rows(op: str, explain: Explain) -> None:
    """Where a tensor is not listed as free, rows that lie apart are refused."""
    call = small_call(op)
    held = {n: call.outputs[n] if n in call.updated else call.inputs[n] for n in call.inputs}
    fixed = [n for n, t in held.items() if n not in FREE[op] and t.dim() > 1]
    assert all(f"{n}.strides is" in str(explain(call, {n: spread(held[n], 1)})) for n in fixed)
    assert all(explain(call, {n: spread(held[n], 1)}).kernel == "" for n in fixed)


def test_the_stride_of_an_axis_of_one_is_nobodys_concern(explain: Explain) -> None:
    """One head: whatever stride its axis has, dispatch admits it and the kernel runs."""
    cases = load_op("kda.packed_decode").cases
    call = cases.synthesise(cases.row("one", {"HV": 1, "K": 32, "V": 16, "B": 2}), 0)
    b = call.inputs["b"].contiguous()
    b = b.as_strided(b.shape, (1, 5))
    state = call.outputs["state"].copy_(call.inputs["state"])
    state = state.as_strided(state.shape, (state.stride(0), 7, *state.stride()[2:]))
    assert explain(call, {"b": b, "state": state}).kernel == "kda_packed_decode_tiled"
    given = {**call.inputs, "b": b, "state": state}
    out = candidate_arm(FILES["packed_decode"]).module.packed_decode(*given.values(), **call.scalars)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("op", FREE)
def test_an_axis_of_zero_in_every_tensor_is_refused_or_served(op: str) -> None:
    """One axis of the op, or two, absent from all tensors alike: a refusal by reason, or an answer."""
    call, shapes = small_call(op), {n: gate.shape for n, gate in declaration(op).tensors.items()}
    held = {n: call.outputs[n] if n in call.updated else call.inputs[n] for n in call.inputs}
    names = sorted({axis for name in held for axis in shapes[name] if isinstance(axis, str)})
    served = set()
    for gone in {frozenset(pair) for pair in itertools.product(names, names)}:
        zeros = [
            t.new_zeros([0 if axis in gone else n for n, axis in zip(t.shape, shapes[name], strict=True)])
            for name, t in held.items()
        ]
        try:
            getattr(kda, op)(*zeros, **call.scalars)
            served |= gone if len(gone) == 1 else set()
        except ContractError:
            pass
    assert served == NOTHING_TO_DO[op]
    kda.reset_statistics()
