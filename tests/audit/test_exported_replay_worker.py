"""The child process of the replay: launches are counted by function, and a candidate's failure is told, not raised."""

from __future__ import annotations

from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from kda_lab.audit.exported_replay_worker import LaunchCount, compared
from kda_lab.captures.store import CaptureSet


class Hooked:
    """What Triton's decorator makes of a function, as far as the count needs it."""

    def __init__(self, fn: FunctionType) -> None:
        self.fn = fn
        self.hooks: list[Any] = []

    def add_pre_run_hook(self, hook: Any) -> None:
        self.hooks.append(hook)

    def run(self) -> None:
        for hook in self.hooks:
            hook(1, grid=2)


class Tuned:
    """Autotuning around such a function."""

    def __init__(self, fn: Hooked) -> None:
        self.fn = fn

    def run(self) -> None:
        self.fn.run()


def first() -> None:
    """A device function of this file."""


def second() -> None:
    """Another one."""


def test_launches_are_counted_by_function() -> None:
    """A function under two names counts once, one below autotuning counts as itself, plain values are passed over."""
    module = ModuleType("kernel")
    plain, tuned = Hooked(first), Tuned(Hooked(second))  # type: ignore[arg-type]
    vars(module).update(plain=plain, alias=plain, tuned=tuned, number=3, text="x", function=first)
    seen = LaunchCount(module)
    assert seen.of(lambda: [plain.run(), plain.run(), tuned.run()]) == {"first": 2, "second": 1}
    assert seen.of(lambda: None) == {}
    assert set(seen.files.values()) == {__file__}


def test_a_candidate_that_fails_is_told(toy: Any, tmp_path: Path) -> None:
    """A candidate that cannot be imported gives its exception in words, and no capture is called different."""
    broken = tmp_path / "broken.py"
    broken.write_text("raise OSError('not today')\n")
    captures = CaptureSet.open(toy.places.captures / "qsa.packed_decode")
    call = captures.load("tp2-B1-short").call
    assert compared(broken, {"c": call}, {"c": call.outputs}) == ([], "OSError: not today")


def test_other_bits_are_told(toy: Any) -> None:
    """Outputs that are not the candidate's are named by their capture."""
    call = CaptureSet.open(toy.places.captures / "qsa.packed_decode").load("tp2-B1-short").call
    wrong = {name: tensor.clone().fill_(7.0) for name, tensor in call.outputs.items()}
    assert compared(toy.candidate, {"c": call}, {"c": wrong}) == (["c"], "")
