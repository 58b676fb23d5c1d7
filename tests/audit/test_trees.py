"""The audit of two trees: ten losses found, nothing on identical or cosmetic pairs, one clear error for bad input."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kda_lab.audit import trees
from kda_lab.audit.finding import Audit
from kda_lab.audit.trees import audit_trees
from kda_lab.errors import AuditError

TOY = Path(__file__).parent / "toy"
SERVED = TOY / "served"
PACKAGE = "python/toyserve/"
LOSSES: list[dict[str, Any]] = yaml.safe_load((TOY / "losses.yaml").read_text())

Run = Callable[..., Audit]


def export_with(folder: Path, losses: list[dict[str, Any]]) -> Path:
    """A copy of the served tree with some losses applied."""
    shutil.copytree(SERVED, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for loss in losses:
        for name, edits in loss["edits"].items():
            path = folder / PACKAGE / name
            for old, new in edits:
                text = path.read_text()
                assert text.count(old) >= 1, f"{loss['name']}: {old!r} is not in {name}"
                path.write_text(text.replace(old, new))
    return folder


def keys(audit: Audit) -> set[tuple[str, str, str, str]]:
    """Rule, class, file and symbol of the findings."""
    return {(f.rule, f.category, f.file.removeprefix(PACKAGE), f.symbol) for f in audit.findings}


def wanted(loss: dict[str, Any]) -> set[tuple[str, str, str, str]]:
    """What the list of losses says must be found."""
    return {(f["rule"], f["class"], f["file"], f["symbol"]) for f in loss["finds"]}


def test_there_are_ten_losses() -> None:
    """The list holds the ten named losses, each once."""
    assert len({loss["name"] for loss in LOSSES}) == len(LOSSES) == 10


def test_an_identical_pair_has_no_finding(tmp_path: Path) -> None:
    """The same tree twice: no finding, every file identical, the audit passes."""
    found = audit_trees(SERVED, export_with(tmp_path / "export", []))
    assert found.findings == ()
    assert found.passed
    assert {f.state for f in found.files} == {"identical"}


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss["name"].replace(" ", "-"))
def test_each_loss_is_found(loss: dict[str, Any], tmp_path: Path) -> None:
    """One loss alone: found by the right rule at the right symbol, and no finding about any other file's code."""
    found = audit_trees(SERVED, export_with(tmp_path / "export", [loss]))
    assert wanted(loss) <= keys(found)
    touched = set(loss["edits"]) | {file for _, _, file, _ in wanted(loss)}
    assert {file for _, _, file, _ in keys(found)} == touched
    assert not found.passed


def test_all_losses_together_are_found(tmp_path: Path) -> None:
    """Ten losses in one export: ten found, and together nothing that no single loss gives."""
    found = audit_trees(SERVED, export_with(tmp_path / "export", LOSSES))
    caught = [loss["name"] for loss in LOSSES if wanted(loss) <= keys(found)]
    assert caught == [loss["name"] for loss in LOSSES]
    singles = [audit_trees(SERVED, export_with(tmp_path / f"one{i}", [loss])) for i, loss in enumerate(LOSSES)]
    assert keys(found) == {key for single in singles for key in keys(single)}


def test_the_lost_parameter_is_reported_where_it_crashes(tmp_path: Path) -> None:
    """The launch through an alias, with keywords that the export's kernel does not take, is named by file and line."""
    loss = next(loss for loss in LOSSES if loss["name"] == "v2p_ptr and PAGE_MULT")
    found = audit_trees(SERVED, export_with(tmp_path / "export", [loss]))
    (crash,) = [f for f in found.findings if f.rule == "AUD-4"]
    assert crash.severity == "crash"
    assert "no parameter takes the keyword v2p_ptr, PAGE_MULT" in crash.lost
    line = (SERVED / PACKAGE / "runtime" / "decode.py").read_text().splitlines()[crash.evidence[0].line - 1]
    assert "v2p_ptr=table" in line


COSMETIC: dict[str, Callable[[str], str]] = {
    "comments": lambda text: text.replace("\n\n\n", "\n\n\n# A remark.\n", 1).replace(
        "import torch\n", "import torch  # x\n"
    ),
    "docstrings": lambda text: re.sub(r'"""[^"]+"""', '"""Other words."""', text),
    "formatting": lambda text: re.sub(r"^( +)return", r"\n\n\1return", text, flags=re.M).replace(
        ", mask=", ",\n            mask="
    ),
}


@pytest.mark.parametrize("edit", ["comments", "docstrings", "formatting"])
def test_cosmetic_edits_are_quiet(edit: str, tmp_path: Path) -> None:
    """Comments, docstrings and formatting: the bytes differ, semantic mode finds nothing."""
    export = export_with(tmp_path / "export", [])
    for path in export.rglob("*.py"):
        path.write_text(COSMETIC[edit](path.read_text()))
    for path in export.rglob("*.cu"):
        path.write_text("// Another remark.\n" + path.read_text().replace("int row", "int  row"))
    strict, semantic = audit_trees(SERVED, export), audit_trees(SERVED, export, semantic=True)
    assert {f.state for f in strict.files} >= {"differs"}
    assert not strict.passed
    assert {(f.rule, f.severity) for f in strict.findings} == {("AUD-1", "cosmetic")}
    assert semantic.passed
    assert semantic.failing == ()


def test_renamed_locals_are_quiet(audit: Run) -> None:
    """Names of locals, in Python, Triton and CUDA, change nothing but the bytes."""
    source = {
        "k.py": """
            @triton.jit
            def kernel(x, n, BLOCK: tl.constexpr):
                offsets = tl.arange(0, BLOCK)
                mask = offsets < n
                tl.store(x + offsets, tl.load(x + offsets, mask=mask) + 1, mask=mask)

            def run(x):
                warps = 8 if x.numel() > 9 else 4
                kernel[(1,)](x, x.numel(), BLOCK=[v for v in (16,)][0], num_warps=warps)
            """,
        "k.cu": "__global__ void f(float* x) { int i = threadIdx.x; if (i < 8) x[i] = i; }",
    }
    export = {
        "k.py": source["k.py"]
        .replace("offsets", "o")
        .replace("mask = ", "m = ")
        .replace("mask=mask", "mask=m")
        .replace("warps = 8", "w = 8")
        .replace("num_warps=warps", "num_warps=w")
        .replace("v for v", "u for u"),
        "k.cu": "__global__ void f(float* x) { int lane = threadIdx.x; if (lane < 8) x[lane] = lane; }",
    }
    found = audit(source, export)
    assert [f.state for f in found.files] == ["differs", "differs"]
    assert [f.severity for f in found.findings] == ["cosmetic", "cosmetic"]


def test_a_renamed_parameter_is_not_cosmetic(audit: Run) -> None:
    """Callers may pass a parameter by name."""
    found = audit({"a.py": "def f(x):\n    return x\n"}, {"a.py": "def f(y):\n    return y\n"})
    assert {"AUD-3"} <= {f.rule for f in found.findings}


def test_an_unexplained_change_is_told_as_retyped(audit: Run) -> None:
    """A plus that became a minus is in no list of guards or launches, and is found all the same."""
    found = audit({"a.py": "def f(x):\n    return x + 1\n"}, {"a.py": "def f(x):\n    return x - 1\n"})
    assert [(f.rule, f.category, f.symbol) for f in found.findings if f.rule != "AUD-1"] == [("AUD-11", "retyped", "f")]


def test_the_order_is_the_same_every_time(tmp_path: Path) -> None:
    """Two audits of the same trees give the same record."""
    export = export_with(tmp_path / "export", LOSSES)
    assert audit_trees(SERVED, export) == audit_trees(SERVED, export)


def test_git_revisions_are_trees(tmp_path: Path) -> None:
    """`REPO@REV` and bare revisions of the source's repository give the same findings as folders."""
    repository = export_with(tmp_path / "repository", [])

    def git(*arguments: str) -> None:
        options = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *options, *arguments], cwd=repository, check=True, capture_output=True)

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "served")
    git("tag", "served")
    shutil.rmtree(repository / "python")
    shutil.copytree(export_with(tmp_path / "export", LOSSES) / "python", repository / "python")
    git("commit", "-qam", "export")
    found = audit_trees(f"{repository}@served", f"{repository}@HEAD")
    assert found.findings == audit_trees(SERVED, tmp_path / "export").findings
    assert audit_trees(f"{repository}@served", "HEAD").findings == found.findings
    with pytest.raises(AuditError, match=r"audit: export is 'nowhere'; allowed: an existing folder, REPO@REV"):
        audit_trees(f"{repository}@served", "nowhere")


def test_a_scope_that_names_nothing_is_refused() -> None:
    """A typing error in the scope must not look like a clean audit."""
    with pytest.raises(AuditError, match=r"audit: scope is \['nowhere'\]; allowed: a folder or glob that names a file"):
        audit_trees(SERVED, SERVED, scope=("nowhere",))


def test_callers_outside_the_scope_count(tmp_path: Path) -> None:
    """The scope holds the kernels alone; the crash in the runtime is found all the same."""
    loss = next(loss for loss in LOSSES if loss["name"] == "v2p_ptr and PAGE_MULT")
    found = audit_trees(SERVED, export_with(tmp_path / "export", [loss]), scope=("python/toyserve/kernels",))
    assert {f.file for f in found.findings if f.rule == "AUD-4"} == {PACKAGE + "runtime/decode.py"}
    assert all("/kernels/" in f.path for f in found.files)


def test_a_file_that_cannot_be_parsed_in_one_tree_is_a_finding(audit: Run) -> None:
    """Its line is named, and the rest of the tree is still audited."""
    found = audit({"a.py": "x = 1\n", "b.py": "y = 1\n"}, {"a.py": "x = 1\ndef f(:\n", "b.py": "z = 1\n"})
    (broken,) = [f for f in found.findings if f.category == "unreadable"]
    assert (broken.file, broken.severity, broken.evidence[0].line) == ("a.py", "crash", 2)
    assert "the export version cannot be read, at line 2: syntax error" in broken.lost
    assert any(f.rule == "AUD-2" and f.file == "b.py" for f in found.findings)


@pytest.mark.parametrize(
    ("name", "contents", "words"),
    [
        ("a.py", (b"def f(:\n", b"\ndef f(:\n"), r"a\.py cannot be read in either tree: source:1 syntax error"),
        ("a.py", (b"x = 1\n\0", b"y\0"), r"a\.py cannot be read in either tree: source:2 it holds NUL bytes"),
        ("a.cu", (b"// \xff\n", b"\n// \xff\n"), r"a\.cu cannot be read in either tree: source:1 byte 3 is not UTF-8"),
        ("a.py", (b"# \xff\nx = 1\n", b"x = 2 # \xff\n"), r"a\.py cannot be read in either tree: source:\d+ "),
    ],
    ids=["syntax", "binary", "cuda-encoding", "python-encoding"],
)
def test_files_unreadable_in_both_trees_are_one_error(
    name: str, contents: tuple[bytes, bytes], words: str, audit: Run
) -> None:
    """What differs and can be read in neither tree stops the audit, with file and line."""
    with pytest.raises(AuditError, match=words):
        audit({name: contents[0], "ok.py": "x = 1\n"}, {name: contents[1], "ok.py": "x = 1\n"})


def test_an_identical_unreadable_file_is_a_note(audit: Run) -> None:
    """A template that is no Python stops nothing, and is named among what was not judged."""
    found = audit({"t.py": "{{ x }} = (\n", "b.py": "y = 1\n"}, {"t.py": "{{ x }} = (\n", "b.py": "y = 1\n"})
    assert found.passed
    assert any(note.startswith("t.py:1 is the same in both trees and was not read") for note in found.notes)


def test_the_rules_that_were_not_judged_are_named(audit: Run) -> None:
    """Without a base the audit says what it could not decide."""
    found = audit({"a.py": "x = 1\n"}, {"a.py": "x = 1\n"})
    assert any("AUD-8 were not judged: no base was given" in note for note in found.notes)


def test_deep_nesting_is_audited(audit: Run) -> None:
    """A sum of 250 terms in a condition is compared, and the recursion limit of the process is what it was."""
    limit = sys.getrecursionlimit()
    source = "def f(x):\n    if " + " + ".join(f"x{i}" for i in range(250)) + ": raise E(x)\n"
    found = audit({"a.py": source}, {"a.py": source.replace("x7 ", "y7 ")})
    assert [(f.rule, f.category) for f in found.findings if f.rule != "AUD-1"] == [("AUD-6", "lost guard")]
    assert sys.getrecursionlimit() == limit


def test_an_unreadable_export_is_told_once(audit: Run) -> None:
    """Its symbols are not told as lost one by one."""
    found = audit(
        {"a.py": "def f(): ...\n", "b.py": "from a import f\n"}, {"a.py": "def f(:\n", "b.py": "from a import f\n"}
    )
    assert [(f.category, f.lost.split(",")[0]) for f in found.findings] == [
        ("differs", "the file differs"),
        ("unreadable", "the export version cannot be read"),
    ]


def test_many_blocks_are_not_compared_one_by_one(audit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of pairs the audit says that it did not look for likeness."""
    monkeypatch.setattr(trees, "MOST_PAIRS", 0)
    found = audit({"a.py": "def f(): ...\n"}, {"a.py": "def g(): return 1\n"})
    assert "AUD-11 compared 1 lost with 1 new blocks by content and name alone, not by likeness" in found.notes


def test_the_speed_benchmark_runs() -> None:
    """On twenty generated files: it audits them and prints the time with the verdict."""
    script = Path(__file__).parents[2] / "benchmarks" / "audit_speed.py"
    done = subprocess.run([sys.executable, str(script), "20"], capture_output=True, text=True, check=True)
    assert re.match(
        r"20 files, \d+ lines a tree: [\d.]+ s \([\d.]+ s of one core\); \d+ findings in 21 files", done.stdout
    )
