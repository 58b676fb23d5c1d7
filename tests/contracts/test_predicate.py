"""The predicate on `qsa.packed_decode`: every rejection with its field and words, the boundaries, and its laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kda_lab.contracts.facts import CallFacts
from kda_lab.contracts.model import Contract, Declaration
from kda_lab.contracts.predicate import axes_of, check, show
from kda_lab.errors import ParameterError

Change = Callable[[Any, CallFacts], CallFacts]


REJECTED: dict[str, tuple[Change, str, str]] = {
    "fp16": (
        lambda c, f: c.change(f, q={"dtype": "float16"}),
        "q.dtype",
        "q.dtype is torch.float16; allowed: torch.bfloat16. Cast q.",
    ),
    "head-dim-128": (
        lambda c, f: c.change(f, q={"shape": (4, 24, 128), "strides": c.contiguous(4, 24, 128)}),
        "q.shape[2]",
        "q.shape[2] is 128; allowed: 256.",
    ),
    "q-2d": (
        lambda c, f: c.change(f, q={"shape": (96, 256), "strides": (256, 1)}),
        "q.shape",
        "q.shape is (96, 256); allowed: 3 dimensions [B, HQ, 256]. Reshape q.",
    ),
    "batch-0": (lambda c, f: c.good(B=0), "q.shape[0] (B)", "q.shape[0] (B) is 0; allowed: 1..128."),
    "batch-129": (lambda c, f: c.good(B=129), "q.shape[0] (B)", "q.shape[0] (B) is 129; allowed: 1..128."),
    "max-seqlen-k-0": (
        lambda c, f: c.scalars(f, max_seqlen_k=0),
        "max_seqlen_k",
        "max_seqlen_k is 0; allowed: an int >= 1 and <= 2055.",
    ),
    "max-seqlen-k-2056": (
        lambda c, f: c.scalars(f, max_seqlen_k=2056),
        "max_seqlen_k",
        "max_seqlen_k is 2056; allowed: an int >= 1 and <= 2055.",
    ),
    "heads-16-2": (
        lambda c, f: c.good(HQ=16),
        "q.shape[1] (HQ)",
        "q.shape[1] (HQ) is 16; allowed: 24. Callable: HQ=24",
    ),
    "heads-12-2": (lambda c, f: c.good(HQ=12), "q.shape[1] (HQ)", "q.shape[1] (HQ) is 12; allowed: 24."),
    "heads-24-1": (lambda c, f: c.good(HKV=1), "k.shape[1] (HKV)", "k.shape[1] (HKV) is 1; allowed: 2."),
    "q-slice": (
        lambda c, f: c.change(f, q={"strides": (2 * 24 * 256, 256, 1)}),
        "q.strides",
        "q.strides is (12288, 256, 1); allowed: contiguous strides for (4, 24, 256). Call q.contiguous().",
    ),
    "k-transposed": (
        lambda c, f: c.change(f, k={"strides": (256, 8204 * 256, 1)}),
        "k.strides",
        "k.strides is (256, 2100224, 1); allowed: contiguous strides for (8204, 2, 256). Call k.contiguous().",
    ),
    "v-slice": (
        lambda c, f: c.change(f, v={"strides": (1024, 256, 1)}),
        "v.strides",
        "v.strides is (1024, 256, 1); allowed: contiguous strides for (8204, 2, 256). Call v.contiguous().",
    ),
    "cu-int64": (
        lambda c, f: c.change(f, cu_seqlens_k={"dtype": "int64"}),
        "cu_seqlens_k.dtype",
        "cu_seqlens_k.dtype is torch.int64; allowed: torch.int32. Cast cu_seqlens_k.",
    ),
    "cu-numel-B": (
        lambda c, f: c.change(f, cu_seqlens_k={"shape": (4,)}),
        "cu_seqlens_k.shape[0]",
        "cu_seqlens_k.shape[0] is 4; allowed: 5, which is B+1 with B=4 from q.shape[0].",
    ),
    "cu-numel-B+2": (
        lambda c, f: c.change(f, cu_seqlens_q={"shape": (6,)}),
        "cu_seqlens_q.shape[0]",
        "cu_seqlens_q.shape[0] is 6; allowed: 5, which is B+1 with B=4 from q.shape[0].",
    ),
    "cu-on-cpu": (
        lambda c, f: c.change(f, cu_seqlens_k={"device_type": "cpu", "device_index": None}),
        "cu_seqlens_k.device",
        "cu_seqlens_k.device is 'cpu'; allowed: a cuda device. Move cu_seqlens_k.",
    ),
    "k-other-device": (
        lambda c, f: c.change(f, k={"device_index": 1}),
        "k.device",
        "k.device is 'cuda:1'; allowed: 'cuda:0', the device of q. Put all tensors on one device.",
    ),
    "kv-shapes-differ": (
        lambda c, f: c.change(f, v={"shape": (8000, 2, 256)}),
        "v.shape[0]",
        "v.shape[0] is 8000; allowed: 8204, which is N with N=8204 from k.shape[0].",
    ),
    "k-dtype": (
        lambda c, f: c.change(f, k={"dtype": "float16"}),
        "k.dtype",
        "k.dtype is torch.float16; allowed: torch.bfloat16. Cast k.",
    ),
    "max-seqlen-q-2": (
        lambda c, f: c.scalars(f, max_seqlen_q=2),
        "max_seqlen_q",
        "max_seqlen_q is 2; allowed: an int in 1. QSA requires max_seqlen_q=1.",
    ),
    "max-seqlen-q-true": (
        lambda c, f: c.scalars(f, max_seqlen_q=True),
        "max_seqlen_q",
        "max_seqlen_q is True; allowed: an int in 1.",
    ),
    "max-seqlen-k-missing": (
        lambda c, f: c.scalars(f, max_seqlen_k=None),
        "max_seqlen_k",
        "max_seqlen_k is None; allowed: an int >= 1 and <= 2055.",
    ),
    "max-seqlen-k-float": (
        lambda c, f: c.scalars(f, max_seqlen_k=2051.0),
        "max_seqlen_k",
        "max_seqlen_k is 2051.0; allowed: an int >= 1 and <= 2055.",
    ),
    "scale-nan": (
        lambda c, f: c.scalars(f, softmax_scale=float("nan")),
        "softmax_scale",
        "softmax_scale is nan; allowed: a finite FP32 value >= 0 or None.",
    ),
    "scale-infinite": (
        lambda c, f: c.scalars(f, softmax_scale=float("inf")),
        "softmax_scale",
        "softmax_scale is inf; allowed: a finite FP32 value >= 0 or None.",
    ),
    "scalar-unknown": (
        lambda c, f: c.scalars(f, window=7),
        "window",
        "window is 7; allowed: one of max_seqlen_k, softmax_scale, max_seqlen_q. The contract has no such scalar",
    ),
    "q-unaligned": (
        lambda c, f: c.change(f, q={"alignment": 2}),
        "q.alignment",
        "q.alignment is 2 bytes; allowed: a multiple of 16 bytes. Clone q, or slice it at an aligned offset.",
    ),
    "q-missing": (
        lambda c, f: replace(f, tensors={n: t for n, t in f.tensors.items() if n != "q"}),
        "q",
        "q is None; allowed: a torch.Tensor.",
    ),
    "q-a-list": (
        lambda c, f: replace(f, tensors={n: t for n, t in f.tensors.items() if n != "q"}, foreign={"q": "a list"}),
        "q",
        "q is a list; allowed: a strided torch.Tensor.",
    ),
    "tensor-unknown": (
        lambda c, f: replace(f, tensors={**f.tensors, "sink": c.tensor("float32", 24)}),
        "sink",
        "sink is given; allowed: one of q, k, v, cu_seqlens_q, cu_seqlens_k, out. The contract has no such tensor",
    ),
    "out-shape": (
        lambda c, f: replace(f, tensors={**f.tensors, "out": c.tensor("bfloat16", 3, 24, 256)}),
        "out.shape[0]",
        "out.shape[0] is 3; allowed: 4, which is B with B=4 from q.shape[0].",
    ),
    "capability-9.0": (
        lambda c, f: replace(f, capability=(9, 0)),
        "device.capability",
        "device.capability is 9.0; allowed: exactly 12.1. The kernel was neither run nor compiled for it; a near "
        "capability is not the same one.",
    ),
    "capability-12.0": (
        lambda c, f: replace(f, capability=(12, 0)),
        "device.capability",
        "device.capability is 12.0; allowed: exactly 12.1. The kernel compiles for it but never ran there. Set "
        "KDA_LAB_ALLOW_COMPILED=1",
    ),
    "capability-10.0": (
        lambda c, f: replace(f, capability=(10, 0)),
        "device.capability",
        "device.capability is 10.0; allowed: exactly 12.1. The kernel must not run there. Its shared memory is laid "
        "out differently.",
    ),
    "capability-unknown": (
        lambda c, f: replace(f, capability=None),
        "device.capability",
        "device.capability is None; allowed: exactly 12.1.",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_rejection_names_field_given_allowed(case: str, contract: Contract, calls: Any) -> None:
    """Each call outside the contract is refused by a reason with the field, the value given and the values allowed."""
    change, field, words = REJECTED[case]
    decision = check(contract, change(calls, calls.good()))
    assert not decision.ok
    assert not decision
    texts = [str(reason) for reason in decision.reasons if reason.field == field]
    assert any(text.startswith(words) for text in texts), [str(r) for r in decision.reasons]


# The others are several faults in one: two rules broken, or axes lost with the tensor that shows them.
SINGLE = [c for c in REJECTED if c not in ("heads-16-2", "q-2d", "cu-on-cpu", "q-missing", "q-a-list")]


@pytest.mark.parametrize("case", SINGLE)
def test_one_wrong_field_gives_one_reason(case: str, contract: Contract, calls: Any) -> None:
    """A single wrong field is reported once, without follow-up reasons about fields that are right."""
    change, field, _ = REJECTED[case]
    fields = [reason.field for reason in check(contract, change(calls, calls.good())).reasons]
    assert fields == [field]


ACCEPTED: dict[str, Change] = {
    "tp1": lambda c, f: f,
    "tp2": lambda c, f: c.good(HQ=12, HKV=1),
    "batch-1": lambda c, f: c.good(B=1),
    "batch-128": lambda c, f: c.good(B=128),
    "max-seqlen-k-1": lambda c, f: c.scalars(f, max_seqlen_k=1),
    "max-seqlen-k-2055": lambda c, f: c.scalars(f, max_seqlen_k=2055),
    "capacity-above-live-rows": lambda c, f: c.good(rows=100_000),
    "no-kv-rows": lambda c, f: c.good(rows=0),
    "scale-given": lambda c, f: c.scalars(f, softmax_scale=0.0625),
    "scale-int": lambda c, f: c.scalars(f, softmax_scale=1),
    "out-given": lambda c, f: replace(f, tensors={**f.tensors, "out": c.tensor("bfloat16", 4, 24, 256)}),
    "all-on-cuda-1": lambda c, f: c.change(f, **{name: {"device_index": 1} for name in f.tensors}),
    "stride-of-an-axis-of-one": lambda c, f: c.change(c.good(B=1), q={"strides": (7, 256, 1)}),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_boundary_is_accepted(case: str, contract: Contract, calls: Any) -> None:
    """Calls on the inner side of each boundary are accepted without a reason."""
    decision = check(contract, ACCEPTED[case](calls, calls.good()))
    assert decision.reasons == ()
    assert decision


def test_free_leading_strides_are_taken_and_others_refused(contract: Contract, calls: Any) -> None:
    """Rows of a wider tensor pass a gate that frees the first stride; a step between columns does not."""
    gates = {**contract.tensors, "q": contract.tensors["q"].model_copy(update={"free_leading": 1})}
    freed = contract.model_copy(update={"tensors": gates})
    assert check(freed, calls.change(calls.good(), q={"strides": (2 * 24 * 256, 256, 1)}))
    (reason,) = check(freed, calls.change(calls.good(), q={"strides": (24 * 512, 512, 2)})).reasons
    assert str(reason) == (
        "q.strides is (12288, 512, 2); allowed: contiguous strides for the last 2 dimensions of (4, 24, 256). "
        "Call q.contiguous()."
    )


def test_all_reasons_come_at_once(contract: Contract, calls: Any) -> None:
    """A call with five faults gets all five reasons, not only the first."""
    facts = calls.change(calls.good(), q={"dtype": "float16"}, k={"alignment": 4}, cu_seqlens_q={"dtype": "int64"})
    facts = replace(calls.scalars(facts, max_seqlen_k=0), capability=(9, 0))
    fields = {reason.field for reason in check(contract, facts).reasons}
    assert fields == {"q.dtype", "k.alignment", "cu_seqlens_q.dtype", "max_seqlen_k", "device.capability"}


def test_cpu_call_blames_devices_not_capability(contract: Contract, calls: Any) -> None:
    """Where no tensor is on a GPU each tensor is named, and a capability that does not exist is not."""
    facts = calls.good()
    facts = replace(
        calls.change(facts, **{n: {"device_type": "cpu", "device_index": None} for n in facts.tensors}), capability=None
    )
    fields = [reason.field for reason in check(contract, facts).reasons]
    assert fields == ["q.device", "k.device", "v.device", "cu_seqlens_q.device", "cu_seqlens_k.device"]


def test_dispatched_is_narrower_than_callable(contract: Contract, calls: Any) -> None:
    """A call outside the dispatched shapes is callable, and the refusal says how to force the kernel."""
    facts = calls.good(B=17)
    assert check(contract, facts, "callable")
    (reason,) = check(contract, facts, "dispatched").reasons
    assert str(reason) == (
        "q.shape[0] (B) is 17; allowed: 1..16. Dispatched: HQ=24 HKV=2 B=1..16. "
        "Force it with kernel='grouped' for the wider callable set."
    )


def test_nothing_dispatched_refuses_everything(make_contract: Callable[..., Contract], calls: Any) -> None:
    """An empty set of dispatched shapes serves no call."""
    (reason,) = check(make_contract(dispatched=[]), calls.good(), "dispatched").reasons
    assert str(reason).startswith(
        "shapes is {'B': 4, 'HQ': 24, 'N': 8204, 'HKV': 2}; allowed: none. Dispatched: no shapes."
    )


def test_compiled_needs_the_opt_in_and_refused_stays_refused(contract: Contract, calls: Any) -> None:
    """The opt-in admits a compiled architecture, never one that is refused or unknown."""
    on = {
        c: bool(check(contract, replace(calls.good(), capability=c), allow_compiled=True))
        for c in [(12, 0), (12, 1), (10, 0), (9, 0)]
    }
    assert on == {(12, 0): True, (12, 1): True, (10, 0): False, (9, 0): False}
    (reason,) = check(contract, replace(calls.good(), capability=(9, 0)), allow_compiled=True).reasons
    assert reason.allowed == "exactly 12.1 or 12.0"


def test_no_architecture_yet_is_said(make_contract: Callable[..., Contract], calls: Any) -> None:
    """A contract without a qualified architecture refuses every device and says that there is none."""
    (reason,) = check(make_contract(architectures=[]), calls.good()).reasons
    assert str(reason).startswith("device.capability is 12.1; allowed: none yet.")


def test_a_declaration_is_judged_without_capability(contract_values: dict[str, Any], calls: Any) -> None:
    """A candidate's declaration names no architecture, so any capability passes; its shapes still count."""
    fields = {name: value for name, value in contract_values.items() if name in Declaration.model_fields}
    declaration = Declaration.model_validate(fields)
    assert check(declaration, replace(calls.good(), capability=(9, 0)))
    assert not check(declaration, calls.good(B=129))
    with pytest.raises(
        ParameterError, match=r"shapes is 'dispatched'; allowed: 'callable' \(a declaration has no other\)"
    ):
        check(declaration, calls.good(), "dispatched")


def test_unknown_shape_set_is_refused(contract: Contract, calls: Any) -> None:
    """A word that names no set of shapes is an error, not an empty set."""
    with pytest.raises(ParameterError, match="shapes is 'all'; allowed: 'callable', 'dispatched'"):
        check(contract, calls.good(), "all")  # type: ignore[arg-type]


def test_tensors_on_two_devices_are_fine_when_the_contract_says_so(
    make_contract: Callable[..., Contract], calls: Any
) -> None:
    """With `same_device` false only the kind of device is judged."""
    facts = calls.change(calls.good(), k={"device_index": 1})
    assert check(make_contract(same_device=False), facts)


def test_an_axis_that_no_tensor_shows_fails_closed(
    make_contract: Callable[..., Contract], contract_values: dict[str, Any], calls: Any
) -> None:
    """A rule about an axis of an optional tensor refuses the call when that tensor is absent."""
    tensors = {**contract_values["tensors"], "bias": {"dtypes": ["float32"], "shape": ["BIAS"], "optional": True}}
    ruled = make_contract(tensors=tensors, callable=[{"axes": {"BIAS": 24}}], dispatched=[])
    (reason,) = check(ruled, calls.good()).reasons
    assert str(reason) == "BIAS is unknown; allowed: 24. No tensor of the call shows the axis BIAS."
    facts = calls.good()
    assert check(ruled, replace(facts, tensors={**facts.tensors, "bias": calls.tensor("float32", 24)}))


def test_axes_of_reads_the_contracts_names(contract: Contract, calls: Any) -> None:
    """Axis extents come back under the names of the contract."""
    assert axes_of(contract, calls.good(B=3, rows=77)) == {"B": 3, "HQ": 24, "N": 77, "HKV": 2}


def test_show_is_short_and_never_asks_a_tensor() -> None:
    """Long scalars are cut, and foreign values are named by their type, so that no device is read."""

    class Device:
        def __repr__(self) -> str:
            raise RuntimeError("a repr would have read the device")

    assert show(Device()) == "a Device"
    assert show(10**400) == "an int of 1329 bits"
    assert show(-(2**300)) == "an int of 301 bits"
    assert show("x" * 200) == "'" + "x" * 79 + "…"
    assert show(None) == "None"


def test_a_forced_kernel_may_run_in_the_mended_interpreter(contract: Contract, calls: Any) -> None:
    """CPU tensors in a proved interpreter pass the callable shapes, and never the dispatched ones."""
    facts = calls.good()
    cpu = {n: replace(t, device_type="cpu", device_index=None) for n, t in facts.tensors.items()}
    interpreted = replace(facts, tensors=cpu, capability=None, interpreted=True)
    assert check(contract, interpreted, "callable").ok
    assert any(r.field.endswith(".device") for r in check(contract, interpreted, "dispatched").reasons)
    plain = replace(interpreted, interpreted=False)
    assert any(r.field.endswith(".device") for r in check(contract, plain, "callable").reasons)


@pytest.mark.parametrize("value", [3.4028234663852889e38, -1e39, 1e300, 10**39, -(10**400)])
def test_a_float_beyond_fp32_is_refused(contract: Contract, calls: Any, value: float) -> None:
    """A scale that FP32 rounds to infinity is refused; the largest FP32 value is not."""
    assert check(contract, calls.scalars(calls.good(), softmax_scale=3.4028234663852886e38))
    (reason,) = check(contract, calls.scalars(calls.good(), softmax_scale=value)).reasons
    assert (reason.field, reason.allowed) == ("softmax_scale", "a finite FP32 value >= 0 or None")
