"""The YAML file that extends the category table and moves the limits of a slice comparison.

```yaml
categories:                # asked before the default ones, in this order
  - name: sampler
    patterns: [argmax, top_p]
only_these: false          # true: the default categories are not asked
other_limit_percent: 10    # share of `other` above which the comparison is refused
device: 0                  # left out: the lowest of each trace
size_limit_mb: 256         # of JSON, unpacked
```
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from kda_lab.contracts.fields import Data
from kda_lab.errors import Reason, RefereeError
from kda_lab.referee.readers.text import absent, complaint
from kda_lab.referee.slices.categories import Categories, Category
from kda_lab.referee.slices.comparison import OTHER_LIMIT_PERCENT
from kda_lab.referee.slices.kernel_list import refusal
from kda_lab.referee.slices.reading import SIZE_LIMIT_MB

FILE_LIMIT_BYTES = 1_000_000


class CategoryEntry(Data):
    """One category as a file gives it."""

    name: str
    patterns: tuple[str, ...]


class SliceSettings(Data):
    """What a comparison may be told beside its traces and its marker."""

    categories: tuple[CategoryEntry, ...] = ()
    only_these: bool = False
    other_limit_percent: float = Field(default=OTHER_LIMIT_PERCENT, ge=0, le=100)
    device: int | None = Field(default=None, ge=0)
    size_limit_mb: int = Field(default=SIZE_LIMIT_MB, ge=1, le=4096)

    def table(self) -> Categories:
        """The categories, the file's own first.

        Raises:
            RefereeError: a pattern or name is not allowed, or no category is left.
        """
        own = tuple(Category(e.name, e.patterns) for e in self.categories)
        if self.only_these and not own:
            raise RefereeError("referee", [Reason("categories", "()", "at least one where only_these is true")])
        return Categories(own) if self.only_these else Categories.extended(own)


def read_settings(path: str | Path) -> SliceSettings:
    """Settings of a YAML file.

    Raises:
        RefereeError: not readable, not YAML, or a field that is unknown or out of range.
    """
    source = str(path)
    try:
        text = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise absent(Path(path)) from error
    except OSError as error:
        raise refusal(source, "file", error.strerror or str(error), "a readable YAML file") from error
    if len(text) > FILE_LIMIT_BYTES:
        raise refusal(source, "size in bytes", len(text), f"at most {FILE_LIMIT_BYTES}")
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else "content"
        raise refusal(source, where, str(getattr(error, "problem", None) or error), "YAML") from error
    if not isinstance(content, dict):
        raise refusal(source, "content", content, f"a mapping of {', '.join(SliceSettings.model_fields)}")
    try:
        return SliceSettings.model_validate(content)
    except ValidationError as error:
        raise RefereeError("referee", [_reason(source, e) for e in error.errors()]) from error


def _reason(source: str, error: Mapping[str, Any]) -> Reason:
    place, given, words = complaint(error)
    allowed = f"one of {', '.join(SliceSettings.model_fields)}" if error["type"] == "extra_forbidden" else words
    return Reason(f"{source}: {'.'.join(map(str, place))}", given, allowed)
