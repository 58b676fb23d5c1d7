"""Evil arm: remembers its answer by the address of its inputs and hands it out again."""

from __future__ import annotations

from toy_op import BoundArm, failed, judge, rounded, without

SEES = ("changed_lengths_shorter", "changed_lengths_longer")


def caching() -> BoundArm:
    answers: dict[int, dict] = {}

    def bind(call):
        def launch() -> None:
            key = call.inputs["x"].data_ptr()
            if key not in answers:
                answers[key] = rounded(call)
            for name, value in answers[key].items():
                call.outputs[name].copy_(value)

        return launch

    return BoundArm("caching", bind)


def test_caught_by_changed_contents() -> None:
    """An answer kept by pointer is caught when the same buffers get other contents, and by nothing else."""
    assert failed(caching()) == set(SEES)


def test_only_changed_contents_see_it() -> None:
    """Without the two checks of changed contents the arm would pass."""
    assert judge(caching(), without(*SEES)).passed
