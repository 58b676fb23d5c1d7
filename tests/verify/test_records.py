"""Records: the fields that reports and exports read, in strict JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from toy_op import MUTANTS, BoundArm, judge, make_capture, make_op, reference, write

from kda_lab.ops.protocol import FunctionArm
from kda_lab.verify import gate_power, replay, stress
from kda_lab.verify.records import number, power_record, refused_record, stress_record, to_record


def strict(record: dict) -> dict:
    """The record through JSON that refuses NaN."""
    return json.loads(json.dumps(record, allow_nan=False))


def test_replay_record() -> None:
    """A replay record holds the documented fields and survives strict JSON unchanged."""
    done = judge(FunctionArm("right", write, source_sha256="ab"), capture=make_capture(pinned=1.0))
    record = to_record(done, "candidate", {"git": "x"})
    assert strict(record) == record
    assert {"kind", "op", "capture", "capture_sha256", "capture_kind", "axes", "arm", "role", "device"} <= set(record)
    assert (record["kind"], record["role"], record["source_sha256"], record["passed"]) == (
        "replay",
        "candidate",
        "ab",
        True,
    )
    assert set(record["checks"][0]) == {"name", "passed", "value", "limit", "detail"}
    assert record["errors"]["fp32"] == done.errors["fp32"]
    assert record["provenance"] == {"git": "x"}


def test_records_of_an_op_with_dtypes_say_their_values() -> None:
    """`scalars` holds the dtype scalars of the capture, and no others; an op without such has no such field."""
    op, capture = make_op(), make_capture()
    assert "scalars" not in to_record(replay(op, FunctionArm("right", write), capture, "cpu"), "candidate", {})
    op.spec = replace(op.spec, scalars=("scale", "out_dtype"), dtypes=("out_dtype",))
    call = replace(capture.call, scalars={**capture.call.scalars, "out_dtype": "bfloat16"})
    done = replay(op, FunctionArm("right", write), replace(capture, call=call), "cpu")
    record = to_record(done, "candidate", {})
    assert record["scalars"] == {"out_dtype": "bfloat16"}
    assert strict(record) == record


def test_values_that_are_not_finite_become_null_with_words() -> None:
    """NaN in a check or an error is null in the record, and the detail says what it was."""

    def broken(call) -> None:
        write(call)
        call.outputs["out"][1, 1, 1] = math.nan

    record = strict(to_record(judge(FunctionArm("nan", broken)), "candidate", {}))
    check = next(c for c in record["checks"] if c["name"] == "error_fp32")
    assert (check["passed"], check["value"], check["detail"]) == (False, None, "value is nan")
    assert record["errors"]["fp32"] is None
    assert record["passed"] is False


@pytest.mark.parametrize("value, expected", [(1.5, 1.5), (math.nan, None), (math.inf, None), (None, None)], ids=str)
def test_number(value: float | None, expected: float | None) -> None:
    """Only finite numbers reach JSON."""
    assert number(value) == expected


def test_power_record() -> None:
    """A power record counts what applies, and lists every mutant and the control."""
    record = power_record(gate_power(make_op(), make_capture(), "cpu"), {})
    assert strict(record) == record
    assert (record["kind"], record["killed"], record["total"]) == ("power", 3, 3)
    assert [m["name"] for m in record["mutants"]] == [m.name for m in MUTANTS]
    assert set(record["mutants"][0]) == {"name", "killed", "by", "applies", "why_not"}
    assert record["control"] == {"arm": "emulated", "passed": True, "failed": []}


def test_stress_record() -> None:
    """A stress record holds launches, differing ones and state."""
    record = stress_record("toy.mean", stress(FunctionArm("right", write), reference(), 3), "candidate", {})
    assert strict(record) == record
    assert (record["kind"], record["launches"], record["differing"], record["passed"]) == ("stress", 3, 0, True)


def test_refused_record() -> None:
    """A refused record keeps the arm's own sentence."""
    arm = BoundArm("gpu_only", lambda call: print, reason="unavailable, because there is no GPU")
    record = refused_record(make_capture(), arm, "peer", arm.reason, {})
    assert strict(record) == record
    assert (record["kind"], record["arm"], record["role"], record["reason"]) == (
        "refused",
        "gpu_only",
        "peer",
        arm.reason,
    )


def test_a_stand_in_is_recorded() -> None:
    """A twin that was judged in the kernel's place stands in the record; a kernel that ran itself adds nothing."""
    done = judge(FunctionArm("right", write))
    assert to_record(done, "candidate", {}, "torch twin")["stand_in"] == "torch twin"
    assert "stand_in" not in to_record(done, "candidate", {})
