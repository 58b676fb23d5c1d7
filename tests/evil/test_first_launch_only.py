"""Evil arm: computes on its first launch and does nothing afterwards."""

from __future__ import annotations

from toy_op import BoundArm, failed, judge, without, write

SEES = ("repeat_bits", "changed_lengths_shorter", "changed_lengths_longer")


def lazy() -> BoundArm:
    done: list[bool] = []

    def bind(call):
        def launch() -> None:
            if not done:
                write(call)
                done.append(True)

        return launch

    return BoundArm("lazy", bind)


def test_caught_by_repeat_bits() -> None:
    """The output is poisoned again before each launch, so the second launch shows that nothing was written."""
    assert failed(lazy()) == set(SEES)


def test_a_single_launch_would_pass_it() -> None:
    """Without the checks of later launches the arm would pass."""
    assert judge(lazy(), without(*SEES)).passed
