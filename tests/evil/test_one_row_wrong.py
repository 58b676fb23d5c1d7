"""Evil arm: a global error within the limit, one (row, head) far off."""

from __future__ import annotations

from toy_op import LENGTHS, failed, judge, without, write

from kda_lab.ops.protocol import FunctionArm


def spoiled(call) -> None:
    write(call)
    # Only on the original lengths, so that the checks of changed contents have nothing to see.
    if call.inputs["cu"].diff().tolist() == list(LENGTHS):
        call.outputs["out"][3, 2].mul_(1.012)


def test_caught_by_row_max() -> None:
    """One row that is 1.2 % off hides in the global error; the worst row shows it, and nothing else does."""
    assert failed(FunctionArm("spoiled", spoiled)) == {"row_max"}


def test_only_row_max_sees_it() -> None:
    """Without that check the arm would pass."""
    assert judge(FunctionArm("spoiled", spoiled), without("row_max")).passed


def test_changed_contents_judge_rows_too() -> None:
    """A row that is wrong on every contents fails the checks of changed contents by its row, not its error."""

    def always(call) -> None:
        write(call)
        call.outputs["out"][3, 2].mul_(1.012)

    done = judge(FunctionArm("always", always))
    assert set(done.failed) == {"row_max", "changed_lengths_shorter", "changed_lengths_longer"}
    check = next(c for c in done.checks if c.name == "changed_lengths_longer")
    assert check.value < check.limit
