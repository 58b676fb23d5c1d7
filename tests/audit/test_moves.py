"""AUD-11: a moved block is fine, a retyped one is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.audit.finding import Audit

Run = Callable[..., Audit]
BLOCK = "def radix(keys, n):\n    best = keys[0]\n    for i in range(1, n):\n        best = max(best, keys[i])\n    return best\n"


def retyped(audit: Audit) -> list[tuple[str, str]]:
    """Symbol and words of the retyped blocks."""
    return [(f.symbol, f.lost) for f in audit.findings if f.rule == "AUD-11"]


@pytest.mark.parametrize(
    "moved",
    [BLOCK, BLOCK.replace("best", "top"), BLOCK.replace("def radix", "def radix_shared"), BLOCK + "# a remark\n"],
    ids=["verbatim", "locals", "renamed", "comment"],
)
def test_a_verbatim_move_is_no_finding(moved: str, audit: Run) -> None:
    """Moved to a new file, also under a new name or with other names of locals."""
    assert retyped(audit({"a.py": BLOCK + "x = 1\n"}, {"a.py": "x = 1\n", "b.py": moved})) == []


def test_a_move_that_changed_is_retyped(audit: Run) -> None:
    """The same name elsewhere, with another body."""
    found = audit({"a.py": BLOCK + "x = 1\n"}, {"a.py": "x = 1\n", "b.py": BLOCK.replace("max(", "min(")})
    assert retyped(found) == [("radix", "radix was not moved but typed again, as radix in b.py:1")]


def test_a_retyped_block_under_another_name_is_seen(audit: Run) -> None:
    """By likeness of its tokens."""
    other = BLOCK.replace("def radix", "def select").replace("range(1, n)", "range(n)")
    found = audit({"a.py": BLOCK + "x = 1\n"}, {"a.py": "x = 1\n", "b.py": other})
    assert retyped(found) == [("radix", "radix was not moved but typed again, as select in b.py:1")]


def test_unlike_blocks_are_no_retype(audit: Run) -> None:
    """A new function that has nothing of the lost one."""
    other = "class Holder:\n    size: int = 3\n    def __enter__(self): return self.open(self.size, mode='r')\n"
    found = audit({"a.py": BLOCK + "x = 1\n"}, {"a.py": "x = 1\n", "b.py": other})
    assert retyped(found) == []


def test_a_namesake_of_another_kind_is_no_retype(audit: Run) -> None:
    """`_draw` of one file has nothing to do with `_draw` of another."""
    other = "def radix(path):\n    with open(path) as stream:\n        return {line.strip(): len(line) for line in stream}\n"
    assert retyped(audit({"a.py": BLOCK + "x = 1\n"}, {"a.py": "x = 1\n", "b.py": other})) == []


def test_cuda_blocks_move_too(audit: Run) -> None:
    """A device function that was lifted into a header, and one that was typed again there."""
    body = "__device__ int pick(const int* keys, int n) { int best = keys[0]; for (int i = 1; i < n; ++i) best = max(best, keys[i]); return best; }\n"
    source = {"a.cu": body + "int x;\n"}
    assert retyped(audit(source, {"a.cu": "int x;\n", "b.cuh": "#pragma once\n" + body.replace("best", "top")})) == []
    found = audit(source, {"a.cu": "int x;\n", "b.cuh": body.replace("i = 1", "i = 0")})
    assert retyped(found) == [("pick", "pick was not moved but typed again, as pick in b.cuh:1")]


def test_the_test_asks_for_every_output(audit: Run) -> None:
    """Ids as sets and as sequences: equal weights proved nothing once."""
    found = audit({"a.py": BLOCK}, {"a.py": BLOCK.replace("max(", "min(")})
    assert [f.test for f in found.findings if f.rule == "AUD-11"] == [
        "Compare every output of both blocks bit by bit over a shape grid with both values of each boolean constant; "
        "indices as sets and as sequences."
    ]
