"""The facts behind `kda-lab doctor`: reasons for what is absent, and what counts as missing."""

from __future__ import annotations

import pytest

from kda_lab import runtime
from kda_lab.batch import machine_check
from kda_lab.errors import UnavailableError


def test_this_machine_is_complete() -> None:
    """Where the tests run, nothing required is missing, and each package has a version or a reason."""
    report = machine_check.examine()
    assert report.missing == ()
    assert {"Python", "device", "capability", "free disk", "environment", "Triton interpreter"} <= set(report.facts)
    assert all(p.usable or p.state.startswith("unavailable, because ") for p in report.packages)


def test_absent_required_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A required package that cannot be imported is named; an optional one is not."""
    monkeypatch.setattr(machine_check, "REQUIRED", ("torch", "no_such_package"))
    monkeypatch.setattr(machine_check, "OPTIONAL", {"no_such_extra": "no-such-extra"})
    report = machine_check.examine()
    assert report.missing == ("no_such_package",)
    assert "No module named 'no_such_extra'" in report.packages[-1].state


def test_interpreter_that_cannot_be_trusted_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Triton whose interpreter stays wrong after the mend makes the machine unfit for replays on a CPU."""
    from kda_lab import interpreter

    def wrong() -> None:
        raise UnavailableError("interpreter", "bf16_dot is still wrong")

    monkeypatch.setattr(runtime, "interpreter_on", lambda: True)
    monkeypatch.setattr(interpreter, "mend_status", wrong)
    report = machine_check.examine()
    assert report.missing == ("a faithful interpreter",)
    assert "still wrong" in report.facts["Triton interpreter"]


def test_unsupported_python_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python outside the supported range is named."""
    monkeypatch.setattr(machine_check, "PYTHON", ((3, 98), (3, 99)))
    assert "Python 3.10 to 3.13" in machine_check.examine().missing
