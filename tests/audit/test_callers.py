"""AUD-4 and AUD-7: calls that no longer bind, and live callers of what is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.audit.finding import Audit

Run = Callable[..., Audit]


def told(audit: Audit, rule: str) -> list[tuple[str, str, str]]:
    """File, severity and words of the findings of one rule."""
    return [(f.file, f.severity, f.lost) for f in audit.findings if f.rule == rule]


KERNEL = "@triton.jit\ndef k(x, n, v2p, M: tl.constexpr): ...\n"


@pytest.mark.parametrize(
    ("call", "export", "why"),
    [
        ("k[g](x, 1, v2p=2, M=4)", "k(x, n)", "no parameter takes the keyword v2p, M"),
        ("k[g](x, 1, 2, M=4)", "k(x, n, M: tl.constexpr)", "M is passed by position and by keyword"),
        ("k[g](x, 1, 2, 4)", "k(x, n)", "it passes 4 positional arguments, 2 are taken"),
        ("k[g](x, 1, 2, M=4, num_warps=4)", "k(x, n, v2p, M: tl.constexpr, R)", "the parameter R gets no argument"),
    ],
)
def test_a_launch_that_does_not_bind(call: str, export: str, why: str, audit: Run) -> None:
    """Keywords, arity, doubled and missing arguments, at the caller's file and line."""
    user = f"from k import k\ndef run(x, g):\n    {call}\n"
    found = audit({"k.py": KERNEL, "user.py": user}, {"k.py": f"@triton.jit\ndef {export}: ...\n", "user.py": user})
    assert told(found, "AUD-4") == [("user.py", "crash", f"the launch of k (k.py) at line 3: {why}")]


@pytest.mark.parametrize(
    "call", ["k[g](x, 1, **o)", "k[g](*a)", "other(x, v2p=1)", "x.k(v2p=1)", "getattr(m, 'k')(v2p=1)"]
)
def test_what_is_unknown_is_not_reported(call: str, audit: Run) -> None:
    """Arguments behind stars, and names that cannot be followed."""
    user = f"from k import k\ndef run(x, g, o, a, m):\n    {call}\n"
    found = audit({"k.py": KERNEL, "user.py": user}, {"k.py": "@triton.jit\ndef k(x, n): ...\n", "user.py": user})
    assert told(found, "AUD-4") == []


def test_a_call_that_never_bound_is_not_the_exports_fault(audit: Run) -> None:
    """Only what bound before is a loss."""
    user = "from k import k\ndef run(x, g): k[g](x, wrong=1)\n"
    found = audit({"k.py": KERNEL, "user.py": user}, {"k.py": "@triton.jit\ndef k(x, n): ...\n", "user.py": user})
    assert told(found, "AUD-4") == []


def test_a_caller_that_changed_along_is_no_crash(audit: Run) -> None:
    """In the same file it is the signature's finding; in another file of the scope a feature was dropped on both sides."""
    before, after = "from k import k\ndef run(x): k[1](x, 1, 2, M=4)\n", "from k import k\ndef run(x): k[1](x, 1)\n"
    export = "@triton.jit\ndef k(x, n): ...\n"
    whole = audit({"k.py": KERNEL, "user.py": before}, {"k.py": export, "user.py": after})
    ((_, severity, words),) = told(whole, "AUD-4")
    assert severity == "silent-wrong"
    assert words.endswith("the export's own version of the caller no longer passes it")
    narrow = audit({"k.py": KERNEL, "user.py": before}, {"k.py": export, "user.py": after}, scope=("k.py",))
    assert [s for _, s, _ in told(narrow, "AUD-4")] == ["crash"]
    one_file = audit({"k.py": KERNEL + before.split("\n", 1)[1]}, {"k.py": export + after.split("\n", 1)[1]})
    assert told(one_file, "AUD-4") == []


@pytest.mark.parametrize(
    ("source", "export", "call"),
    [
        ("class C:\n    def __init__(self, a, b): ...\n", "class C:\n    def __init__(self, a): ...\n", "C(1, 2)"),
        ("@dataclass\nclass C:\n    a: int\n    b: int\n", "@dataclass\nclass C:\n    a: int\n", "C(a=1, b=2)"),
        ("def C(a, *, b=1): ...\n", "def C(a): ...\n", "C(1, b=2)"),
        (
            "class C:\n    @staticmethod\n    def m(a, b): ...\n",
            "class C:\n    @staticmethod\n    def m(a): ...\n",
            "C.m(1, 2)",
        ),
    ],
    ids=["init", "dataclass", "keyword-only", "static"],
)
def test_constructors_and_methods_bind_too(source: str, export: str, call: str, audit: Run) -> None:
    """A class is called with what its constructor takes."""
    user = f"from c import C\ndef run():\n    return {call}\n"
    found = audit({"c.py": source, "user.py": user}, {"c.py": export, "user.py": user})
    assert [(file, severity) for file, severity, _ in told(found, "AUD-4")] == [("user.py", "crash")]


def test_the_exports_own_call_must_bind(audit: Run) -> None:
    """An export that typed its caller wrongly is told, though the kernel is untouched."""
    found = audit(
        {"k.py": KERNEL, "user.py": "from k import k\ndef run(x): k[1](x, 1, 2, M=4)\n"},
        {"k.py": KERNEL, "user.py": "from k import k\ndef run(x): k[1](x, 1, 2, MULT=4)\n"},
    )
    ((file, severity, words),) = told(found, "AUD-4")
    assert (file, severity) == ("user.py", "crash")
    assert words == "the export's own call of k (k.py) at line 2: no parameter takes the keyword MULT"


def test_live_callers_of_a_lost_symbol(audit: Run) -> None:
    """Every place, with the condition of the import that only a request would run."""
    source = {
        "pkg/a.py": "def gone(): ...\ndef kept(): ...\n",
        "pkg/user.py": "def f(m):\n    if m == 1:\n        from pkg.a import gone\n        gone()\n",
        "pkg/other.py": "import pkg.a\ndef g(): pkg.a.gone()\n",
    }
    found = audit(source, {**source, "pkg/a.py": "def kept(): ...\n"})
    (finding,) = [f for f in found.findings if f.rule == "AUD-7"]
    assert (finding.file, finding.symbol, finding.severity) == ("pkg/a.py", "gone", "crash")
    assert [(e.path, e.line, e.text) for e in finding.evidence] == [
        ("pkg/other.py", 2, "def g(): pkg.a.gone()"),
        ("pkg/user.py", 3, "when m == 1"),
        ("pkg/user.py", 4, "when m == 1"),
    ]
    assert "in 3 places; for one when `m == 1` (pkg/user.py:3)" in finding.lost


def test_live_callers_of_a_missing_module(audit: Run) -> None:
    """A file that is not in the export, imported inside a branch of a file outside the scope."""
    source = {
        "pkg/kernels/single.py": "def single(): ...\n",
        "pkg/kernels/rest.py": "x = 1\n",
        "pkg/run.py": "def f(m):\n    if m == 1:\n        from pkg.kernels.single import single\n        single()\n",
    }
    export = {"pkg/kernels/rest.py": "x = 1\n"}
    found = audit(source, export, scope=("pkg/kernels",))
    assert told(found, "AUD-7") == [
        ("pkg/kernels/single.py", "crash",
         "the module is gone, and the served branch uses it in 2 places; for one when `m == 1` (pkg/run.py:3)"),
    ]  # fmt: skip


def test_a_symbol_that_moved_behind_a_re_export_is_not_gone(audit: Run) -> None:
    """The old place still hands it out: no caller breaks."""
    source = {"a.py": "def f(x): return x\n", "user.py": "from a import f\nf(1)\n"}
    export = {"a.py": "from b import f\n", "b.py": "def f(x): return x\n", "user.py": source["user.py"]}
    found = audit(source, export)
    assert {f.rule for f in found.findings} == {"AUD-1"}


def test_a_symbol_that_nobody_uses_has_no_live_caller(audit: Run) -> None:
    """It is still a missing symbol."""
    found = audit({"a.py": "def f(): ...\nx = 1\n"}, {"a.py": "x = 1\n"})
    assert told(found, "AUD-7") == []
    assert len(told(found, "AUD-2")) == 1


def test_what_the_export_still_names_breaks_in_the_export(audit: Run) -> None:
    """A helper was dropped while its own file calls it."""
    source = "def helper(): ...\ndef f(): return helper()\n"
    found = audit({"a.py": source}, {"a.py": "def f(): return helper()\n"})
    assert [file for file, _, _ in told(found, "AUD-7")] == ["a.py"]
