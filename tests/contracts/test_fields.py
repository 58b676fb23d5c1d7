"""Field types: frozen data without strangers, names, hashes and paths that stay inside their folder."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kda_lab.contracts.fields import Data, Name, OpName, RelativePath, Sha256


class Sample(Data):
    """One field of each type."""

    name: Name = "a"
    op: OpName = "a.b"
    path: RelativePath = "a/b"
    sha256: Sha256 = "0" * 64


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("name", "A", "should match pattern"),
        ("op", "plain", "should match pattern"),
        ("path", "../a", r"a path is '\.\./a'; allowed: relative, with /, without \.\."),
        ("path", "", "a path is ''"),
        ("path", "a\\b", "with /"),
        ("sha256", "0" * 63, "should match pattern"),
        ("stranger", 1, "Extra inputs are not permitted"),
    ],
)
def test_a_wrong_field_is_refused(field: str, value: object, words: str) -> None:
    """Each type refuses what it is not, by its own words."""
    Sample()
    with pytest.raises(ValidationError, match=words):
        Sample.model_validate({field: value})


def test_data_is_frozen() -> None:
    """A part of a contract cannot be changed after it was judged."""
    with pytest.raises(ValidationError, match="frozen"):
        Sample().name = "b"  # type: ignore[misc]
