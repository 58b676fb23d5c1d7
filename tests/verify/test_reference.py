"""References: floors and limits, changed contents, and oracles that are refused."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from toy_op import LENGTHS, WIDEST, exact, make_call, make_capture, make_named_op, make_op, reference, replace, rounded

from kda_lab.errors import ParameterError, VerificationError
from kda_lab.ops.protocol import FunctionArm
from kda_lab.verify import replay
from kda_lab.verify.reference import GUARD_ROWS, ROOM_ROWS, make_reference

CPU = torch.device("cpu")


def test_rows_behind_the_live_end_hold_nan_in_every_contents() -> None:
    """Every contents ends in at least `GUARD_ROWS` NaN rows, and all have the buffers' shape."""
    ref = reference()
    for contents in (ref.original, *ref.changed):
        x, live = contents.inputs["x"], int(contents.inputs["cu"][-1])
        assert x.shape == ref.call.inputs["x"].shape
        assert x.shape[0] - live >= GUARD_ROWS
        assert torch.isnan(x[live:]).all()
        assert torch.isfinite(x[:live]).all()


def test_changed_contents_are_shorter_and_longer() -> None:
    """`shorter` holds fewer live entries than the original, `longer` more."""
    ref = reference()
    live = {c.name: int(c.inputs["cu"][-1]) for c in (ref.original, *ref.changed)}
    assert live["shorter"] < live["original"] == sum(LENGTHS) < live["longer"] <= sum(LENGTHS) + ROOM_ROWS


def test_floor_and_limits_come_from_the_emulation() -> None:
    """The floor is the emulated arithmetic against FP64, and the op's gates turn it into limits."""
    op, seen = make_op(), []
    plain = op.gates.limits
    op.gates.limits = lambda kind, floor, row_floor: (
        seen.append((kind, floor, row_floor)) or plain(kind, floor, row_floor)
    )
    ref = make_reference(op, make_capture(kind="real"), CPU)
    assert seen[0] == ("real", ref.original.floor, ref.original.floor_row_max)
    assert [kind for kind, _, _ in seen] == ["real", "synthetic", "synthetic"]
    assert 1e-4 < ref.original.floor < ref.original.floor_row_max < 4e-3


def test_a_call_at_its_widest_goes_back_to_the_original_contents() -> None:
    """Where no row can grow, `longer` is the original contents, which is longer than `shorter` was."""
    capture = make_capture()
    widest = type(capture)("wide", "synthetic", make_call((WIDEST, WIDEST)), {}, "0" * 64)
    ref = make_reference(make_op(), widest, CPU)
    assert ref.changed[1].name == "longer"
    assert ref.changed[1].inputs["x"] is ref.original.inputs["x"]


def test_shorter_contents_are_a_must() -> None:
    """An op that cannot make shorter contents is not excused."""
    op = make_op()

    def refuse(call, lengths, seed, source=None):
        raise ParameterError("toy", "cannot")

    op.cases.changed = refuse
    with pytest.raises(ParameterError, match="toy: cannot"):
        make_reference(op, make_capture(), CPU)


def test_real_captures_lend_their_rows_to_changed_contents() -> None:
    """Changed contents of a real capture are made of its own rows; those of a synthetic one are drawn."""
    op, sources = make_op(), []
    plain = op.cases.changed

    def changed(call, lengths, seed, source=None):
        sources.append(source)
        return plain(call, lengths, seed)

    op.cases.changed = changed
    make_reference(op, make_capture(kind="real"), CPU)
    make_reference(op, make_capture(kind="synthetic"), CPU)
    assert [source is not None for source in sources] == [True, True, False, False]


def test_the_pinned_limit_makes_room_for_two_roundings() -> None:
    """A sound pinned output gets a limit from its own distance to the emulation, never below the op's."""
    ref = make_reference(make_op(), make_capture(pinned=0.9965), CPU)
    assert ref.pinned_is_sound
    assert ref.limit_pinned > ref.original.limit_error


def test_an_unsound_pinned_output_widens_nothing() -> None:
    """A pinned output beyond the limit keeps the op's own limit."""
    ref = make_reference(make_op(), make_capture(pinned=1.5), CPU)
    assert not ref.pinned_is_sound
    assert ref.limit_pinned == ref.original.limit_error


def test_a_capture_without_pinned_output() -> None:
    """Without a pinned output there is nothing to be sound."""
    ref = reference()
    assert (ref.pinned, ref.pinned_fp32, ref.pinned_is_sound) == ({}, None, False)


@pytest.mark.parametrize("name", ["oracle_fp32", "oracle_fp64", "emulate"])
def test_an_oracle_that_is_not_finite_is_refused(name: str) -> None:
    """A NaN in a reference would make every error NaN: it is refused before any arm runs."""
    op = make_op()

    def broken(call):
        done = exact(call, torch.float64) if name != "emulate" else rounded(call)
        done["out"][0, 0, 0] = math.nan
        return done

    setattr(op.oracle, name, broken)
    with pytest.raises(
        VerificationError, match=rf"{name} on original contents of toy holds 1 values that are not finite"
    ):
        make_reference(op, make_capture(), CPU)


def test_an_oracle_with_other_outputs_is_refused() -> None:
    """A missing output or another shape of the oracle is refused with both."""
    op = make_op()
    op.oracle.oracle_fp64 = lambda call: {"out": exact(call, torch.float64)["out"]}
    with pytest.raises(
        VerificationError, match=r"oracle_fp64 .* has outputs \{'out': \(8, 4, 16\)\}; allowed: .*'count'"
    ):
        make_reference(op, make_capture(), CPU)


def test_a_call_without_any_output_element_is_refused() -> None:
    """Outputs that are all empty would pass every check for nothing."""
    capture = make_capture()
    empty = type(capture)("empty", "synthetic", make_call(()), {}, "0" * 64)
    with pytest.raises(VerificationError, match="not all empty"):
        make_reference(make_op(), empty, CPU)


@pytest.mark.parametrize("names", [("x",), ("x", "x"), ("x", "y", "z"), ("x", "no name")], ids=str)
def test_changes_need_two_distinct_names(names: tuple[str, ...]) -> None:
    """Check names are made of them, so that anything but two distinct words is refused."""
    op = make_op()
    op.cases.CHANGES = names
    with pytest.raises(VerificationError, match=r"verify: cases\.CHANGES is .*; allowed: two distinct names"):
        make_reference(op, make_capture(), CPU)


def test_named_changes_cannot_fall_back_on_the_original() -> None:
    """Only longer lengths may have no room: another change that cannot be made is an error."""
    op = make_named_op("x", "alpha")

    def refuse(call, name, seed, source=None):
        raise ParameterError("toy", f"no {name}")

    op.cases.changed = refuse
    with pytest.raises(ParameterError, match="toy: no x"):
        make_reference(op, make_capture(), CPU)


def test_an_exact_capture_has_limit_zero() -> None:
    """With a floor of 0 an op may demand equal values: a right arm passes, -0.0 is 0.0, one bit is rejected."""
    op = make_op()
    op.oracle.emulate = lambda call: {n: t.float() for n, t in exact(call, torch.float64).items()}
    op.oracle.oracle_fp64 = lambda call: {n: t.double() for n, t in op.oracle.emulate(call).items()}
    op.oracle.oracle_fp32 = op.oracle.emulate
    op.gates.limits = lambda kind, floor, row_floor: SimpleNamespace(error=floor, row_max=row_floor)
    capture = make_capture()
    outputs = {"out": torch.zeros(8, 4, 16), "count": torch.zeros(8)}
    capture = replace(capture, call=capture.call.with_outputs(**outputs))

    def arm(change) -> FunctionArm:
        def run(call) -> None:
            for name, value in op.oracle.emulate(call).items():
                call.outputs[name].copy_(change(value))

        return FunctionArm("exact", run)

    assert make_reference(op, capture, CPU).original.limit_error == 0.0
    assert replay(op, arm(lambda value: torch.where(value == 0, -0.0, value)), capture, "cpu").passed
    bit = replay(op, arm(lambda value: value * (1 + 2.0**-23)), capture, "cpu")
    assert {"error_fp32", "row_max", "changed_lengths_shorter", "changed_lengths_longer"} <= set(bit.failed)


@pytest.mark.parametrize(("value", "allowed"), [(-math.inf, True), (math.inf, False), (math.nan, False)])
def test_minus_infinity_is_right_where_the_op_says_so(value: float, allowed: bool) -> None:
    """An oracle with MINUS_INFINITY may hold -inf; +inf and NaN are refused there too."""
    op = make_op()
    for name in ("oracle_fp32", "oracle_fp64", "emulate"):
        plain = getattr(op.oracle, name)

        def marked(call, plain=plain):
            found = {n: t.clone() for n, t in plain(call).items()}
            found["out"][0] = value
            return found

        setattr(op.oracle, name, marked)
    with pytest.raises(VerificationError, match="values that are not finite"):
        make_reference(op, make_capture(), CPU)
    op.oracle.MINUS_INFINITY = True
    if allowed:
        assert make_reference(op, make_capture(), CPU).original.floor < 4e-3
    else:
        with pytest.raises(VerificationError, match="values that are not finite"):
            make_reference(op, make_capture(), CPU)
