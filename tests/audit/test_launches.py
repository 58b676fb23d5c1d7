"""AUD-5: decorators, launch options, grids, PDL, environment variables, compile flags."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.audit.finding import Audit

Run = Callable[..., Audit]
HEAD = "import triton\n@triton.jit\ndef k(x): ...\n"


def told(audit: Audit, rule: str = "AUD-5") -> list[tuple[str, str, str]]:
    """Class, symbol and words of the findings of one rule."""
    return [(f.category, f.symbol, f.lost) for f in audit.findings if f.rule == rule]


@pytest.mark.parametrize(
    ("source", "export", "category", "words"),
    [
        (
            "k[g](x, num_warps=4)",
            "k[g](x, num_warps=8)",
            "changed launch",
            "num_warps=4 in the call of k became num_warps=8",
        ),
        ("k[g](x, num_warps=4)", "k[g](x)", "changed launch", "num_warps=4 in the call of k is gone"),
        ("k[g](x, launch_pdl=True)", "k[g](x)", "lost PDL", "launch_pdl=True in the call of k is gone"),
        ("k[(x, 2)](x)", "k[(x,)](x)", "changed grid", "grid (x, 2) in the call of k became grid (x,)"),
        ("k[lambda m: (x, m)](x)", "k[lambda m: (x,)](x)", "changed grid", "became grid lambda m: (x,)"),
        (
            "k[g](x, **{'num_stages': 3})",
            "k[g](x, **{})",
            "changed launch",
            "num_stages=3 in the call of a dictionary is gone",
        ),
        ("tl.extra.cuda.gdc_wait()", "pass", "lost PDL", "the call of gdc_wait is gone"),
        ("asm('griddepcontrol.wait;')", "pass", "lost PDL", "inline assembly with griddepcontrol is gone"),
        (
            "os.environ['SERVE_FAST']",
            "pass",
            "lost environment variable",
            "the environment variable SERVE_FAST is no longer read",
        ),
        ("os.getenv('SERVE_FAST', '1')", "pass", "lost environment variable", "SERVE_FAST is no longer read"),
        ("envs.SERVE_FAST.get()", "pass", "lost environment variable", "SERVE_FAST is no longer read"),
        ("return ['-O3', '-lineinfo']", "return ['-O3']", "changed compile flags", "the flag -lineinfo is gone"),
        ("return ['-O3']", "return ['-O3', '--fmad=true']", "changed compile flags", "the flag --fmad=true was added"),
    ],
)
def test_each_kind(source: str, export: str, category: str, words: str, audit: Run) -> None:
    """One difference of each kind inside a function, with both sides in words."""
    trees = [{"a.py": f"{HEAD}def f(x, g):\n    {body}\n"} for body in (source, export)]
    ((found, symbol, lost),) = told(audit(*trees))
    assert (found, symbol) == (category, "f")
    assert words in lost


def test_a_heuristic_behind_a_name_is_seen(audit: Run) -> None:
    """The launch says `num_warps=w` in both; what `w` is assigned differs."""
    source = f"{HEAD}def f(x):\n    w = 8 if x > 256 else 4\n    k[(1,)](x, num_warps=w)\n"
    found = told(audit({"a.py": source}, {"a.py": source.replace("8 if x > 256 else 4", "4")}))
    assert found == [
        ("changed launch", "f", "num_warps=w (8 if x > 256 else 4) in the call of k became num_warps=w (4)")
    ]


@pytest.mark.parametrize(
    ("source", "export", "words"),
    [
        (
            "@triton.jit(do_not_specialize=['n'])",
            "@triton.jit",
            "@triton.jit(do_not_specialize=['n']) became @triton.jit",
        ),
        (
            "@triton.autotune(CONFIGS, key=['n'])\n@triton.jit",
            "@triton.jit",
            "@triton.autotune(CONFIGS, key=['n']) is gone",
        ),
        ("@triton.heuristics({'E': f})\n@triton.jit", "@triton.jit", "@triton.heuristics({'E': f}) is gone"),
        ("@cache", "", "@cache is gone"),
    ],
)
def test_decorators(source: str, export: str, words: str, audit: Run) -> None:
    """A decorator that is gone, or that lost an argument."""
    trees = [{"a.py": f"{decorators}\ndef f(n): ...\n"} for decorators in (source, export)]
    assert told(audit(*trees)) == [("changed decorator", "f", words)]


def test_a_table_of_flags_is_compared_by_platform(audit: Run) -> None:
    """A flag that only one platform of the table must not have."""
    table = 'FLAGS = {{"cuda": ["-O3", "--use_fast_math"], "rocm": ["-O3"{}]}}\n'
    found = audit({"a.py": table.format("")}, {"a.py": table.format(', "--use_fast_math"')})
    assert told(found) == [("changed compile flags", "", "the flag --use_fast_math under 'rocm' was added")]


def test_options_of_a_command_line_are_no_flags(audit: Run) -> None:
    """`add_argument("--seed")` says nothing about a compiler."""
    trees = [{"a.py": f"def f(p):\n    p.add_argument('{name}')\n"} for name in ("--seed", "--seeds")]
    assert told(audit(*trees)) == []


def test_a_launch_that_is_gone_is_not_told_option_by_option(audit: Run) -> None:
    """The lost call is AUD-6's; its options say nothing more."""
    source = f"{HEAD}def f(x):\n    k[(1,)](x, num_warps=4)\n"
    found = audit({"a.py": source}, {"a.py": source.replace("k[(1,)](x, num_warps=4)", "pass")})
    assert told(found) == []
    assert told(found, "AUD-6") == [("lost call", "f", "the call of k is gone")]


def test_a_grid_that_reads_the_same_says_so(audit: Run) -> None:
    """The text of the grid is equal, what a name in it is assigned is not."""
    source = f"{HEAD}def f(x):\n    n = x.numel()\n    grid = (n,)\n    k[grid](x)\n"
    found = audit({"a.py": source}, {"a.py": source.replace("numel()", "numel() - 1")})
    words = "grid grid ((n,)) in the call of k reads the same, and a name in it is assigned something else"
    assert told(found) == [("changed grid", "f", words)]
