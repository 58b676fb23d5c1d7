"""AUD-11: a finding that names one part of a change never hides the rest of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.audit.finding import Audit

Run = Callable[..., Audit]
HEAD = "import triton\n@triton.jit\ndef k(x, out, n): ...\n"
RUN = """
@cache
def run(x, strict=True):
    if x.dtype != 1:
        raise TypeError
    out = empty_like(x)
    k[(1,)](x, out, 4, num_warps=8)
    return out
"""
CUDA = "__global__ void __launch_bounds__(128, 2) f(int n) { CHECK(n); int i = n; g(i + 1); }\n"


def rules(found: Audit) -> set[str]:
    """Rules of the findings beside AUD-1."""
    return {f.rule for f in found.findings if f.rule != "AUD-1"}


PARTS = {
    "option": ("num_warps=8", "num_warps=4", "AUD-5"),
    "decorator": ("@cache\n", "", "AUD-5"),
    "default": ("strict=True", "strict=False", "AUD-3"),
    "lost guard": ("    if x.dtype != 1:\n        raise TypeError\n", "", "AUD-6"),
    "changed guard": ("x.dtype != 1", "x.dtype != 2", "AUD-6"),
}


@pytest.mark.parametrize("part", PARTS)
def test_what_a_finding_names_is_not_told_twice(part: str, audit: Run) -> None:
    """An option, a decorator, a default or a guard alone is explained."""
    old, new, rule = PARTS[part]
    assert rules(audit({"a.py": HEAD + RUN}, {"a.py": HEAD + RUN.replace(old, new)})) == {rule}


@pytest.mark.parametrize("part", PARTS)
def test_what_no_finding_names_is_told_beside_it(part: str, audit: Run) -> None:
    """The same with another computation: AUD-11 stands beside the finding, and cannot be allowed with it."""
    old, new, rule = PARTS[part]
    export = RUN.replace(old, new).replace("empty_like(x)", "zeros_like(x) + 1")
    found = audit({"a.py": HEAD + RUN}, {"a.py": HEAD + export})
    assert rules(found) == {rule, "AUD-11"}
    (retyped,) = [f for f in found.findings if f.rule == "AUD-11"]
    assert (retyped.symbol, retyped.severity) == ("run", "silent-wrong")
    assert retyped.lost == "the body of run changed in place, in more than the other findings about it name"


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("128, 2", "128, 1", {"AUD-5"}),
        ("int n", "long n", {"AUD-3"}),
        ("CHECK(n); ", "", {"AUD-6", "AUD-11"}),
    ],
)
def test_cuda(old: str, new: str, wanted: set[str], audit: Run) -> None:
    """A header that a finding names is explained, a body never is."""
    assert rules(audit({"a.cu": CUDA}, {"a.cu": CUDA.replace(old, new)})) == wanted
    both = CUDA.replace(old, new).replace("i + 1", "i - 1")
    assert rules(audit({"a.cu": CUDA}, {"a.cu": both})) == wanted | {"AUD-11"}


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("return 1", "return 2", ["C.f"]),
        ("    a = 1\n    b = 2\n", "    b = 2\n    a = 1\n", ["C"]),
        ("    register(a)\n", "", ["C"]),
        ("    def g(self): return 1\n", "", []),
    ],
)
def test_classes(old: str, new: str, wanted: list[str], audit: Run) -> None:
    """A class is told by its methods; the order of attributes and other statements count beside a changed method."""
    source = (
        "class C:\n    a = 1\n    b = 2\n    register(a)\n    def f(self, n=1): return 1\n    def g(self): return 1\n"
    )
    for text in (source, source.replace("n=1", "n=2")):
        found = audit({"a.py": source}, {"a.py": text.replace(old, new, 1)})
        assert [f.symbol for f in found.findings if f.rule == "AUD-11"] == wanted
