"""Uses of a definition: who calls, launches, imports or reads it, and under which condition."""

from __future__ import annotations

import pytest

from kda_lab.audit.names import Cache, Code
from kda_lab.audit.reading import Tree
from kda_lab.audit.uses import Use, uses

KERNELS = b"""
@triton.jit
def kernel(x): ...
def run(x): ...
class Worker:
    def step(self, x): return self.helper(x)
    def helper(self, x): ...
"""


def found(text: str, wanted: set[str] | None = None) -> list[Use]:
    """Uses in a module beside the kernels."""
    tree = Tree("t", "source", {"pkg/kernels.py": KERNELS, "pkg/user.py": text.encode()})
    return list(uses(Code(tree, Cache()), "pkg/user.py", wanted))


@pytest.mark.parametrize(
    "text",
    [
        "from pkg.kernels import kernel\ndef f(x): kernel[(1,)](x)\n",
        "from pkg.kernels import kernel as k\ndef f(x): k[(1,)](x)\n",
        "import pkg.kernels as m\ndef f(x): m.kernel[(1,)](x)\n",
        "def f(x):\n    from pkg.kernels import kernel\n    kernel[(1,)](x)\n",
        "from pkg.kernels import kernel\ndef f(x):\n    launch = kernel[(1,)]\n    launch(x)\n",
        "from .kernels import kernel as a\nb = a\ndef f(x):\n    c = b\n    c[(1,)](x)\n",
    ],
    ids=["from", "as", "module", "inside", "bound-launch", "alias-chain"],
)
def test_a_launch_is_found_through_any_name(text: str) -> None:
    """Imports at the top or inside, aliases, and a launch that was bound to a name first."""
    calls = [u for u in found(text, {"kernel"}) if u.call is not None]
    assert [(u.target.name, u.symbol, u.launch) for u in calls] == [("kernel", "f", True)]


def test_guards_and_imports_in_branches() -> None:
    """An import inside a branch counts, with its condition."""
    text = (
        "def f(m, topk):\n    if m == 1 and topk <= 32:\n        from pkg.kernels import run\n        return run(m)\n"
    )
    assert [(u.line, u.guard, u.call is None) for u in found(text)] == [
        (3, "m == 1 and topk <= 32", True),
        (4, "m == 1 and topk <= 32", False),
    ]


def test_shadowed_names_are_unknown() -> None:
    """A parameter or a local of the same name is not the kernel."""
    assert [u for u in found("from pkg.kernels import run\ndef f(run): run(1)\n") if u.call is not None] == []
    assert [u for u in found("from pkg.kernels import run\ndef f():\n    run = g()\n    run(1)\n") if u.call] == []


def test_names_handed_on_are_uses() -> None:
    """A function that is passed as a value is alive."""
    assert {u.line for u in found("from pkg.kernels import run\ndef f(): return map(run, [])\n")} == {1, 2}


def test_methods_of_self() -> None:
    """`self.helper` is the class's own method."""
    tree = Tree("t", "source", {"pkg/kernels.py": KERNELS})
    calls = [u for u in uses(Code(tree, Cache()), "pkg/kernels.py") if u.call is not None]
    assert [(u.symbol, u.target.name) for u in calls] == [("Worker.step", "Worker.helper")]


def test_a_definition_under_a_condition_is_walked_once() -> None:
    """A function under `try` does not show up a second time at module level."""
    text = "from pkg.kernels import run\ntry:\n    def f(): run(1)\nexcept E: pass\n"
    assert [(u.symbol, u.line) for u in found(text) if u.call is not None] == [("f", 3)]


def test_an_unreadable_file_has_no_uses() -> None:
    """A syntax error elsewhere does not stop the search."""
    assert found("def (:\n") == []
