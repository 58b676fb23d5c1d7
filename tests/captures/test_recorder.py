"""Tapping a live program: what it records, what it leaves alone, and how it is taken out again."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kda_lab import nvfp4
from kda_lab.captures.recorder import About, install_from_environment, record
from kda_lab.captures.store import CaptureSet
from kda_lab.errors import CaptureError, ParameterError
from kda_lab.ops.arms import launcher
from kda_lab.ops.registry import load_op


class Layer:
    """Holds methods to be tapped."""

    __slots__ = ()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @classmethod
    def name_of(cls, x: torch.Tensor) -> tuple[str, torch.Tensor]:
        return cls.__name__, x


class Derived(Layer):
    """Inherits everything."""


class Slotted(Layer):
    """Takes no new attribute."""

    __slots__ = ()


def scale_rows(x: torch.Tensor, scale: float = 2.0, config: object = None) -> torch.Tensor:
    """The host's function."""
    return x * scale


def overwrite(x: torch.Tensor, out: torch.Tensor) -> None:
    """Writes its input after reading it, and an output argument."""
    out.copy_(x + 1)
    x.zero_()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An importable module `host_program`."""
    made = ModuleType("host_program")
    made.Layer, made.Derived, made.scale_rows, made.overwrite = Layer, Derived, scale_rows, overwrite  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "host_program", made)
    return made


Tapping = Callable[..., Any]


@pytest.fixture
def tapping(tmp_path: Path) -> Tapping:
    """`record` with the folder and op of these tests."""
    return lambda name, **named: record(f"host_program.{name}", op="test.op", directory=tmp_path / "live", **named)


def test_a_recorded_call_opens_as_a_set(host: ModuleType, tapping: Tapping) -> None:
    """Inputs, scalars with defaults, the result as pinned output, and what was left out."""
    x = torch.arange(6.0).view(2, 3).t()
    about = About(model="toy", revision="7", licence="CC0-1.0")
    with tapping("scale_rows", about=about) as tap:
        result = host.scale_rows(x, config=object())
    captures = CaptureSet.open(tap.path)
    capture = captures.load("r0-000000")
    assert captures.verify() == []
    assert torch.equal(capture.call.inputs["x"], x) and capture.call.inputs["x"].stride() == x.stride()
    assert capture.call.scalars == {"scale": 2.0}
    assert torch.equal(capture.pinned["out"], result)
    assert (capture.kind, capture.entry.source.model, capture.entry.licence) == ("real", "toy", "CC0-1.0")
    assert "config: object is neither" in capture.entry.folded
    assert tap.statistics.refused_arguments == 1 and tap.statistics.recorded == 1


def test_the_call_gets_its_own_arguments_and_its_own_result(host: ModuleType, tapping: Tapping) -> None:
    """Nothing is copied into or out of the host's call."""
    seen = []
    host.identity = lambda x: seen.append(x) or x  # type: ignore[attr-defined]
    x = torch.arange(3.0)
    with tapping("identity"):
        assert host.identity(x) is x
    assert seen[0] is x


def test_inputs_are_those_before_the_call_and_outputs_those_after_it(host: ModuleType, tapping: Tapping) -> None:
    """A callee that overwrites its input does not spoil the record; an `out` argument is an output."""
    x, out = torch.arange(4.0), torch.zeros(4)
    with tapping("overwrite") as tap:
        host.overwrite(x, out)
    capture = CaptureSet.open(tap.path).load("r0-000000")
    assert torch.equal(capture.call.inputs["x"], torch.arange(4.0))
    assert list(capture.call.inputs) == ["x"] and list(capture.call.outputs) == ["out"]
    assert torch.equal(capture.pinned["out"], torch.arange(4.0) + 1)
    assert x.abs().sum() == 0 and torch.equal(out, torch.arange(4.0) + 1)


def test_the_original_is_put_back(host: ModuleType, tapping: Tapping) -> None:
    """After the block, and after an error in it, the module is as it was."""
    with tapping("scale_rows"):
        assert host.scale_rows is not scale_rows
        assert host.scale_rows.__name__ == "scale_rows"
    assert host.scale_rows is scale_rows
    with pytest.raises(KeyError, match="host"), tapping("scale_rows"):
        raise KeyError("host")
    assert host.scale_rows is scale_rows


def test_a_copy_imported_elsewhere_is_not_tapped(host: ModuleType, tapping: Tapping) -> None:
    """Only the attribute is replaced, as documented."""
    before = host.scale_rows
    with tapping("scale_rows") as tap:
        before(torch.zeros(1))
    assert tap.statistics.seen == 0


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("Layer.forward", lambda: Layer().forward(torch.ones(2))),
        ("Layer.double", lambda: Layer.double(torch.ones(2))),
        ("Layer.name_of", lambda: Layer.name_of(torch.ones(2))),
        ("Derived.forward", lambda: Derived().forward(torch.ones(2))),
        ("Derived.double", lambda: Derived().double(torch.ones(2))),
        ("Derived.name_of", lambda: Derived.name_of(torch.ones(2))),
    ],
)
def test_methods_of_every_kind_are_tapped_and_restored(
    host: ModuleType, tapping: Tapping, name: str, call: Callable[[], Any]
) -> None:
    """Own and inherited methods, static and class methods keep their behaviour."""
    before, expected = {n: dict(vars(c)) for n, c in (("Layer", Layer), ("Derived", Derived))}, call()
    with tapping(name) as tap:
        assert str(call()) == str(expected)
    assert tap.statistics.recorded == 1
    assert list(CaptureSet.open(tap.path).load("r0-000000").call.inputs) == ["x"]
    assert {n: dict(vars(c)) for n, c in (("Layer", Layer), ("Derived", Derived))} == before


@pytest.mark.parametrize("name", ["forward", "double", "name_of", "own"])
def test_methods_of_an_object_are_tapped_and_restored(host: ModuleType, tapping: Tapping, name: str) -> None:
    """A module-level object keeps its behaviour under the tap, and is as it was after it."""
    host.item = Derived()  # type: ignore[attr-defined]
    host.item.own = Layer().forward
    before, expected = dict(vars(host.item)), getattr(host.item, name)(torch.ones(2))
    with tapping(f"item.{name}") as tap:
        assert str(getattr(host.item, name)(torch.ones(2))) == str(expected)
    assert (tap.statistics.recorded, tap.statistics.failed) == (1, 0)
    assert list(CaptureSet.open(tap.path).load("r0-000000").call.inputs) == ["x"]
    assert vars(host.item) == before


def test_an_attribute_that_cannot_be_replaced_is_refused(host: ModuleType, tapping: Tapping) -> None:
    """An object with slots takes no wrapper."""
    host.item = Slotted()  # type: ignore[attr-defined]
    with pytest.raises(ParameterError, match=r"target is host_program.item.forward \(.*an attribute that can be rep"):
        tapping("item.forward").__enter__()


def test_a_folder_that_is_recorded_into_is_refused_at_entry(host: ModuleType, tapping: Tapping) -> None:
    """Nothing is tapped then; afterwards the folder is free."""
    with tapping("scale_rows") as tap:
        host.scale_rows(torch.ones(2))
        with pytest.raises(CaptureError, match="is recording into; allowed: a folder with one writer"):
            tapping("overwrite").__enter__()
        assert host.overwrite is overwrite
    with tapping("scale_rows") as again:
        host.scale_rows(torch.zeros(2))
    assert (tap.statistics.recorded, again.statistics.recorded) == (1, 1)


def test_a_second_tap_that_began_before_the_first_wrote_only_counts(
    host: ModuleType, tapping: Tapping, caplog: pytest.LogCaptureFixture
) -> None:
    """Its host goes on, its failure is counted and logged, and the first tap's set stays whole."""
    with tapping("scale_rows") as one, tapping("overwrite") as two:
        for value in range(2):
            host.scale_rows(torch.full((2,), float(value)))
            host.overwrite(torch.ones(2), torch.ones(2))
    assert (one.statistics.recorded, one.statistics.failed) == (2, 0)
    assert (two.statistics.recorded, two.statistics.failed) == (0, 2)
    assert "a folder with one writer" in two.statistics.last_failure and "is recording into" in caplog.text
    captures = CaptureSet.open(one.path)
    assert len(captures.names()) == 2 and captures.verify() == []


def test_a_call_that_outlasts_the_recording_is_kept_and_leaves_the_folder_free(
    host: ModuleType, tapping: Tapping
) -> None:
    """The block may end while another thread is inside the target."""
    context = tapping("ends")
    host.ends = lambda x: context.__exit__(None, None, None) or x  # type: ignore[attr-defined]
    tap = context.__enter__()
    host.ends(torch.ones(2))
    assert tap.statistics.recorded == 1
    with tapping("scale_rows") as again:
        host.scale_rows(torch.zeros(2))
    assert again.statistics.recorded == 1


def test_every_nth_call_is_recorded_the_first_included(host: ModuleType, tapping: Tapping) -> None:
    """Of seven calls with every=3 the first, fourth and seventh."""
    with tapping("scale_rows", every=3) as tap:
        for value in range(7):
            host.scale_rows(torch.full((2,), float(value)))
    captures = CaptureSet.open(tap.path)
    assert [captures.load(n).call.inputs["x"][0].item() for n in captures.names()] == [0.0, 3.0, 6.0]
    assert (tap.statistics.seen, tap.statistics.recorded, tap.statistics.sampled_out) == (7, 3, 4)


def test_the_same_content_is_recorded_once_and_again_only_with_other_scalars(
    host: ModuleType, tapping: Tapping
) -> None:
    """Content counts, not identity; a second process run of the tap knows what the folder holds."""
    for _ in range(2):
        with tapping("scale_rows") as tap:
            host.scale_rows(torch.ones(2))
            host.scale_rows(torch.ones(2))
            host.scale_rows(torch.ones(2), scale=3.0)
    assert len(CaptureSet.open(tap.path).names()) == 2
    assert (tap.statistics.recorded, tap.statistics.duplicates) == (0, 3)


def test_the_byte_quota_is_never_passed(host: ModuleType, tapping: Tapping) -> None:
    """Calls beyond the quota are counted, not written."""
    with tapping("scale_rows", max_bytes=20_000) as tap:
        for value in range(5):
            host.scale_rows(torch.full((1000,), float(value)))
    written = sum(path.stat().st_size for path in tap.path.glob("*.safetensors"))
    assert (tap.statistics.recorded, tap.statistics.over_quota) == (2, 3)
    assert written == tap.statistics.bytes_written <= 20_000


def test_nothing_is_recorded_while_a_graph_is_captured(
    host: ModuleType, tapping: Tapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy inside a CUDA graph capture would end up in the graph."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with tapping("scale_rows") as tap:
        assert torch.equal(host.scale_rows(torch.ones(2)), torch.full((2,), 2.0))
    assert (tap.statistics.in_graph_capture, tap.statistics.recorded) == (1, 0)


def test_a_failure_to_write_is_counted_and_logged_and_the_host_goes_on(
    host: ModuleType, tapping: Tapping, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder that cannot be made does not reach the host."""
    (tmp_path / "live").write_text("a file is in the way")
    with caplog.at_level(logging.WARNING), tapping("scale_rows") as tap:
        assert torch.equal(host.scale_rows(torch.ones(2)), torch.full((2,), 2.0))
    assert (tap.statistics.failed, tap.statistics.recorded) == (1, 0)
    assert "FileExistsError" in tap.statistics.last_failure
    assert "captures: writing of host_program.scale_rows not recorded" in caplog.text


def test_arguments_that_do_not_fit_raise_the_hosts_own_error(host: ModuleType, tapping: Tapping) -> None:
    """The tap counts the failure; the error is the one the host would have got."""
    with tapping("scale_rows") as tap, pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        host.scale_rows()
    assert tap.statistics.failed == 1


def test_an_error_of_the_target_passes_through_and_is_not_recorded(host: ModuleType, tapping: Tapping) -> None:
    """The host sees its own exception."""

    def fails(x: torch.Tensor) -> None:
        raise ZeroDivisionError("the host's own")

    host.fails = fails  # type: ignore[attr-defined]
    with tapping("fails") as tap, pytest.raises(ZeroDivisionError, match="the host's own"):
        host.fails(torch.ones(1))
    assert (tap.statistics.target_raised, tap.statistics.recorded) == (1, 0)


def test_calls_inside_a_recorded_call_are_not_recorded_twice(host: ModuleType, tapping: Tapping) -> None:
    """A target that calls itself gives one capture."""
    host.nested = lambda x: x if x.numel() == 1 else host.nested(x[:1])  # type: ignore[attr-defined]
    with tapping("nested") as tap:
        host.nested(torch.ones(3))
    assert (tap.statistics.seen, tap.statistics.recorded, tap.statistics.nested) == (2, 1, 1)


def test_two_taps_on_one_target_come_off_in_any_order(
    host: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A tap that is no longer on top leaves the other's wrapper alone and says so."""
    first = record("host_program.scale_rows", op="test.op", directory=tmp_path / "a")
    second = record("host_program.scale_rows", op="test.op", directory=tmp_path / "b")
    with first as one:
        two = second.__enter__()
    host.scale_rows(torch.ones(1))
    second.__exit__(None, None, None)
    assert (one.statistics.recorded, two.statistics.recorded) == (0, 1)
    assert "was replaced by others" in caplog.text


def test_a_rank_writes_into_its_own_folder(host: ModuleType, tapping: Tapping) -> None:
    """Two ranks never share a manifest."""
    with tapping("scale_rows", about=About(rank=3)) as tap:
        host.scale_rows(torch.ones(2))
    assert tap.path.name == "rank3"
    captures = CaptureSet.open(tap.path)
    assert captures.names() == ["r3-000000"] and captures.entry("r3-000000").source.rank == 3


@pytest.mark.parametrize("name", ["every", "max_bytes"])
def test_a_limit_below_one_is_refused(host: ModuleType, tapping: Tapping, name: str) -> None:
    """Found before anything is tapped."""
    with (
        pytest.raises(ParameterError, match=f"{name} is 0; allowed: an int of at least 1"),
        tapping("scale_rows", **{name: 0}),
    ):
        pass
    assert host.scale_rows is scale_rows


@pytest.mark.parametrize("name", ["every", "max_bytes"])
@pytest.mark.parametrize("value", ["2", 1.5, True, None])
def test_a_limit_that_is_no_int_is_refused(host: ModuleType, tapping: Tapping, name: str, value: Any) -> None:
    """True is no number of calls, and text fails here and not at the first call."""
    with pytest.raises(ParameterError, match=f"{name} is {value!r}; allowed: an int of at least 1"):
        tapping("scale_rows", **{name: value}).__enter__()
    assert host.scale_rows is scale_rows


@pytest.mark.parametrize("failure", ["ValueError('v')", "TypeError()", "AssertionError()", "SystemExit(3)"])
def test_a_target_whose_import_fails_in_any_way_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: str
) -> None:
    """The host must start, whatever the module named by the variable raises."""
    (tmp_path / "failing_program.py").write_text(f"raise {failure}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("KDA_LAB_CAPTURE", f"failing_program.run=test.op:{tmp_path / 'live'}")
    assert install_from_environment() is None
    assert f"nothing is recorded: {failure.split('(')[0]}" in caplog.text


def test_the_environment_variable_installs_a_tap(
    host: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`target=op:directory` records until the process ends."""
    monkeypatch.setattr(host, "scale_rows", scale_rows)
    monkeypatch.setenv("KDA_LAB_CAPTURE", f"host_program.scale_rows=test.op:{tmp_path / 'live'}")
    tap = install_from_environment()
    host.scale_rows(torch.ones(2))
    assert tap is not None and tap.statistics.recorded == 1
    assert CaptureSet.open(tmp_path / "live").op == "test.op"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("host_program.scale_rows", "KDA_LAB_CAPTURE is 'host_program.scale_rows'; allowed: target=op:directory"),
        ("host_program.absent=test.op:/tmp/x", "allowed: an attribute that exists"),
    ],
)
def test_a_value_that_cannot_be_used_is_logged_and_not_raised(
    host: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str, words: str
) -> None:
    """The host must start in any case."""
    monkeypatch.setenv("KDA_LAB_CAPTURE", value)
    assert install_from_environment() is None
    assert "nothing is recorded" in caplog.text and words in caplog.text


def test_without_the_variable_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset means off."""
    monkeypatch.delenv("KDA_LAB_CAPTURE", raising=False)
    assert install_from_environment() is None


def test_the_door_of_a_product_can_be_tapped_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transposed weight, [1] alpha and the dtype survive, the door's own `kernel` is left out, and the call runs again."""
    op = load_op("nvfp4.gemm")
    call = op.cases.synthesise(op.cases.rows(("tiny_c",), (4,), ("random",))[0], 5, "cpu")
    served = op.oracle.emulate(call)["out"]
    monkeypatch.setattr(nvfp4.DISPATCHER, "call", lambda *given, **named: served)
    arguments = [call.inputs[name] for name in op.spec.tensors]
    with record("kda_lab.nvfp4.gemm", op="nvfp4.gemm", directory=tmp_path / "live") as tap:
        assert nvfp4.gemm(*arguments, out_dtype=torch.bfloat16) is served
    assert tap.statistics.last_failure == "" and tap.statistics.recorded == 1
    capture = CaptureSet.open(tap.path).load("r0-000000")
    assert capture.call.scalars == {"out_dtype": "bfloat16"}
    assert capture.call.facts == {"M": 4, "N": 48, "K": 576, "kind": "real"}
    assert "kernel: None is no argument of nvfp4.gemm" in capture.entry.folded
    for name, tensor in call.inputs.items():
        again = capture.call.inputs[name]
        assert torch.equal(again, tensor) and again.stride() == tensor.stride(), name
    asked = []
    launcher(lambda *tensors, out_dtype, out: asked.append((len(tensors), out_dtype, out)), op.spec, capture.call)()
    assert asked[0][:2] == (5, torch.bfloat16) and asked[0][2].shape == (4, 48)
