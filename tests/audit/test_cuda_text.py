"""CUDA text as tokens: blocks, macros, guards, marks; comments, formatting and names of locals do not count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.audit.cuda_text import CudaFile

TEXT = """
// __global__ void commented(int x) {}
#pragma once
#include <cuda.h>
#define WIDE(x) \\
    ((x) * 4)  // remark
namespace a { namespace {
struct Shape {
    int rows;
    int area() const { return rows * 4; }
};
template <typename T, int N = 4>
__global__ void __launch_bounds__(128, 2) scale(T* x, const std::pair<int, int> n) {
    static_assert(N > 0, "N { is positive");
    const int i = threadIdx.x;
    if (i < N) { helper<T>(x, i); }
    asm volatile("griddepcontrol.wait;");
}
}}
int table[] = {1, 2};
extern "C" void entry(int n) { scale<float, 4><<<n, 128>>>(nullptr, {1, 2}); }
"""


def test_blocks() -> None:
    """Functions and types, members included; comments, initialisers and namespaces are none."""
    file = CudaFile(TEXT)
    assert {n: (b.kind, b.line) for n, b in file.blocks.items()} == {
        "Shape": ("type", 8),
        "area": ("function", 10),
        "scale": ("function", 12),
        "entry": ("function", 21),
    }


def test_parameters_and_bounds() -> None:
    """Commas inside template arguments do not split a parameter."""
    file = CudaFile(TEXT)
    assert file.blocks["scale"].parameters() == ["T * x", "const std :: pair < int , int > n"]
    assert [(n, t.text) for n, t in file.launch_bounds()] == [("scale", "128 , 2")]


def test_macros_are_one_line() -> None:
    """Continuation lines and remarks are folded away."""
    assert CudaFile(TEXT).macros["WIDE"].text == "#define WIDE(x) ((x) * 4)"


def test_marks_of_dependent_launch() -> None:
    """Inline assembly and launch attributes, with their lines."""
    file = CudaFile(TEXT + "\ncudaLaunchAttribute a; a.id = cudaLaunchAttributeProgrammaticStreamSerialization;\n")
    assert [t.text for t in file.marks()] == [
        "griddepcontrol.wait", "cudaLaunchAttribute", "cudaLaunchAttributeProgrammaticStreamSerialization",
    ]  # fmt: skip


def test_guards() -> None:
    """Assertions and conditions, locals written as `_`; `#if` conditions on the architecture are of their own kind."""
    file = CudaFile(
        "#if __CUDA_ARCH__ >= 900\n#endif\n" + TEXT + 'void f() { TORCH_CHECK(x.dim() == 2, "no"); throw E; }'
    )
    assert [(kind, t.text) for kind, t in file.guards()] == [
        ("lost arch condition", "#if __CUDA_ARCH__ >= 900"),
        ("lost guard", 'static_assert (N > 0 , "N { is positive")'),
        ("lost branch", "if (_ < N)"),
        ("lost guard", 'TORCH_CHECK (x . dim ( ) == 2 , "no")'),
        ("lost guard", "throw (E ;)"),
    ]


def test_calls_and_launches() -> None:
    """Plain calls, templates and `<<<` launches of the names that are asked for."""
    file = CudaFile(TEXT)
    assert [t.text for t in file.calls(file.blocks["scale"], {"helper", "absent"})] == ["helper"]
    assert [t.text for t in file.calls(file.blocks["entry"], {"scale"})] == ["scale"]


@pytest.mark.parametrize(
    ("old", "new"),
    [("int i =", "int  lane ="), ("// remark", "/* x */"), ("{ return rows", "{\n  return rows"), ("\\\n", "\\\n ")],
)
def test_cosmetic_edits(old: str, new: str) -> None:
    """Names of locals, comments and white space."""
    changed = TEXT.replace(old, new)
    if "lane" in new:
        changed = changed.replace("(i <", "(lane <").replace("x, i)", "x, lane)")
    assert changed != TEXT
    assert CudaFile(changed).fingerprint == CudaFile(TEXT).fingerprint


@pytest.mark.parametrize(
    ("old", "new"),
    [("i < N", "i <= N"), ("rows * 4", "rows * 8"), ("#pragma once", ""), ('wait;"', 'launch;"'), ("T* x", "T* y")],
)
def test_other_edits(old: str, new: str) -> None:
    """Operators, constants, directives, strings, parameters."""
    assert CudaFile(TEXT.replace(old, new)).fingerprint != CudaFile(TEXT).fingerprint


def test_overloads_are_kept_apart() -> None:
    """Two functions of one name are two blocks."""
    assert list(CudaFile("void f(int a) { }\nvoid f(float a) { }\n").blocks) == ["f", "f#2"]


@given(st.text(alphabet="{}()<>;=\"'/*#\\ \nabf1", max_size=60))
def test_any_text_is_read(text: str) -> None:
    """Broken text gives some blocks or none, and every line number lies in the file."""
    file = CudaFile(text)
    assert all(1 <= b.line <= text.count("\n") + 1 for b in file.blocks.values())
    assert all(1 <= t.line <= text.count("\n") + 1 for _, t in file.guards())
