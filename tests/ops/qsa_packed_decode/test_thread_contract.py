"""The thread's contract through the predicate: every rejection that the thread lists, every boundary it accepts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab import runtime
from kda_lab.contracts.facts import CallFacts, tensor_facts
from kda_lab.contracts.imagined import imagined_call
from kda_lab.contracts.predicate import check
from kda_lab.ops.qsa_packed_decode.cases import call_of
from kda_lab.ops.qsa_packed_decode.thread_contract import SCRATCH_BYTES, thread_contract

CONTRACT = thread_contract()
SCALARS = {"max_seqlen_k": 2051, "softmax_scale": None, "max_seqlen_q": 1}
Change = Callable[[CallFacts], CallFacts]


def call(scalars: dict[str, Any] | None = None, capability: tuple[int, int] = (12, 1), **axes: int) -> CallFacts:
    """Facts of a good call of four rows on a GB10, or of one with other axes or scalars."""
    extents = {"B": 4, "HQ": 24, "HKV": 2, "N": 8204, **axes}
    return imagined_call(CONTRACT, extents, {**SCALARS, **(scalars or {})}, capability)


def tensor(name: str, **fields: Any) -> Change:
    """The call with some facts of one tensor replaced."""
    return lambda f: replace(f, tensors={**f.tensors, name: replace(f.tensors[name], **fields)})


def narrow(name: str) -> Change:
    """The call with every other row of a tensor, so that its rows are no longer adjacent."""
    return lambda f: tensor(name, strides=(2 * f.tensors[name].strides[0], *f.tensors[name].strides[1:]))(f)


REJECTED: dict[str, tuple[Change | CallFacts, str]] = {
    "fp16": (tensor("q", dtype="float16"), "q.dtype"),
    "k of another dtype": (tensor("k", dtype="float16"), "k.dtype"),
    "width 128": (tensor("q", shape=(4, 24, 128), strides=(3072, 128, 1)), "q.shape[2]"),
    "q of two dimensions": (tensor("q", shape=(96, 256), strides=(256, 1)), "q.shape"),
    "no rows": (call(B=0), "q.shape[0] (B)"),
    "129 rows": (call(B=129), "q.shape[0] (B)"),
    "max_seqlen_k 0": (call({"max_seqlen_k": 0}), "max_seqlen_k"),
    "max_seqlen_k 2056": (call({"max_seqlen_k": 2056}), "max_seqlen_k"),
    "max_seqlen_q 2": (call({"max_seqlen_q": 2}), "max_seqlen_q"),
    "16 and 2 heads": (call(HQ=16), "q.shape[1] (HQ)"),
    "12 and 2 heads": (call(HQ=12), "q.shape[1] (HQ)"),
    "24 and 1 heads": (call(HKV=1), "k.shape[1] (HKV)"),
    "q with gaps": (narrow("q"), "q.strides"),
    "k with gaps": (narrow("k"), "k.strides"),
    "v with gaps": (narrow("v"), "v.strides"),
    "k transposed": (tensor("k", strides=(256, 8204 * 256, 1)), "k.strides"),
    "int64 ends": (tensor("cu_seqlens_k", dtype="int64"), "cu_seqlens_k.dtype"),
    "B ends": (tensor("cu_seqlens_k", shape=(4,)), "cu_seqlens_k.shape[0]"),
    "B+2 ends": (tensor("cu_seqlens_q", shape=(6,)), "cu_seqlens_q.shape[0]"),
    "ends on the CPU": (tensor("cu_seqlens_k", device_type="cpu", device_index=None), "cu_seqlens_k.device"),
    "k on another GPU": (tensor("k", device_index=1), "k.device"),
    "k and v of other sizes": (tensor("v", shape=(8000, 2, 256)), "v.shape[0]"),
    "SM120": (call(capability=(12, 0)), "device.capability"),
    "SM90": (call(capability=(9, 0)), "device.capability"),
    "SM100": (call(capability=(10, 0)), "device.capability"),
}
ACCEPTED: dict[str, CallFacts] = {
    "four rows": call(),
    "one row": call(B=1),
    "128 rows": call(B=128),
    "TP2": call(HQ=12, HKV=1),
    "2055 keys": call({"max_seqlen_k": 2055}),
    "one key": call({"max_seqlen_k": 1}),
    "more room than live rows": call(N=128 * 2055),
    "a scale": call({"softmax_scale": 0.0625}),
}


@pytest.mark.parametrize("case", REJECTED)
def test_every_call_that_the_thread_rejects_is_rejected(case: str) -> None:
    """One wrong fact in a good call is refused by name, with the opt-in too, for callable and dispatched shapes."""
    change, field = REJECTED[case]
    facts = change if isinstance(change, CallFacts) else change(call())
    for shapes in ("callable", "dispatched"):
        reasons = check(CONTRACT, facts, shapes, allow_compiled=True).reasons
        assert field in [reason.field for reason in reasons], [str(r) for r in reasons]


@pytest.mark.parametrize("case", ACCEPTED)
def test_boundaries_are_accepted(case: str) -> None:
    """The last value that is still inside is inside: with the opt-in and not without it, since nothing ran here."""
    facts = ACCEPTED[case]
    assert check(CONTRACT, facts, allow_compiled=True).reasons == ()
    (reason,) = check(CONTRACT, facts).reasons
    assert str(reason).startswith(
        "device.capability is 12.1; allowed: none yet. The kernel compiles for it but never ran"
    )


def test_max_seqlen_q_is_refused_in_the_words_of_the_thread() -> None:
    """A draft call with two queries a row is told what QSA requires."""
    reasons = check(CONTRACT, call({"max_seqlen_q": 2}), allow_compiled=True).reasons
    assert [str(r) for r in reasons] == ["max_seqlen_q is 2; allowed: an int in 1. QSA requires max_seqlen_q=1."]


@pytest.mark.parametrize(("capability", "ok"), [((12, 1), True), ((12, 0), False), ((9, 0), False), ((12, 2), False)])
def test_the_capability_of_the_device_decides(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], ok: bool
) -> None:
    """Real tensors whose device says it is a GPU of this capability: exactly 12.1, never a near one."""
    monkeypatch.setattr(runtime, "capability", lambda device: capability)
    made = call_of((3, 5), (24, 2), 1)
    # The CPU's tensors stand for those of the first GPU, which asks the mock.
    moved = {name: replace(tensor_facts(t), device_type="cuda", device_index=0) for name, t in made.inputs.items()}
    facts = CallFacts(moved, made.scalars, runtime.capability(torch.device("cuda", 0)))
    assert check(CONTRACT, facts, allow_compiled=True).ok is ok


def test_the_contract_says_what_the_thread_says() -> None:
    """32.25 MiB of scratch and a kilobyte of counters, one kernel a call, no silent fallback, no evidence claimed."""
    assert SCRATCH_BYTES == 33_817_600
    assert CONTRACT.state.scratch_bytes == SCRATCH_BYTES and CONTRACT.kernels_per_call == 1
    assert CONTRACT.fallback.kind == "raise"
    assert [(a.capability, a.status, a.evidence) for a in CONTRACT.architectures] == [((12, 1), "compiled", None)]
    assert SimpleNamespace(b=CONTRACT.benchmarks, h=CONTRACT.headline) == SimpleNamespace(b=(), h=())
