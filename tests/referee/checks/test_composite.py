"""Composite arms: files outside the scope are the same in both."""

from __future__ import annotations

from kda_lab.referee.checks import composite
from kda_lab.referee.claim import Claim, Run
from kda_lab.referee.finding import Finding

BASE = {"kernels/a.py": "1" * 64, "kernels/b.py": "2" * 64, "model.py": "3" * 64}


def checked(changes: dict[str, str], *more: Run) -> tuple[Finding, ...]:
    """The baseline's files against the same with changes; kernels are in the scope."""
    runs = (Run(arm="baseline", files=BASE), Run(arm="candidate", files=BASE | changes), *more)
    return composite.check(Claim(name="x", runs=runs, scope=("kernels/*",)))


def test_a_change_in_the_scope_passes() -> None:
    """One kernel differs, with both hashes shown."""
    (found,) = checked({"kernels/a.py": "9" * 64})
    assert (found.severity, found.arithmetic) == ("passed", ("kernels/a.py: 111111111111 -> 999999999999",))


def test_a_change_outside_the_scope_is_not_comparable() -> None:
    """The file is named; a file that only one arm has counts too."""
    (found,) = checked({"model.py": "9" * 64, "extra.py": "8" * 64})
    assert found.severity == "not comparable"
    assert "2 files differ outside the scope: extra.py, model.py" in found.sentence


def test_equal_trees_are_no_experiment() -> None:
    """Two arms of the same files measure nothing."""
    (found,) = checked({})
    assert (found.severity, found.short) == ("invalid", "the arms are the same files")


def test_an_arm_keeps_its_files() -> None:
    """A run of the candidate with other files than the run before is refused."""
    (found,) = checked({"kernels/a.py": "9" * 64}, Run(arm="candidate", files=BASE))
    assert (found.severity, found.sentence) == ("invalid", "Runs of candidate have different files.")


def test_no_hashes_no_finding() -> None:
    """Without hashes nothing is claimed about files."""
    assert composite.check(Claim(name="x", runs=(Run(arm="baseline"), Run(arm="candidate")))) == ()


def test_a_change_of_a_setting_in_the_scope_is_a_change() -> None:
    """Equal files with another value of the scope's setting are two arms; with the same value they are one."""
    for value, severity in ((True, "passed"), (False, "invalid")):
        runs = (
            Run(arm="baseline", files=BASE, resolved={"fuse": False}),
            Run(arm="candidate", files=BASE, resolved={"fuse": value}),
        )
        (found,) = composite.check(Claim(name="x", runs=runs, scope=("setting:fuse",)))
        assert found.severity == severity
