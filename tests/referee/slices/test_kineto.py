"""Kineto traces are read exactly, to the nanosecond, and each kind of damage has its words."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import RefereeError
from kda_lab.referee.slices.generated_files import kineto_json
from kda_lab.referee.slices.kernel_list import Kernel
from kda_lab.referee.slices.kineto import read_kineto

DATA = Path(__file__).parents[3] / "data" / "traces"
EVENT = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.5, "dur": 2, "args": {"device": 0, "stream": 7}}


def read(*events: Any, **top: Any) -> tuple[Kernel, ...]:
    """Kernels of a trace of these events."""
    return read_kineto("t.json", json.dumps({"traceEvents": list(events), **top}).encode()).kernels


def changed(**fields: Any) -> dict[str, Any]:
    """The event with other fields; a field of None is left out."""
    return {k: v for k, v in {**EVENT, **fields}.items() if v is not None}


def test_kernels_alone_are_read() -> None:
    """CPU ops, copies, metadata and instants are no kernels; a capital in the category does not matter."""
    others = [{"ph": "M", "name": "process_name"}, {**EVENT, "cat": "cpu_op"}, {**EVENT, "cat": "gpu_memcpy"}]
    found = read(*others, EVENT, {**EVENT, "cat": "Kernel", "ts": 9}, {"ph": "i", "cat": "kernel", "name": "x"})
    assert found == (Kernel("k", 0, 7, 1500, 2000), Kernel("k", 0, 7, 9000, 2000))


def test_a_bare_list_of_events_is_a_trace() -> None:
    """The Chrome format has two shapes."""
    assert read_kineto("t", json.dumps([EVENT]).encode()).kernels == (Kernel("k", 0, 7, 1500, 2000),)


def test_process_and_track_stand_in_for_device_and_stream() -> None:
    """Some exporters leave the arguments out."""
    assert read(changed(args=None, pid=1, tid=20)) == (Kernel("k", 1, 20, 1500, 2000),)


def test_the_display_unit_changes_nothing() -> None:
    """`displayTimeUnit` chooses how a viewer prints; the numbers are microseconds."""
    assert read(EVENT, displayTimeUnit="ns") == read(EVENT, displayTimeUnit="ms")


def test_a_start_keeps_its_nanoseconds() -> None:
    """A float of 5139429519858.7945 µs would be off by some tenths of a nanosecond at best; decimals are not."""
    text = json.dumps({"traceEvents": [EVENT]}).replace("1.5", "9139429519858.795").encode()
    assert read_kineto("t", text).kernels[0].start_ns == 9139429519858795
    assert round(9139429519858.795 * 1000) != 9139429519858795


PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=9)


@settings(max_examples=30)
@given(st.lists(st.builds(Kernel, PRINTABLE, st.integers(0, 7), st.integers(0, 90),
                          st.integers(0, 10**16), st.integers(0, 10**6)), min_size=1, max_size=8, unique=True))  # fmt: skip
def test_written_kernels_read_back_equal(kernels: list[Kernel]) -> None:
    """Every name, device, stream, start and duration survives the file."""
    assert set(read_kineto("t", kineto_json(kernels).encode()).kernels) == set(kernels)


@settings(max_examples=40)
@given(st.data())
def test_a_cut_file_is_refused_wherever_it_is_cut(data: st.DataObject) -> None:
    """No prefix of a trace is a trace."""
    text = kineto_json([Kernel("a", 0, 7, 1, 2), Kernel("b", 0, 7, 5, 2)]).rstrip().encode()
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(RefereeError, match=r"t: line \d+ column \d+ is .*; allowed: whole JSON. The file may be cut"):
        read_kineto("t", text[:cut])


def test_a_trace_of_a_cpu_says_what_it_holds() -> None:
    """A real profile of a machine without a GPU has no kernel to compare."""
    path = DATA / "cpu_only.pt.trace.json"
    message = r"events of category kernel is 0; allowed: at least one. Found 1 Trace, \d+ cpu_op: profile with"
    with pytest.raises(RefereeError, match=message):
        read_kineto(str(path), path.read_bytes())


def test_a_trace_without_events_says_so() -> None:
    """Nothing was recorded at all."""
    with pytest.raises(RefereeError, match="Found no complete event"):
        read()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"traceEvents": 3}', "t.json: top level is ['traceEvents']; allowed: an object with the list traceEvents"),
        (b'"x"', "t.json: top level is 'str'; allowed: an object with the list traceEvents, or a list of events."),
        (b'["x"]', "t.json: traceEvents[0] is 'x'; allowed: an object."),
        (b"[\xff]", "t.json: byte 1 is b'\\xff'; allowed: UTF-8 text."),
        (b"[" * 200_000, "t.json: nesting is 'too deep'; allowed: a trace: objects a few levels deep."),
        (b'[{"dur": NaN}]', "t.json: a number is 'NaN'; allowed: finite numbers"),
        (b"[" + b"9" * 5000 + b"]", "t.json: a number is "),
    ],
    ids=["events-no-list", "text", "event-no-object", "not-utf8", "nested", "nan", "long-number"],
)
def test_what_is_no_trace_is_refused(text: bytes, message: str) -> None:
    """Each kind of nonsense has a message of its own."""
    with pytest.raises(RefereeError, match=re.escape(message)):
        read_kineto("t.json", text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": None}, "traceEvents[0].name is None; allowed: a kernel's name."),
        ({"ts": None}, "traceEvents[0].ts is None; allowed: a number of microseconds."),
        ({"dur": None}, "traceEvents[0].dur is None; allowed: a number of microseconds."),
        ({"dur": "3"}, "traceEvents[0].dur is '3'; allowed: a number of microseconds."),
        ({"dur": True}, "traceEvents[0].dur is True; allowed: a number of microseconds."),
        ({"dur": -2}, "traceEvents[0].dur is '-2'; allowed: 0 µs or more."),
        ({"ts": 10**30}, f"traceEvents[0].ts is {10**30}; allowed: a number of microseconds."),
        ({"args": {"device": "0", "stream": 7}}, "traceEvents[0].args.device is '0'; allowed: a whole number."),
        (
            {"args": {"device": 0, "stream": 7.5}},
            "traceEvents[0].args.stream is Decimal('7.5'); allowed: a whole number.",
        ),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, dict) else "",
)
def test_a_wrong_field_is_named_with_its_event(fields: dict[str, Any], message: str) -> None:
    """Which event, which field, what was found and what is allowed."""
    with pytest.raises(RefereeError, match=re.escape(message)):
        read(changed(**fields))


@pytest.mark.parametrize("number", ["1e999999999", "-1e999999999", "1e16"])
def test_an_exponent_is_not_written_out(number: str) -> None:
    """It is refused at once, without a number of a billion digits."""
    text = json.dumps([EVENT]).replace("1.5", number).encode()
    with pytest.raises(RefereeError, match=re.escape(f"ts is {Decimal(number)!r}; allowed: a number of microseconds.")):
        read_kineto("t", text)


def test_an_exponent_beyond_decimals_is_refused() -> None:
    """More than any decimal holds."""
    text = json.dumps([EVENT]).replace("1.5", "1e9999999999999999999999").encode()
    with pytest.raises(RefereeError, match=r"a number is .*; allowed: finite numbers"):
        read_kineto("t", text)
