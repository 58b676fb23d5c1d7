"""What kind of work a kernel is, told from its name by a table of patterns that a user may extend.

The first category with a matching pattern takes the kernel; patterns are regular expressions, searched anywhere in the
name, whatever the case. What none takes is `other`: when that grows, names have drifted away from the table.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from kda_lab.errors import Reason, RefereeError

OTHER = "other"


@dataclass(frozen=True)
class Category:
    """One kind of work.

    Raises:
        RefereeError: the name is empty or `other`, or a pattern is no regular expression.
    """

    name: str
    patterns: tuple[str, ...]

    def __post_init__(self) -> None:
        reasons = []
        if not self.name.strip() or self.name == OTHER:
            reasons.append(Reason("category name", repr(self.name), "a word other than 'other'"))
        if not self.patterns:
            reasons.append(Reason(f"patterns of {self.name}", "()", "at least one"))
        for pattern in self.patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                reasons.append(Reason(f"pattern of {self.name}", repr(pattern), "a regular expression", str(error)))
            if not pattern:
                reasons.append(Reason(f"pattern of {self.name}", "''", "a text that not every name has"))
        if reasons:
            raise RefereeError("referee", reasons)


# `(?<![a-z])` keeps a short name from matching inside a longer word.
DEFAULT = (
    Category("residual", (r"attn_?res",)),
    Category(
        "communication", (r"nccl", r"all_?reduce", r"all_?gather", r"reduce_?scatter", r"all_?to_?all", r"deep_?ep")
    ),
    Category("moe", (r"(?<![a-z])moe", r"expert", r"top_?k", r"rout(e|ing)", r"grouped_gemm", r"situ(?![a-z])")),
    Category("kda", (r"(?<![a-z])kda", r"conv1d", r"delta_rule", r"(?<![a-z])gdn", r"recurrent")),
    Category("mla", (r"(?<![a-z])mla(?![a-z])", r"flash_?mla", r"verify_?splitkv", r"kv_indices")),
    Category("projection", (r"nvjet", r"split_?k_?reduce", r"gemm", r"cublas", r"cutlass")),
)
"""Kernel names of a model with KDA and MLA layers and experts, as serving engines launch them."""


@dataclass(frozen=True)
class Categories:
    """Categories in the order in which they are asked.

    Raises:
        RefereeError: two have one name.
    """

    members: tuple[Category, ...] = DEFAULT

    def __post_init__(self) -> None:
        names = [c.name for c in self.members]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise RefereeError("referee", [Reason("categories named twice", repr(twice), "each name once")])

    @classmethod
    def extended(cls, first: Iterable[Category]) -> Categories:
        """The given categories, asked before the default ones; one of a default name replaces that one."""
        own = tuple(first)
        names = {c.name for c in own}
        return cls((*own, *(c for c in DEFAULT if c.name not in names)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names in order, `other` last."""
        return (*(c.name for c in self.members), OTHER)

    def of(self, kernel: str) -> str:
        """The category of a kernel's name."""
        return _category_of(self, kernel)


@functools.lru_cache(maxsize=65536)
def _category_of(categories: Categories, kernel: str) -> str:
    for category in categories.members:
        if any(re.search(pattern, kernel, re.IGNORECASE) for pattern in category.patterns):
            return category.name
    return OTHER
