"""Errors under the name of the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kda_lab.cli import app
from kda_lab.errors import Reason, RefereeError
from kda_lab.referee.spoken import spoken_as


def test_a_refusal_names_the_command() -> None:
    """Reasons stay reasons, a sentence stays a sentence."""
    with pytest.raises(RefereeError, match=r"^serve-ab: plan is 1; allowed: 2\.$") as caught, spoken_as("serve-ab"):
        raise RefereeError("referee", [Reason("plan", "1", "2")])
    assert (caught.value.room, len(caught.value.reasons)) == ("serve-ab", 1)
    with pytest.raises(RefereeError, match=r"^slices: file 'a: b' does not exist\.$"), spoken_as("slices"):
        raise RefereeError("referee", "file 'a: b' does not exist.")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("compare-tokens", ["--baseline", "a", "--candidate", "b"]),
        ("serve-ab", ["--out", "out"]),
        ("slices", ["x", "--marker", "m", "--per-step", "1", "--first", "0", "--last", "1"]),
    ],
)
def test_each_command_says_its_own_name(command: str, options: list[str], tmp_path: Path) -> None:
    """A file that is not there: exit 2, and one line of the command that was typed."""
    path = tmp_path / "absent.yaml"
    done = CliRunner().invoke(app, [command, str(path), *options])
    assert done.exit_code == 2
    assert done.output == f"error: {command}: file {str(path)!r} does not exist; allowed: a file that can be read.\n"
