"""The candidate that seldom writes its state: right on capture rows, packed decode with one place, long runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.protocol import Call, Row
from kda_lab.ops.registry import load_op
from kda_lab.verify import replay
from kda_lab.verify.launching import one_thread
from kda_lab.verify.metrics import rel_l2
from kda_lab.verify.observation import Settings

CANDIDATES = Path(__file__).parents[3] / "notebooks" / "candidates"
REPLAY = candidate_arm(CANDIDATES / "kda.replay_decode" / "checkpoint.py")
PACKED = CANDIDATES / "kda.packed_decode" / "tiled.py"
OP = load_op("kda.replay_decode")
ROWS = OP.cases.capture_rows()
TOKEN = ("mixed_qkv", "a", "b", "a_log", "dt_bias")


def fewer(row: Row, requests: int) -> Row:
    """The row with two value heads and so many requests at most: the interpreter runs one program at a time."""
    axes = row.parameters
    small = {"B": min(axes["B"], requests), "HV": 2, "H": 2 * axes["H"] // axes["HV"]}
    return replace(row, parameters={**axes, **small})


def judged(arm: object, row: Row, role: str) -> tuple[str, ...]:
    """Checks that an arm fails on a row."""
    capture = SimpleNamespace(
        name="replay", kind="synthetic", call=OP.cases.synthesise(row, 0), pinned={}, sha256="0" * 64
    )
    with one_thread(torch.device("cpu")):
        return replay(OP, arm, capture, "cpu", Settings(role=role)).failed


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_it_passes_every_check_of_the_referee(row: Row) -> None:
    """Both flushes, both kinds of keys, forced flushes, one place, padding, free strides, untouched places."""
    assert judged(REPLAY, fewer(row, 3), "candidate") == ()


@pytest.mark.parametrize("arm", OP.baselines.ARMS, ids=lambda arm: arm.name)
@pytest.mark.parametrize("row", ROWS[1:3], ids=lambda row: row.label)
def test_baselines_are_right(arm: object, row: Row) -> None:
    """The kernel that makes the state every time, and torch."""
    assert judged(arm, fewer(row, 3), "baseline") == ()


def with_bound(call: Call, bound: float | None) -> Call:
    """The call with another gate."""
    call.scalars["lower_bound"] = bound
    return call


def one_place_is_packed_decode(device: str, batch: int, widths: tuple[int, int], bound: float | None) -> None:
    """Run both on one call; output and state must have the same bits."""
    axes = {"HV": 2, "H": 1, "K": widths[0], "V": widths[1], "B": batch, "L": 1, "wide": False}
    row = Row(OP.name, "one", {**ROWS[-1].parameters, **axes})
    call = with_bound(OP.cases.synthesise(row, 3, "cpu").to(device), bound)
    call.restore()
    REPLAY.bind([call])[0]()
    i, state = call.inputs, call.inputs["state"].clone()
    out = candidate_arm(PACKED).module.packed_decode(
        *(i[name] for name in TOKEN), state, i["state_indices"], lower_bound=bound
    )
    assert torch.equal(out, call.outputs["out"])
    assert torch.equal(state, call.outputs["state"])


@pytest.mark.parametrize("bound", [-5.0, None], ids=["safe", "softplus"])
@pytest.mark.parametrize("widths", [(32, 48), (128, 16)], ids=["narrow", "128"])
def test_a_ring_of_one_place_is_packed_decode_bit_for_bit(widths: tuple[int, int], bound: float | None) -> None:
    """Both kernels multiply and add in one order."""
    one_place_is_packed_decode("cpu", 3, widths, bound)


@pytest.mark.gpu
@pytest.mark.parametrize("bound", [-5.0, None], ids=["safe", "softplus"])
def test_a_ring_of_one_place_is_packed_decode_on_the_gpu(bound: float | None) -> None:
    """The same as compiled code, where contractions and exchanges could differ."""
    one_place_is_packed_decode("cuda", 32, (128, 128), bound)


def run(row: Row, tokens: int, forced: tuple[int, ...] = ()) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs of a candidate over some tokens from empty rings, and those of the recurrence in FP64."""
    first = OP.cases.synthesise(row, 0)
    i = {n: t.clone() for n, t in first.inputs.items()}
    i["write_positions"].zero_()
    state, outs, rights = i["state"].double(), [], []
    length = i["ring_d"].shape[2]
    for t in range(tokens):
        token = OP.cases.synthesise(row, 100 + t).inputs
        call = first.with_inputs(**{**i, **{n: token[n] for n in TOKEN[:3]}})
        call.scalars["force_flush"] = t in forced
        call.restore()
        REPLAY.bind([call])[0]()
        outs.append(call.outputs["out"].clone())
        # The recurrence is a ring that is flushed every time.
        plain = call.with_inputs(state=state, write_positions=torch.zeros_like(i["write_positions"]))
        plain = Call(OP.name, plain.inputs, {**call.scalars, "force_flush": True}, call.outputs, "", call.facts)
        exact = OP.oracle.oracle_fp64(plain)
        state = exact["state"]
        rights.append(exact["out"])
        for slot, flush, at in OP.oracle.touched(call):
            i["write_positions"][slot] = at + 1 if at >= 0 else 0 if flush else i["write_positions"][slot]
        i |= {n: call.outputs[n].clone() for n in ("state", "ring_d", "ring_k", "ring_g")}
        assert int(i["write_positions"].max()) < max(2, length)
    return torch.stack(outs), torch.stack(rights)


@pytest.mark.parametrize("row", ROWS[:4], ids=lambda row: row.label)
def test_long_runs_follow_the_recurrence(row: Row) -> None:
    """Tokens past a flush, with a forced one: records in BF16 cost a few 1e-3, and nothing drifts away."""
    outs, rights = run(fewer(row, 2), row.parameters["L"] + 3, forced=(2,))
    errors = [rel_l2(o, r) for o, r in zip(outs, rights, strict=True)]
    assert max(errors) < 1e-2


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"L": 1}, "L is 1 with predecayed keys; allowed: 2 to 16"),
        ({"L": 17, "lower_bound": -2.5}, "L is 17 with predecayed keys"),
        ({"L": 16, "lower_bound": None}, r"lower_bound is None with L 16; allowed: \(L - 1\)·\|lower_bound\| <= 80"),
        ({"L": 4, "HV": 4}, "HV is 4 and H 2 with predecayed keys; allowed: HV equal to H"),
    ],
    ids=["one", "long", "softplus", "grouped"],
)
def test_predecayed_keys_are_refused_where_they_could_overflow(axes: dict, words: str) -> None:
    """Kernel and oracle refuse alike; nothing is launched."""
    call = OP.cases.synthesise(Row(OP.name, "refused", {**ROWS[2].parameters, "predecayed": False, **axes}), 0)
    call.scalars["predecayed"] = True
    with pytest.raises(ValueError, match=words):
        REPLAY.bind([call])[0]()
    with pytest.raises(ParameterError):
        OP.oracle.oracle_fp32(call)


def test_a_narrow_state_is_refused() -> None:
    """A checkpoint is FP32."""
    call = OP.cases.synthesise(ROWS[2], 0)
    narrow = call.with_outputs(state=call.outputs["state"].bfloat16())
    with pytest.raises(ValueError, match="state and ring_g must be float32"):
        REPLAY.bind([narrow])[0]()
