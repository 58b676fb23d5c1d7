"""AUD-6: assertions, raises, architecture conditions, masks, branches, calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.audit.finding import Audit

Run = Callable[..., Audit]


def told(audit: Audit) -> list[tuple[str, str]]:
    """Class and words of the guard findings."""
    return [(f.category, f.lost) for f in audit.findings if f.rule == "AUD-6"]


@pytest.mark.parametrize(
    ("source", "export", "expected"),
    [
        ("assert x > 0", "pass", [("lost guard", "the assertion `x > 0` is gone")]),
        ("if x < 0: raise ValueError(x)", "pass", [("lost guard", "`raise ValueError` when `x < 0` is gone")]),
        ("if x < 0: raise E(x)", "if x < 1: raise E(x)", [("lost guard", "`raise E` when `x < 0` is gone")]),
        ("if x: ...\n    else: raise E", "if x: ...", [("lost guard", "`raise E` when `not x` is gone")]),
        ("if x > 4: x += 1", "pass", [("lost branch", "the branch under `x > 4` is gone")]),
        (
            "if get_device_capability() >= (9, 0): x += 1",
            "x += 1",
            [("lost arch condition", "the branch under `get_device_capability() >= (9, 0)` is gone")],
        ),
        ("return fast(x) if x > 4 else x", "return x", [("lost call", "the call of fast when `x > 4` is gone")]),
        ("if x > 4: return fast(x)", "return x", [("lost call", "the call of fast when `x > 4` is gone")]),
        ("tl.load(x, mask=x < 4)", "tl.load(x)", [("lost mask", "1 of 1 masked tl.load lost their mask"),
                                                 ("weaker mask", "the mask of tl.load lost `x < 4`")]),
        ("tl.load(x, x < 4)", "tl.load(x)", [("lost mask", "1 of 1 masked tl.load lost their mask"),
                                            ("weaker mask", "the mask of tl.load lost `x < 4`")]),
        ("tl.store(x, 1, mask=(x < 4) & (x > 1))", "tl.store(x, 1, mask=x < 4)",
         [("weaker mask", "the mask of tl.store lost `x > 1`")]),
        ("m = (x < 4) & (x > 1)\n    tl.store(x, 1, mask=m)", "m = x > 1\n    tl.store(x, 1, mask=m)",
         [("weaker mask", "the mask of tl.store lost `x < 4`")]),
    ],
)  # fmt: skip
def test_each_kind(source: str, export: str, expected: list[tuple[str, str]], audit: Run) -> None:
    """One loss of each kind, told once, in words that name the condition."""
    trees = [{"a.py": f"def fast(x): ...\ndef f(x):\n    {body}\n"} for body in (source, export)]
    assert told(audit(*trees)) == expected


@pytest.mark.parametrize(
    ("source", "export"),
    [
        ("tl.load(x, mask=x < 4)", "tl.load(x, mask=(x < 4) & (x > 1))"),
        ("y = x < 4\n    tl.load(x, mask=y)", "tl.load(x, mask=x < 4)"),
        ("tl.load(x, mask=x < 4); tl.load(x, mask=x < 4)", "tl.load(x, mask=x < 4)"),
        ("torch.load(x)", "torch.load(x + 1)"),
        ("y = x + 1\n    assert y > 0", "z = x + 1\n    assert z > 0"),
        ("pass", "assert x"),
    ],
    ids=["stronger-mask", "named-mask", "one-access-less", "other-load", "renamed", "new-guard"],
)
def test_what_is_no_loss(source: str, export: str, audit: Run) -> None:
    """Stronger masks, masks behind names, renamed locals and new guards."""
    trees = [{"a.py": f"def f(x):\n    {body}\n"} for body in (source, export)]
    assert told(audit(*trees)) == []


def test_a_mask_through_keywords_is_unknown(audit: Run) -> None:
    """`tl.load(x, **options)` may pass a mask: it is not held against the export."""
    trees = [{"a.py": f"def f(x, o):\n    tl.load(x, {tail})\n"} for tail in ("mask=x < 4", "**o")]
    assert [category for category, _ in told(audit(*trees))] == ["weaker mask"]


def test_calls_of_libraries_are_no_paths(audit: Run) -> None:
    """Only a call of the tree's own code is a path that can be lost."""
    trees = [{"a.py": f"import torch\ndef f(x):\n    {body}\n"} for body in ("torch.cuda.synchronize()", "pass")]
    assert told(audit(*trees)) == []
