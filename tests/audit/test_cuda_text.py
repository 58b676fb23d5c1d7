"""CUDA text as tokens: blocks, macros, guards, marks; comments, formatting and names of locals do not count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.audit.cuda_text import PDL, CudaFile

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


BODY = """
struct P { float* q; int rows; int cols; };
__global__ void f(P p) {
    int x = blockIdx.x * 32 + threadIdx.x;
    int y = blockIdx.y * 32 + threadIdx.y;
    int rows = p.rows;
    int cols = p->cols;
    if (x >= cols || y >= rows) return;
    p.q[y * cols + x] = 2;
}
"""


def swapped(text: str, one: str, two: str) -> str:
    """The text with two pieces in each other's place."""
    return text.replace(one, "@").replace(two, one).replace("@", two)


@pytest.mark.parametrize(
    ("one", "two"),
    [("int rows =", "int cols ="), ("blockIdx.x", "blockIdx.y"), ("int rows;", "int cols;"), ("p.rows", "p->cols")],
)
def test_a_swap_of_members_or_fields_is_no_cosmetic_change(one: str, two: str) -> None:
    """A member keeps its name, whatever a local is called; the fields of a type are no locals."""
    assert CudaFile(swapped(BODY, one, two)).fingerprint != CudaFile(BODY).fingerprint


def test_the_fields_of_a_local_type_are_no_locals() -> None:
    """A struct inside of a function has a layout too."""
    text = "void f() { struct S { int a; int b; }; S s = {1, 2}; g(s.a, s.b); }"
    assert CudaFile(swapped(text, "int a;", "int b;")).fingerprint != CudaFile(text).fingerprint


def test_a_local_with_the_name_of_a_member_may_be_renamed() -> None:
    """The member stays, the local goes by its number; so in a member function."""
    renamed = BODY.replace("int rows =", "int r =").replace("y >= rows", "y >= r")
    assert CudaFile(renamed).fingerprint == CudaFile(BODY).fingerprint
    member = "struct S { int n; int f() { int a = n; return a + n; } };"
    assert CudaFile(member.replace("a =", "b =").replace("a +", "b +")).fingerprint == CudaFile(member).fingerprint


def test_a_directive_counts_where_it_stands() -> None:
    """The same `#pragma unroll` before the other loop is another program."""
    loops = ["for (;;) a();\n", "for (;;) b();\n"]
    texts = ["void f() {\n" + head + tail + "}" for head, tail in (("#pragma unroll\n", "".join(loops)),)]
    moved = "void f() {\n" + loops[0] + "#pragma unroll\n" + loops[1] + "}"
    assert CudaFile(texts[0]).fingerprint != CudaFile(moved).fingerprint


@pytest.mark.parametrize(
    "text", ["/*" + "x" * 300_000, "/* " * 100_000, 'R"(' * 100_000, "#define a " + "/*" * 100_000]
)
def test_a_long_token_is_read_once(text: str) -> None:
    """A comment without end, and what looks like many: quadratic time would not end here."""
    file = CudaFile(text)
    assert list(file.marks()) == []
    assert len(file.tokens) + len(file.directives) == 1


def test_the_marks_of_programmatic_launch_start_at_a_word() -> None:
    """A pattern that may begin anywhere in a word costs the square of its length."""
    assert not any(part.startswith(r"\w") for part in PDL.pattern.split("|"))
    assert [t.text for t in CudaFile("bool kHasEnablePDL = x_enable_pdl_2;").marks()] == [
        "kHasEnablePDL",
        "x_enable_pdl_2",
    ]


def test_statements_outside_of_blocks_have_names() -> None:
    """Constants, enumerations, instantiations, initialisers, includes; functions and types are none."""
    text = """
    #include "util.cuh"
    namespace a { namespace {
    constexpr int kWarps = 8;
    enum class Mode { kFast = 0, kSlow = 1 };
    struct S { int rows; };
    int table[] = {1, 2};
    void f() { int hidden = 1; }
    template __global__ void tr<32, true>(S s);
    }}
    """
    assert [(n, t.text) for n, t in CudaFile(text).statements()] == [
        ("util.cuh", '#include "util.cuh"'),
        ("kWarps", "constexpr int kWarps = 8"),
        ("Mode", "enum class Mode { kFast = 0 , kSlow = 1 }"),
        ("table", "int table [ ] = { 1 , 2 }"),
        ("tr", "template __global__ void tr < 32 , true > ( S s )"),
    ]


@pytest.mark.parametrize(
    "use",
    ["\n#pragma unroll a\nfor (;;)", 'asm("mov %[a], %[b];" :: [a] "r"(a), [b] "r"(b));', "\n#define USE g(a)\nUSE;"],
)
def test_a_local_that_a_directive_or_assembly_names_keeps_its_name(use: str) -> None:
    """The text that names it is not renamed with it, so that the two versions are different programs."""
    ours = "void f() { int a = 4; int b = 8; " + use + " h(a, b); }"
    theirs = ours.replace("int a = 4; int b = 8", "int b = 4; int a = 8").replace("h(a, b)", "h(b, a)")
    theirs = theirs.replace('[a] "r"(a), [b] "r"(b)', '[b] "r"(b), [a] "r"(a)')
    assert CudaFile(ours).fingerprint != CudaFile(theirs).fingerprint
