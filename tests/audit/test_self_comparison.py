"""AUD-12: an oracle that runs the kernel under test proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.audit.finding import Audit

Run = Callable[..., Audit]
KERNELS = """
@triton.jit
def _device(x): return x
@triton.jit
def _kernel(x): _device(x)
@triton.jit
def _other(x): _device(x)
def topk(x): _kernel[(1,)](x)
def slow(x): _other[(1,)](x)
def custom(x): return torch.ops.pkg.topk(x)
def sort_oracle(x): return sorted(x)
def wrapped_reference(x): return topk(x)
def deep_reference(x): return wrapped_reference(x)
def other_reference(x): slow(x)
"""


def void(audit: Run, body: str) -> list[tuple[str, str]]:
    """Test and words of the void tests of one test function."""
    names = "topk, slow, custom, sort_oracle, wrapped_reference, deep_reference, other_reference"
    text = f"from pkg.kernels import {names}\ndef test_it():\n    {body}\n"
    files = {"pkg/kernels.py": KERNELS, "tests/test_topk.py": text}
    return [(f.symbol, f.lost) for f in audit(files, files).findings if f.rule == "AUD-12"]


@pytest.mark.parametrize(
    "body",
    [
        "assert topk(1) == wrapped_reference(1)",
        "assert topk(1) == deep_reference(1)",
        "expected = topk(1)\n    out = topk(1)\n    assert out == expected",
    ],
    ids=["one-step", "two-steps", "same-function"],
)
def test_a_void_test(body: str, audit: Run) -> None:
    """Directly, through another function, or by calling the kernel twice."""
    ((symbol, words),) = void(audit, body)
    assert symbol == "test_it"
    assert "reaches _kernel (pkg/kernels.py), the kernel under test: the test is void" in words


def test_a_custom_op_counts(audit: Run) -> None:
    """`torch.ops` is compiled code as well."""
    ((_, words),) = void(audit, "expected = custom(1)\n    assert custom(2) == expected")
    assert "reaches pkg.topk (torch.ops)" in words


@pytest.mark.parametrize(
    "body",
    [
        "assert topk(1) == sort_oracle(1)",
        "assert topk(1) == other_reference(1)",
        "expected = sort_oracle(1)\n    assert topk(1) == expected",
        "assert wrapped_reference(1) == sort_oracle(1)",
    ],
    ids=["plain", "other-kernel", "assigned", "oracles-only"],
)
def test_an_honest_test(body: str, audit: Run) -> None:
    """Another kernel with the same device function is another kernel."""
    assert void(audit, body) == []


def test_helpers_of_the_test_file_are_followed(audit: Run) -> None:
    """The oracle stands in the test file and calls the package."""
    text = "from pkg.kernels import topk\ndef naive(x): return topk(x)\ndef test_it(): assert topk(1) == naive(1)\n"
    files = {"pkg/kernels.py": KERNELS, "tests/test_topk.py": text}
    (finding,) = audit(files, files).findings
    assert [(e.path, e.line) for e in finding.evidence] == [
        ("tests/test_topk.py", 3), ("tests/test_topk.py", 2), ("pkg/kernels.py", 5),
    ]  # fmt: skip
