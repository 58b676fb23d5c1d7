"""AUD-2 outside of functions and classes: each lost or changed statement is a finding of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.audit.finding import Audit

Run = Callable[..., Audit]
MODULE = """
import torch
from .slow import impl
from .fast import impl
TABLE = {64: 4}
TABLE[256] = 16
assert TABLE
torch.backends.cuda.matmul.allow_tf32 = False
torch.library.impl("pkg::scale", "CUDA", impl)
impl.register_fake = lambda x: x
if SM90:
    def path(x):
        assert x
        return 1
else:
    def path(x):
        return 2
"""
CUDA = """#include "util.cuh"
constexpr int kWarps = 8;
enum class Mode { kFast = 0, kSlow = 1 };
template <int N> __global__ void tr(int n) { n = N; }
template __global__ void tr<32>(int n);
"""


def told(found: Audit) -> list[tuple[str, str, str]]:
    """Rule, class and symbol of every finding beside AUD-1."""
    return [(f.rule, f.category, f.symbol) for f in found.findings if f.rule != "AUD-1"]


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("TABLE[256] = 16\n", "", ("AUD-2", "lost statement", "TABLE[256]")),
        ("assert TABLE\n", "", ("AUD-2", "lost statement", "assert")),
        ("= False", "= True", ("AUD-2", "changed statement", "torch.backends.cuda.matmul.allow_tf32")),
        (
            'torch.library.impl("pkg::scale", "CUDA", impl)\n',
            "",
            ("AUD-2", "lost statement", "torch.library.impl"),
        ),
        ("x: x", "x: 0", ("AUD-2", "changed statement", "impl.register_fake")),
        ("assert TABLE\n", "assert TABLE\nTABLE.clear()\n", ("AUD-2", "added statement", "TABLE.clear")),
        ("if SM90", "if not SM90", ("AUD-2", "changed statement", "path")),
        ("        assert x\n", "", ("AUD-11", "retyped", "path")),
        (
            "from .slow import impl\nfrom .fast import impl\n",
            "from .fast import impl\nfrom .slow import impl\n",
            ("AUD-2", "changed import", "impl"),
        ),
    ],
)
def test_each_statement_of_a_module_is_a_finding(old: str, new: str, wanted: tuple[str, str, str], audit: Run) -> None:
    """Named by what it sets, calls or guards, so that allowing AUD-1 hides none of them."""
    assert old in MODULE
    found = audit({"a.py": MODULE}, {"a.py": MODULE.replace(old, new)})
    assert told(found) == [wanted]


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ('#include "util.cuh"\n', "", ("AUD-2", "lost statement", "util.cuh")),
        ("kWarps = 8", "kWarps = 4", ("AUD-2", "changed statement", "kWarps")),
        ("kFast = 0, kSlow = 1", "kFast = 1, kSlow = 0", ("AUD-2", "changed statement", "Mode")),
        ("template __global__ void tr<32>(int n);\n", "", ("AUD-2", "lost statement", "tr")),
    ],
)
def test_each_statement_of_a_cuda_file_is_a_finding(
    old: str, new: str, wanted: tuple[str, str, str], audit: Run
) -> None:
    """Constants, enumerations, instantiations and includes are named like functions."""
    assert old in CUDA
    found = audit({"a.cu": CUDA}, {"a.cu": CUDA.replace(old, new)})
    assert told(found) == [wanted]


def test_statements_in_another_order_are_not_told_one_by_one(audit: Run) -> None:
    """Nothing was lost: AUD-1 says that the file differs."""
    assert told(audit({"a.cu": CUDA}, {"a.cu": "".join(reversed(CUDA.splitlines(keepends=True)))})) == []
