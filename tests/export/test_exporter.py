"""The whole export: a kernel that loads and computes the candidate's bits, versions, and gates that change nothing."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab.contracts.model import AxisRange, Resources
from kda_lab.dispatch.loader import load_kernel
from kda_lab.errors import ExportError, ParameterError
from kda_lab.export import exporter
from kda_lab.export.exporter import Destination, export_kernel, judge, next_version
from kda_lab.ops.arms import candidate_arm, exported_arm
from kda_lab.run_folder import RunFolder

TOY = Path(__file__).with_name("toy_candidate.py")
FAST = {(1, "short"): 10.0, (2, "short"): 10.0}
WriteRun = Callable[..., RunFolder]


def fake_units(source: Path, units: Any, capability: tuple[int, int], cache: Path) -> tuple[Resources, ...]:
    """Stands for the compile gate, which has its own tests: SM121 does not compile."""
    if capability == (12, 1):
        raise ExportError("export.compile", "no such\n   instruction")
    return (Resources(function="_toy_kernel", constants={}, num_warps=4, num_stages=2, shared_bytes=0),)


class Site:
    """A package folder and an evidence folder to export into."""

    def __init__(self, root: Path, captures: Path) -> None:
        self.kernels, self.evidence, self.captures = root / "kernels", root / "reports" / "evidence", captures
        self.kernel = self.kernels / "toy_decode"

    def export(self, runs: list[RunFolder], candidate: Path = TOY, **options: Any) -> Path:
        return export_kernel(
            runs,
            candidate,
            Destination(self.kernels, self.evidence),
            captures=[self.captures],
            device="cpu",
            **options,
        )

    def files(self) -> dict[str, bytes]:
        return {
            str(p): p.read_bytes() for f in (self.kernels, self.evidence) for p in sorted(f.rglob("*")) if p.is_file()
        }


@pytest.fixture
def site(tmp_path: Path, captures: Path) -> Site:
    return Site(tmp_path, captures)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes seconds and has tests of its own: compiler and fresh processes."""
    monkeypatch.setattr(exporter, "compile_units", fake_units)
    monkeypatch.setattr(exporter.fresh_process, "check_alone", lambda *a: None)
    monkeypatch.setattr(exporter.fresh_process, "check_bits", lambda *a: 2)


@pytest.fixture
def run(write_run: WriteRun, records: Any) -> RunFolder:
    """A run that passes every gate."""
    return write_run(records.verify(), records.timing(FAST, peer_us=30.0))


def test_export_end_to_end(site: Site, run: RunFolder) -> None:
    """Nothing replaced: the toy is compiled, imported alone, replayed for its bits, and loads through its contract."""
    folder = site.export([run], architectures=((9, 0), (12, 0)))
    loaded = load_kernel(folder)
    contract = loaded.contract
    assert sorted(p.name for p in folder.iterdir()) == ["LICENSE.txt", "README.md", "contract.json", "kernel.py"]
    assert (folder / "kernel.py").read_bytes() == TOY.read_bytes()
    assert (contract.version, loaded.entry.__name__) == (1, "packed_decode")
    assert [(a.capability, a.status) for a in contract.architectures] == [((9, 0), "qualified"), ((12, 0), "compiled")]
    assert all(r.registers and r.cubin_sha256 for a in contract.architectures for r in a.resources)
    assert contract.dispatched[0].axes == {"HQ": 12, "HKV": 1, "B": AxisRange(minimum=1, maximum=2)}
    assert [(h.baseline, h.count, round(h.minimum, 1)) for h in contract.headline] == [
        ("slow", 2, 2.0),
        ("library", 2, 3.0),
    ]
    assert (contract.gate_power.killed, contract.gate_power.total) == (1, 1)
    cited = contract.architectures[0].evidence
    assert cited is not None and cited.path == "reports/evidence/toy_decode/v1/sm90.json"
    stored = (site.evidence / "toy_decode" / "v1" / "sm90.json").read_bytes()
    assert exporter.assembly.evidence_entry(cited.path, stored) == cited
    assert [p.name for p in site.kernels.iterdir()] == ["toy_decode"]


def test_exported_folder_works_alone_in_an_empty_project(
    site: Site, run: RunFolder, quick: None, tmp_path: Path
) -> None:
    """Copied into an empty folder, the kernel runs in an isolated process in which kda_lab cannot be imported."""
    project = tmp_path / "project"
    shutil.copytree(site.export([run]), project / "toy_decode")
    code = (
        "import sys, os\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'kda_lab': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "os.environ['TRITON_INTERPRET'] = '1'\n"
        f"sys.path.insert(0, {str(project)!r})\n"
        "import torch\n"
        "from toy_decode.kernel import packed_decode\n"
        "q, k, v = (torch.ones(1, h, 256, dtype=torch.bfloat16) for h in (12, 1, 1))\n"
        "ends = torch.tensor([0, 1], dtype=torch.int32)\n"
        "out = packed_decode(q, k, v, ends, ends, max_seqlen_k=1)\n"
        "assert torch.equal(out, torch.ones_like(out)) and 'kda_lab' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=project, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_second_export_is_a_new_version_and_keeps_old_evidence(site: Site, run: RunFolder, quick: None) -> None:
    """Version and evidence folder count up; the first evidence stays byte for byte."""
    site.export([run])
    first = (site.evidence / "toy_decode" / "v1" / "sm90.json").read_bytes()
    site.export([run])
    assert load_kernel(site.kernel).contract.version == 2
    assert (site.evidence / "toy_decode" / "v1" / "sm90.json").read_bytes() == first
    assert sorted(p.name for p in (site.evidence / "toy_decode").iterdir()) == ["v1", "v2"]


def test_architecture_that_does_not_compile_is_refused_with_its_words(site: Site, run: RunFolder, quick: None) -> None:
    """An architecture without evidence that does not compile is written down as refused, on one line."""
    site.export([run])
    states = {a.capability: (a.status, a.note) for a in load_kernel(site.kernel).contract.architectures}
    assert states[(12, 0)] == ("compiled", "compiles ahead of time; never ran on this architecture")
    assert states[(12, 1)] == ("refused", "export.compile: no such instruction")


def test_architecture_with_evidence_must_compile(
    site: Site, write_run: WriteRun, captures: Path, records: Any, quick: None
) -> None:
    """Where the kernel is said to have run, a failing compile stops the export."""
    records.provenance["device"]["capability"] = [12, 1]
    with pytest.raises(ExportError, match=r"export\.compile: no such"):
        site.export([write_run(records.verify(), records.timing(FAST))])
    assert site.files() == {}


def test_rows_must_be_faster_on_every_architecture_that_measured_them(
    site: Site, write_run: WriteRun, captures: Path, records: Any, quick: None
) -> None:
    """Evidence of two architectures: a batch that is slower on one of them is not dispatched on either."""
    other = type(records)(captures, capability=(12, 0))
    runs = [
        write_run(
            records.verify(), records.timing({(1, "short"): 10.0, (2, "short"): 10.0, (4, "short"): 10.0}), name="a"
        ),
        write_run(other.verify(), other.timing({(1, "short"): 10.0, (2, "short"): 40.0, (4, "short"): 10.0}), name="b"),
    ]
    contract = load_kernel(site.export(runs)).contract
    assert [r.axes["B"] for r in contract.dispatched] == [
        AxisRange(minimum=1, maximum=1),
        AxisRange(minimum=4, maximum=4),
    ]
    assert {a.capability for a in contract.architectures if a.status == "qualified"} == {(9, 0), (12, 0)}


def test_kernel_that_is_nowhere_faster_is_not_exported(
    site: Site, write_run: WriteRun, records: Any, quick: None
) -> None:
    """Without one faster batch there is nothing to dispatch, and every row's verdict is in the message."""
    run = write_run(records.verify(), records.timing({(1, "short"): 20.0, (2, "short"): 40.0}))
    with pytest.raises(ExportError, match=r"export\.dispatched: rows is 'tp2-B1-short ambiguous, tp2-B2-short slower'"):
        site.export([run])


def test_captures_of_another_op_are_refused(
    run: RunFolder, captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture set of another op cannot speak for this kernel."""
    monkeypatch.setattr(exporter.CaptureSet, "op", property(lambda self: "other.op"))
    with pytest.raises(ExportError, match=r"op of .* is 'other\.op'; allowed: 'qsa\.packed_decode'"):
        judge([run], TOY, [captures])


@pytest.mark.parametrize("gate", ["check_alone", "check_bits", "put_in_place"])
def test_failure_after_staging_leaves_the_old_version(
    site: Site, run: RunFolder, quick: None, monkeypatch: pytest.MonkeyPatch, gate: str
) -> None:
    """Whichever late gate fails, kernel and evidence are byte for byte as before, without leftovers."""
    site.export([run])
    before = site.files()

    def fail(staged: Path, final: Any, *rest: Any) -> None:
        if gate != "put_in_place" or final == site.kernel:
            raise ExportError(f"export.{gate}", "failed on purpose")
        staged.rename(final)

    monkeypatch.setattr(exporter if gate == "put_in_place" else exporter.fresh_process, gate, fail)
    with pytest.raises(ExportError, match="failed on purpose"):
        site.export([run])
    assert site.files() == before
    assert [p.name for p in site.kernels.iterdir()] == ["toy_decode"]


def test_interrupt_after_the_swap_keeps_the_evidence(
    site: Site, run: RunFolder, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that is in place keeps the evidence that its contract cites, whatever is raised afterwards."""
    real = exporter.put_in_place

    def interrupted(staged: Path, final: Path) -> None:
        real(staged, final)
        if final == site.kernel:
            raise KeyboardInterrupt

    site.export([run])
    monkeypatch.setattr(exporter, "put_in_place", interrupted)
    with pytest.raises(KeyboardInterrupt):
        site.export([run])
    assert load_kernel(site.kernel).contract.version == 2
    assert (site.evidence / "toy_decode" / "v2" / "sm90.json").is_file()


def test_version_skips_evidence_of_a_removed_kernel(tmp_path: Path) -> None:
    """Evidence that is already there is never written over, even when the kernel's folder is gone."""
    (tmp_path / "evidence" / "v3").mkdir(parents=True)
    (tmp_path / "evidence" / "vague").mkdir()
    assert next_version(tmp_path / "kernel", tmp_path / "evidence") == 4


def test_broken_old_contract_stops_the_export(tmp_path: Path) -> None:
    """An exported folder that cannot be read is not silently replaced."""
    (tmp_path / "toy").mkdir()
    with pytest.raises(ExportError, match=r"toy/contract\.json is .*; allowed: a valid contract"):
        next_version(tmp_path / "toy", tmp_path / "evidence")


def test_kernel_of_the_fallback_chain_needs_no_faster_row(
    site: Site, write_run: WriteRun, records: Any, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in the op's chain serves every callable shape: it is exported without a dispatched one."""
    spec = exporter.load_op("qsa.packed_decode").spec
    op = SimpleNamespace(spec=replace(spec, fallback=("library", "toy_decode")))
    monkeypatch.setattr(exporter, "load_op", lambda name: op)
    run = write_run(records.verify(), records.timing({(1, "short"): 20.0, (2, "short"): 40.0}))
    contract = load_kernel(site.export([run])).contract
    assert contract.dispatched == ()


def test_row_outside_the_callable_shapes_is_named(site: Site, write_run: WriteRun, records: Any, quick: None) -> None:
    """A batch that was timed beyond what the declaration calls callable stops the export in words."""
    run = write_run(records.verify(), records.timing({(1, "short"): 10.0, (200, "short"): 10.0}))
    words = r"export\.dispatched: a dispatched rule is .*one callable rule\. A row was timed outside CONTRACT\.callable"
    with pytest.raises(ExportError, match=words):
        site.export([run])


CUDA_TOY = Path(__file__).with_name("toy_cuda_candidate.py")


@pytest.fixture
def cuda_run(write_run: WriteRun, cuda_records: Any) -> RunFolder:
    """A run of the toy in CUDA C++ that passes every gate."""
    return write_run(cuda_records.verify(), cuda_records.timing(FAST))


def test_cuda_kernel_is_not_compared_on_a_cpu(site: Site, cuda_run: RunFolder, quick: None) -> None:
    """On a CPU the gate `bits` would compare the torch twin with itself: refused, with the package untouched."""
    words = r"export\.bits: device is 'cpu'; allowed: a CUDA device, for a kernel of language 'cuda'\. Export on a GPU"
    with pytest.raises(ExportError, match=words):
        site.export([cuda_run], CUDA_TOY)
    assert site.files() == {}


def test_missing_gpu_is_said(site: Site, cuda_run: RunFolder, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA device that is asked for and absent is a failed gate, not a crash."""

    def absent(name: str) -> None:
        raise exporter.UnavailableError("runtime", "torch sees no CUDA device here")

    monkeypatch.setattr(exporter.runtime, "resolve_device", absent)
    with pytest.raises(ExportError, match=r"export\.bits: runtime: torch sees no CUDA device"):
        site.export([cuda_run], CUDA_TOY)


def test_cuda_export_holds_both_files(site: Site, cuda_run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU for the bits (faked), a CUDA C++ kernel is compiled, imported alone and loads with both hashes."""
    monkeypatch.setattr(exporter.runtime, "resolve_device", lambda name: torch.device("cuda", 0))
    monkeypatch.setattr(exporter.fresh_process, "check_bits", lambda *a: 2)
    folder = site.export([cuda_run], CUDA_TOY, architectures=((9, 0), (12, 0), (12, 1)))
    loaded = load_kernel(folder)
    names = ["LICENSE.txt", "README.md", "contract.json", "kernel.cu", "kernel.py"]
    assert sorted(p.name for p in folder.iterdir()) == names
    assert (folder / "kernel.cu").read_bytes() == CUDA_TOY.with_suffix(".cu").read_bytes()
    assert [(s.path, s.language) for s in loaded.contract.sources] == [("kernel.py", "python"), ("kernel.cu", "cuda")]
    assert exported_arm(folder).source_sha256 == candidate_arm(CUDA_TOY).source_sha256
    states = {a.capability: a.status for a in loaded.contract.architectures}
    assert states == {(9, 0): "qualified", (12, 0): "compiled", (12, 1): "refused"}
    assert [r.shared_bytes for a in loaded.contract.architectures for r in a.resources] == [1024, 1024]
    assert "needs torch and cuda.core (with NVRTC), nothing else" in (folder / "README.md").read_text()
    assert (
        (folder / "LICENSE.txt").read_text().startswith("kernel.py: SPDX-License-Identifier: Apache-2.0\nkernel.cu: ")
    )


def test_candidate_that_changes_during_the_export_is_refused(
    site: Site, run: RunFolder, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiler and replays read the file again: an edit in between would put bytes in place that were not proved."""
    monkeypatch.setattr(exporter, "source_digest", lambda path, language: "0" * 64)
    with pytest.raises(ExportError, match=r"export\.publish: toy_candidate\.py changed while it was exported"):
        site.export([run])
    assert site.files() == {}


# Publishes the folder's files over and over, each time as a higher version, until it is killed.
PUBLISHER = """
import itertools, json, sys
from pathlib import Path
from kda_lab.export.publish import export_lock, put_in_place, staged_folder
kernel = Path(sys.argv[1])
files = {p.name: p.read_bytes() for p in kernel.iterdir()}
contract = json.loads(files["contract.json"])
print("started", flush=True)
for version in itertools.count(contract["version"] + 1):
    files["contract.json"] = json.dumps({**contract, "version": version}).encode()
    with export_lock(kernel.parent), staged_folder(kernel.parent, kernel.name, files) as staged:
        put_in_place(staged, kernel)
"""


def test_loader_accepts_the_kernel_after_every_kill(site: Site, run: RunFolder, quick: None) -> None:
    """Ten kill -9 at random moments: each leaves a kernel whose contract and hashes the loader accepts."""
    moments = random.Random(11)
    version = load_kernel(site.export([run])).contract.version
    for _ in range(10):
        worker = subprocess.Popen([sys.executable, "-c", PUBLISHER, str(site.kernel)], stdout=subprocess.PIPE)
        assert worker.stdout is not None and worker.stdout.readline() == b"started\n"
        time.sleep(moments.uniform(0, 0.1))
        worker.kill()
        worker.communicate()
        now = load_kernel(site.kernel).contract.version
        assert now >= version
        version = now
    assert version > 1
    assert json.loads((site.kernel / "contract.json").read_text())["version"] == version


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            '        "v": {',
            '        "w": {',
            r"CONTRACT\.tensors is without v; allowed: those of qsa\.packed_decode: q, k, v",
        ),
        ('        "v": {', '        "w": {', r"CONTRACT\.tensors is with w; allowed"),
        ('        "softmax_scale"', '        "scale"', r"CONTRACT\.scalars is without softmax_scale; .*with scale"),
        (
            '"fallback": {"kind": "raise"}',
            '"fallback": {"kind": "chain", "chain": ["plain"]}',
            r"CONTRACT\.fallback is chain plain; allowed: kind 'raise'",
        ),
    ],
)
def test_a_declaration_of_another_signature_than_its_ops_is_refused(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    """Tensors, scalars and the fallback are the op's: each missing and each foreign name is told, before any record."""
    text = TOY.read_text()
    assert old in text
    path = tmp_path / TOY.name
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ExportError, match=rf"(?s)export\.declaration: .*{words}"):
        judge([], path, [])


def test_what_the_op_updates_in_place_may_not_be_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that is input and output is given in every call; declared so, the next gate is reached."""
    op = exporter.load_op("qsa.packed_decode")
    in_place = replace(op, spec=replace(op.spec, outputs=("out", "k")))
    monkeypatch.setattr(exporter, "load_op", lambda name: in_place)
    with pytest.raises(ExportError, match=r"^export\.evidence: "):
        judge([], TOY, [])
    text = TOY.read_text()
    gate = '"k": {"dtypes": ["bfloat16"], "shape": ["N", "HKV", 256]'
    assert text.count(gate) == 1
    path = tmp_path / TOY.name
    path.write_text(text.replace(gate, gate + ', "optional": True'))
    with pytest.raises(
        ExportError, match=r"CONTRACT\.tensors\.k\.optional is True; allowed: False: qsa\.packed_decode"
    ):
        judge([], path, [])


def test_the_export_asks_for_every_dtype(
    site: Site, run: RunFolder, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate on dtypes is part of the export, which leaves the package as it was."""

    def missing(found: Any, declaration: Any) -> None:
        raise ExportError("export.replays", f"{found.name} {declaration.kernel}: no replay of float32")

    monkeypatch.setattr(exporter.evidence, "check_scalars", missing)
    with pytest.raises(ExportError, match="sm90 toy_decode: no replay of float32"):
        site.export([run])
    assert site.files() == {}


def test_shapes_can_be_left_to_another_kernel(site: Site, run: RunFolder) -> None:
    """An unknown name is refused with the known ones; a kernel that takes everything leaves nothing to dispatch."""
    with pytest.raises(ParameterError, match=r"leave_to is \['nobody'\]; allowed: kernels of .*: none"):
        site.export([run], leave_to=["nobody"])
    site.export([run])
    with pytest.raises(ExportError, match="dispatched"):
        site.export([run], leave_to=["toy_decode"])
