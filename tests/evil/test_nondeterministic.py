"""Evil arm: right within every tolerance, but its bits differ from launch to launch."""

from __future__ import annotations

import itertools

import torch
from toy_op import BoundArm, failed, judge, without, write


def wobbling() -> BoundArm:
    turn = itertools.count()

    def bind(call):
        def launch() -> None:
            write(call)
            call.outputs["out"].view(torch.int16)[0, 0, 0] += next(turn) % 2

        return launch

    return BoundArm("wobbling", bind)


def test_caught_by_repeat_bits() -> None:
    """One unit in the last place on each second launch is caught by the repeated launch, and by nothing else."""
    assert failed(wobbling()) == {"repeat_bits"}


def test_only_repeat_bits_sees_it() -> None:
    """Without that check the arm would pass."""
    assert judge(wobbling(), without("repeat_bits")).passed
