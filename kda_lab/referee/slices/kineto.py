"""Kernels of a torch-profiler trace: Kineto's Chrome JSON, plain or gzipped, times in microseconds.

`ts` and `dur` are microseconds whatever `displayTimeUnit` says: that key only chooses how a viewer prints them. They
carry nanoseconds as three decimals, and a start counted from boot has more digits than a float keeps, so numbers are
read as decimals.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from kda_lab.referee.slices.kernel_list import NS_PER_US, Kernel, KernelList, refusal

KERNEL = "kernel"
"""Value of `cat` of a kernel; some versions write it with a capital. Copies and fills are no kernels."""
LARGEST_US = 2**53
"""Two centuries: any number that a trace can hold lies below."""


def read_kineto(source: str, text: bytes) -> KernelList:
    """Kernels of one trace.

    Args:
        source: name for messages, the file's path.
        text: the JSON, unpacked.

    Raises:
        RefereeError: not JSON, not a trace, without kernels, or a kernel with a field missing or out of range.
    """
    events = _events(source, _parsed(source, text))
    kernels = list(_kernels(source, events))
    if not kernels:
        kinds = Counter(str(e.get("cat", "")) for e in events if isinstance(e, dict) and e.get("ph") == "X")
        seen = ", ".join(f"{count} {name}" for name, count in sorted(kinds.items())) or "no complete event"
        remedy = f"Found {seen}: profile with ProfilerActivity.CUDA."
        raise refusal(source, "events of category kernel", 0, "at least one", remedy)
    return KernelList.of(source, kernels)


def _parsed(source: str, text: bytes) -> Any:
    try:
        return json.loads(text.decode("utf-8"), parse_float=Decimal, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        field = f"line {error.lineno} column {error.colno}"
        raise refusal(source, field, error.msg, "whole JSON", "The file may be cut: export it again.") from error
    except UnicodeDecodeError as error:
        raise refusal(source, f"byte {error.start}", text[error.start : error.start + 1], "UTF-8 text") from error
    except RecursionError as error:
        raise refusal(source, "nesting", "too deep", "a trace: objects a few levels deep") from error
    except (ValueError, ArithmeticError) as error:
        raise refusal(source, "a number", str(error), "finite numbers of at most 4300 digits") from error


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _events(source: str, parsed: Any) -> list[Any]:
    # The Chrome format allows a bare list of events too.
    events = parsed.get("traceEvents") if isinstance(parsed, dict) else parsed
    if not isinstance(events, list):
        given = sorted(parsed)[:8] if isinstance(parsed, dict) else type(parsed).__name__
        raise refusal(source, "top level", given, "an object with the list traceEvents, or a list of events")
    return events


def _kernels(source: str, events: list[Any]) -> Iterator[Kernel]:
    for index, event in enumerate(events):
        if not isinstance(event, dict):
            raise refusal(source, f"traceEvents[{index}]", event, "an object")
        if event.get("ph") == "X" and str(event.get("cat", "")).lower() == KERNEL:
            yield _kernel(source, f"traceEvents[{index}]", event)


def _kernel(source: str, where: str, event: dict[str, Any]) -> Kernel:
    name, given = event.get("name"), event.get("args")
    if not isinstance(name, str) or not name:
        raise refusal(source, f"{where}.name", name, "a kernel's name")
    arguments = given if isinstance(given, dict) else {}
    device = _whole(source, f"{where}.args.device", arguments.get("device", event.get("pid")))
    stream = _whole(source, f"{where}.args.stream", arguments.get("stream", event.get("tid")))
    start_ns = _nanoseconds(source, f"{where}.ts", event.get("ts"))
    duration_ns = _nanoseconds(source, f"{where}.dur", event.get("dur"))
    if duration_ns < 0:
        raise refusal(source, f"{where}.dur", str(event["dur"]), "0 µs or more")
    return Kernel(name, device, stream, start_ns, duration_ns)


def _whole(source: str, where: str, value: Any) -> int:
    if type(value) is not int:
        raise refusal(source, where, value, "a whole number")
    return value


def _nanoseconds(source: str, where: str, value: Any) -> int:
    """Microseconds as whole nanoseconds, the nearest."""
    # Compared before anything is computed: an exponent of 10**9 would overflow, or be written out digit by digit.
    if type(value) not in (int, Decimal) or not -LARGEST_US < value < LARGEST_US:
        raise refusal(source, where, value, "a number of microseconds")
    return int((Decimal(value) * NS_PER_US).to_integral_value())
