"""The trials of several arms: alternating order, a spare one where one was dropped, and an arm that fails is refused alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from kda_lab.errors import TimingError
from kda_lab.timing.machine import Machine
from kda_lab.timing.protocol import Protocol as TimingProtocol
from kda_lab.timing.protocol import order_of

REASON_LENGTH = 600
Record = dict[str, Any]
T = TypeVar("T")


class Named(Protocol):
    """An arm, as far as a message needs it."""

    @property
    def name(self) -> str: ...


class Slot(Protocol):
    """One arm's place in the order; `refused` says why it is left out, and is empty while it is not."""

    refused: str

    @property
    def arm(self) -> Named: ...


S = TypeVar("S", bound=Slot)


@dataclass(frozen=True)
class Trials(Generic[S]):
    """How slots are prepared and timed, whatever a slot's trial is."""

    slots: Sequence[S]
    machine: Machine
    protocol: TimingProtocol
    place: str
    """Where an arm failed, in the error of a lost device: `on row 'tp1-B4'`."""
    remedy: str
    """What to do then: a sentence."""

    def run(self, base: S, prepare: Callable[[S], None], attempt: Callable[[S, int, int], Record]) -> list[Record]:
        """Prepare every slot, `base` first, then time them; the records of slots that were never refused.

        Args:
            base: the slot whose plan others take.
            prepare: what is found out before the trials.
            attempt: one trial of one slot, given the trial's number and the slot's place in its order.

        Raises:
            TimingError: an arm destroyed the device's context.
        """
        for slot in sorted(self.slots, key=lambda s: s is not base):
            self._guarded(slot, lambda slot=slot: prepare(slot))  # type: ignore[misc]
        timed: list[tuple[S, Record]] = []
        trial, planned = 0, self.protocol.trials
        while trial < planned:
            done = self._round(trial, attempt)
            timed += done
            may_add = planned < self.protocol.trials + self.protocol.spare_trials
            # Throttling passes, a wrong result does not: only the former earns another trial.
            planned += may_add and any(r["dropped"] and r["recheck"]["passed"] for _, r in done)
            trial += 1
        return [record for slot, record in timed if not slot.refused]

    def _round(self, trial: int, attempt: Callable[[S, int, int], Record]) -> list[tuple[S, Record]]:
        done = []
        for order, position in enumerate(order_of(trial, len(self.slots))):
            slot = self.slots[position]
            if slot.refused:
                continue
            record = self._guarded(slot, lambda slot=slot, order=order: attempt(slot, trial, order))  # type: ignore[misc]
            if record is not None:
                done.append((slot, record))
        return done

    def _guarded(self, slot: S, step: Callable[[], T]) -> T | None:
        """Run one step of an arm; what it raises refuses the arm, not the others."""
        try:
            return step()
        # Expected: whatever an arm or its library raises for a geometry that it does not serve, or a full memory.
        except Exception as error:  # noqa: BLE001
            slot.refused = in_words(error)
        try:
            self.machine.synchronise()
            self.machine.release()
        except RuntimeError as error:
            raise TimingError(
                "timing",
                f"the device is lost after arm {slot.arm.name!r} {self.place} ({slot.refused}): {error}. {self.remedy}",
            ) from error
        return None


def in_words(error: Exception) -> str:
    """Class and text of what an arm raised, on one line of limited length."""
    text = " ".join(str(error).split())[:REASON_LENGTH]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
