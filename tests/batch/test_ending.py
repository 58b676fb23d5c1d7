"""Signals that end a process: raised once, ignored while cleaning up, given back afterwards."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from kda_lab.batch.ending import ENDING, Ended, ending_raises


@pytest.mark.parametrize("number", ENDING)
def test_the_first_signal_raises_and_later_ones_wait(number: int) -> None:
    """The exit code is the shell's; a second signal does not cut what cleans up; the handlers come back."""
    before = [signal.getsignal(each) for each in ENDING]
    cleaned = False
    with pytest.raises(Ended) as caught, ending_raises():
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            cleaned = True
    assert (caught.value.code, caught.value.name) == (128 + number, signal.Signals(number).name)
    assert cleaned
    assert [signal.getsignal(each) for each in ENDING] == before


def test_an_ignored_signal_stays_ignored() -> None:
    """What `nohup` starts outlives its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_raises():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_changes_nothing() -> None:
    """Python sets handlers in the main thread alone."""
    found = []

    def look() -> None:
        with ending_raises():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]
