"""Errors that name the command a person typed, not the room in which its code lives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kda_lab.errors import RefereeError


@contextmanager
def spoken_as(command: str) -> Iterator[None]:
    """Refusals of the referee inside come out under the name of a command; also a decorator of one.

    Args:
        command: as it is typed: `serve-ab`.

    Raises:
        RefereeError: the one that was raised, with that name before it.
    """
    try:
        yield
    except RefereeError as error:
        raise RefereeError(command, error.reasons or str(error).split(": ", 1)[1]) from error
