"""What dispatch did in this process: hits, fallbacks and refusals, counted and logged once each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

LOG = logging.getLogger("kda_lab.dispatch")
REFUSALS_KEPT = 256
RAISED = "raised"
OTHERS = "other refusals"
"""Key under which refusals are counted once `REFUSALS_KEPT` distinct ones were seen."""


class Tally:
    """A counter of one selection; its owner's lock guards it."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


@dataclass(frozen=True)
class Statistics:
    """A snapshot of the counters. Keys start with the op's name."""

    hits: dict[str, int]
    """`op: kernel` to the number of calls it served."""
    fallbacks: dict[str, int]
    """`op: fallback` to the number of calls it served."""
    misses: dict[str, int]
    """Text of a refusal, and of the fallback that ran instead, to the number of calls that no kernel took.

    At most `REFUSALS_KEPT` texts and one for the rest.
    """
    cached: int
    """Selections in the cache."""

    def __str__(self) -> str:
        lines = [f"{count:>10}  hit       {name}" for name, count in sorted(self.hits.items())]
        lines += [f"{count:>10}  fallback  {name}" for name, count in sorted(self.fallbacks.items())]
        lines += [f"{count:>10}  miss      {text}" for text, count in sorted(self.misses.items())]
        return "\n".join(lines) or "no call was dispatched"


@dataclass
class Counters:
    """Named tallies that outlive the selection cache; every method is safe in threads."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    _hits: dict[str, Tally] = field(default_factory=dict)
    _fallbacks: dict[str, Tally] = field(default_factory=dict)
    _misses: dict[str, Tally] = field(default_factory=dict)
    _logged: set[str] = field(default_factory=set)

    def hit(self, op: str, kernel: str) -> Tally:
        """The tally of one kernel; the first request logs that it is dispatched."""
        self._log_once(LOG.info, f"{op}: dispatched to kernel {kernel}")
        return self._tally(self._hits, f"{op}: {kernel}")

    def fallback(self, op: str, name: str, refusal: str) -> Tally:
        """The tally of one fallback; the first request logs that it runs, and why no kernel does."""
        self._log_once(LOG.warning, f"{op}: fallback {name} runs, because {refusal}", f"{op}: fallback {name}")
        return self._tally(self._fallbacks, f"{op}: {name}")

    def miss(self, refusal: str, outcome: str) -> Tally:
        """The tally of one refusal with what happens instead: `raised` or `fallback <name>`.

        The first request of one that raises is logged; a fallback is logged by `fallback`, once, because
        a call that is served needs no warning for each new shape.
        """
        key = refusal if outcome == RAISED else f"{refusal} -> {outcome}"
        with self.lock:
            known = key in self._misses or len(self._misses) < REFUSALS_KEPT
        if outcome == RAISED or not known:
            self._log_once(LOG.warning, f"{key} -> {outcome}" if known else f"{OTHERS}: only counted from now on")
        return self._tally(self._misses, key if known else OTHERS)

    def snapshot(self, cached: int) -> Statistics:
        """All counts that are not zero."""
        with self.lock:
            hits, fallbacks, misses = (
                {name: t.count for name, t in group.items() if t.count} for group in self._groups()
            )
        return Statistics(hits, fallbacks, misses, cached)

    def reset(self) -> None:
        """Put every count back to zero; what was logged stays logged."""
        with self.lock:
            for group in self._groups():
                for tally in group.values():
                    tally.count = 0

    def _groups(self) -> tuple[dict[str, Tally], dict[str, Tally], dict[str, Tally]]:
        return self._hits, self._fallbacks, self._misses

    def _tally(self, group: dict[str, Tally], name: str) -> Tally:
        with self.lock:
            return group.setdefault(name, Tally())

    def _log_once(self, log: Callable[[str], None], line: str, key: str = "") -> None:
        """Log a line unless it, or another one of its key, was logged before."""
        with self.lock:
            if (key or line) in self._logged:
                return
            self._logged.add(key or line)
        log(line)
