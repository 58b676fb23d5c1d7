"""Signals that end a process become an exception, so that it ends what it has started before it goes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)


class Ended(SystemExit):
    """The process was told to end; an event loop lets it through, being a SystemExit.

    Args:
        number: of the signal. The exit code is the shell's for it, 128 more.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


@contextmanager
def ending_raises() -> Iterator[None]:
    """The first SIGTERM or SIGHUP inside raises `Ended`; later ones are ignored until the end, so that cleaning up is not cut.

    A signal that is ignored already (`nohup`) stays so. Outside the main thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]

    def end(number: int, frame: FrameType | None) -> None:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        raise Ended(number)

    try:
        for number in heard:
            signal.signal(number, end)
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])
