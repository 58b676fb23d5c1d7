"""AUD-2, 3, 5 and 6 of CUDA files: one loss, one finding."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.audit.finding import Audit

Run = Callable[..., Audit]
HELPERS = "void slow(float* x) { }\nvoid fast(float* x) { }\n"


@pytest.mark.parametrize(
    ("source", "export", "rule", "category", "symbol"),
    [
        ("int f() { return 1; }", "", "AUD-2", "missing symbol", "f"),
        ("template <int N> struct S { int x; };", "", "AUD-2", "missing symbol", "S"),
        ("#define N 4", "", "AUD-2", "missing macro", "N"),
        ("#define N 4", "#define N 8", "AUD-2", "changed macro", "N"),
        ("void f(int a, int b) { }", "void f(int a) { }", "AUD-3", "changed parameters", "f"),
        (
            "__global__ void __launch_bounds__(128) f(int a) { }",
            "__global__ void f(int a) { }",
            "AUD-5",
            "changed launch bounds",
            "f",
        ),
        ("void f() { cudaGridDependencySynchronize(); }", "void f() { }", "AUD-5", "lost PDL", "f"),
        ("void f() {\n#pragma unroll 4\n}", "void f() { }", "AUD-5", "changed launch", "f"),
        ("void f(int n) { TORCH_CHECK(n > 0); }", "void f(int n) { }", "AUD-6", "lost guard", "f"),
        ("#if __CUDA_ARCH__ >= 900\n#endif", "", "AUD-6", "lost arch condition", ""),
        (
            "void f(float* x, int n) { if (n < 8) n = 1; }",
            "void f(float* x, int n) { n = 1; }",
            "AUD-6",
            "lost branch",
            "f",
        ),
        ("void f(float* x) { fast(x); slow(x); }", "void f(float* x) { slow(x); }", "AUD-6", "lost call", "f"),
    ],
)
def test_each_kind(source: str, export: str, rule: str, category: str, symbol: str, audit: Run) -> None:
    """The finding has the rule, the class and the symbol, and a test that would confirm it."""
    found = audit({"a.cu": HELPERS + source + "\n"}, {"a.cu": HELPERS + export + "\n"})
    told = [(f.rule, f.category, f.symbol) for f in found.findings if f.rule not in ("AUD-1", "AUD-11")]
    assert told == [(rule, category, symbol)]
    assert all(f.test and f.evidence for f in found.findings)


def test_additions_are_no_losses(audit: Run) -> None:
    """New functions, guards and macros are told by the file's class alone."""
    found = audit({"a.cu": HELPERS}, {"a.cu": HELPERS + "#define X 1\nvoid g(int n) { assert(n); }\n"})
    assert {f.rule for f in found.findings} == {"AUD-1"}


def test_an_unexplained_body_is_retyped(audit: Run) -> None:
    """A changed constant in a body has no rule of its own."""
    found = audit({"a.cu": "int f() { return 1; }\n"}, {"a.cu": "int f() { return 2; }\n"})
    assert [(f.rule, f.symbol) for f in found.findings if f.rule != "AUD-1"] == [("AUD-11", "f")]
