"""The settings file extends the category table and moves limits; what it does not know it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kda_lab.errors import RefereeError
from kda_lab.referee.slices import settings as module
from kda_lab.referee.slices.categories import Categories
from kda_lab.referee.slices.settings import SliceSettings, read_settings


def written(tmp_path: Path, text: str | bytes) -> Path:
    """A settings file with this text."""
    path = tmp_path / "s.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_the_example_of_the_documentation_is_one(tmp_path: Path) -> None:
    """What the module shows can be read."""
    example = (module.__doc__ or "").split("```yaml\n")[1].split("```")[0]
    found = read_settings(written(tmp_path, example))
    assert found.table().of("argmax_kernel") == "sampler"
    assert found.table().of("nvjet_x") == "projection"
    assert (found.other_limit_percent, found.device, found.size_limit_mb) == (10, 0, 256)


def test_the_default_categories_can_be_left_out(tmp_path: Path) -> None:
    """`only_these` asks no other."""
    found = read_settings(written(tmp_path, "only_these: true\ncategories: [{name: a, patterns: [x]}]"))
    assert found.table().names == ("a", "other")
    assert SliceSettings().table() == Categories()


def test_no_category_at_all_is_refused() -> None:
    """Everything would be `other`."""
    with pytest.raises(
        RefereeError, match=re.escape("categories is (); allowed: at least one where only_these is true.")
    ):
        SliceSettings(only_these=True).table()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "s.yaml: line 1 is "),
        ("- 1", "s.yaml: content is [1]; allowed: a mapping of categories, only_these, other_limit_percent"),
        ("", "s.yaml: content is None; allowed: a mapping"),
        ("colour: red", "s.yaml: colour is 'red'; allowed: one of categories, only_these"),
        (
            "other_limit_percent: 101",
            "s.yaml: other_limit_percent is 101; allowed: Input should be less than or equal to 100.",
        ),
        ("other_limit_percent: .nan", "s.yaml: other_limit_percent is nan; allowed: "),
        ("categories: [{name: a}]", "s.yaml: categories.0.patterns is missing; allowed: Field required."),
        ("!!python/object:os.system {}", "s.yaml: line 1 is "),
        (b"\xff\xfe\x00", "allowed: YAML."),
        ("[" * 600, "allowed: YAML."),
        ("#" * 1_000_001, "size in bytes is 1000001; allowed: at most 1000000."),
    ],
    ids=["open", "list", "empty", "unknown", "above", "nan", "no-patterns", "object", "bytes", "nested", "huge"],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    """File, line or field, and what is allowed."""
    with pytest.raises(RefereeError, match=re.escape(message)):
        read_settings(written(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """One sentence, no traceback of the operating system."""
    with pytest.raises(RefereeError, match=r"file '.*' does not exist; allowed: a file that can be read"):
        read_settings(tmp_path / "no.yaml")
