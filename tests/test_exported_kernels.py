"""Every exported kernel of the package: intact, cited evidence, right on its captures, alone in a folder, on a GPU."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kda_lab import interpreter, qsa
from kda_lab.captures.store import CaptureSet
from kda_lab.contracts.shapes import rule_holds
from kda_lab.dispatch.dispatcher import DISPATCHER
from kda_lab.dispatch.loader import load_kernel, read_contract, read_contracts
from kda_lab.errors import ContractError, KernelLoadError
from kda_lab.ops.registry import load_op
from kda_lab.verify.metrics import rel_l2

ROOT = Path(__file__).parents[1]
KERNELS = ROOT / "kda_lab" / "kernels"
FOLDERS = sorted(path.parent for path in KERNELS.glob("*/contract.json"))
CAPTURES = ROOT / "data" / "captures"
# BF16 output of one kernel against BF16 output of another: two roundings.
PINNED_LIMIT = 5e-3


def test_the_package_has_its_qsa_kernels() -> None:
    """The package ships two kernels for packed decode, qualified on SM90 only; the clustered one is for SM90 alone."""
    found = [f.contract for f in read_contracts(KERNELS) if f.contract.op == "qsa.packed_decode"]
    statuses = {c.kernel: {a.capability: a.status for a in c.architectures} for c in found}
    assert statuses == {
        "qsa_packed_decode_clustered": {(9, 0): "qualified", (12, 0): "refused", (12, 1): "refused"},
        "qsa_packed_decode_grouped": {(9, 0): "qualified", (12, 0): "compiled", (12, 1): "compiled"},
    }


def test_every_batch_has_one_qsa_kernel() -> None:
    """Of the batches that the source thread allows, each is dispatched by exactly one of them in both topologies."""
    rules = [r for f in read_contracts(KERNELS) if f.contract.op == "qsa.packed_decode" for r in f.contract.dispatched]
    for heads, kv_heads in ((24, 2), (12, 1)):
        served = [sum(rule_holds(r, {"HQ": heads, "HKV": kv_heads, "B": b}) for r in rules) for b in range(1, 129)]
        assert served == [1] * 128


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_cited_evidence_is_in_the_tree(folder: Path) -> None:
    """Each evidence file that a contract cites exists with the very hash it cites."""
    contract = load_kernel(folder).contract
    for architecture in contract.architectures:
        if architecture.evidence is not None:
            content = (ROOT / architecture.evidence.path).read_bytes()
            assert hashlib.sha256(content).hexdigest() == architecture.evidence.sha256


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_the_export_is_the_candidate(folder: Path) -> None:
    """The exported sources are, byte for byte, those of a candidate that still stands in the notebooks."""
    contract = load_kernel(folder).contract
    exported = [(folder / source.path).read_bytes() for source in contract.sources]
    suffixes = [Path(source.path).suffix for source in contract.sources]
    hosts = sorted((ROOT / "notebooks" / "candidates" / contract.op).glob("*.py"))
    files = [[host.with_suffix(suffix) for suffix in suffixes] for host in hosts]
    assert exported in [[f.read_bytes() for f in group] for group in files if all(f.is_file() for f in group)]


SOURCE_FILES = [(f, s.path) for f in FOLDERS for s in read_contract(f).sources]


@pytest.mark.parametrize(("folder", "source"), SOURCE_FILES, ids=lambda x: x.name if isinstance(x, Path) else x)
def test_one_changed_byte_is_refused(folder: Path, source: str, tmp_path: Path) -> None:
    """A kernel of which any source, device code too, differs from its contract by one byte is not imported."""
    copy = shutil.copytree(folder, tmp_path / folder.name)
    data = bytearray((copy / source).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / source).write_bytes(bytes(data))
    with pytest.raises(KernelLoadError, match=rf"{source} sha256"):
        load_kernel(copy)


ALONE = """
import sys
sys.path[:] = [p for p in sys.path if p not in ("", {root!r})]
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "kda_lab":
            raise ImportError("kda_lab must not be needed")
sys.meta_path.insert(0, Refuse())
import importlib.util, torch
spec = importlib.util.spec_from_file_location("kernel", "kernel.py")
kernel = importlib.util.module_from_spec(spec)
sys.modules["kernel"] = kernel
spec.loader.exec_module(kernel)
q = torch.ones(2, 12, 256, dtype=torch.bfloat16)
k = torch.ones(5, 1, 256, dtype=torch.bfloat16)
ends = torch.zeros(3, dtype=torch.int32)
out = torch.full_like(q, float("nan"))
kernel.packed_decode(q, k, k, ends, ends, max_seqlen_k=2051, out=out)
print(out.shape, float(out.float().abs().max()))
try:
    kernel.packed_decode(q, k, k, ends, ends, max_seqlen_k=2056)
except ValueError as error:
    print(error)
"""


def test_the_folder_works_alone(tmp_path: Path) -> None:
    """Copied by itself into an empty project, with torch and triton only, the kernel runs and refuses.

    Rows without keys, whose output is exactly zero: the plain interpreter of that project multiplies BF16
    wrongly, and its mend belongs to the laboratory. The values are judged where the mend is, and on a GPU.
    """
    copy = shutil.copytree(KERNELS / "qsa_packed_decode_grouped", tmp_path / "kernel")
    code = ALONE.format(root=str(ROOT))
    environment = {"TRITON_INTERPRET": "1", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        "torch.Size([2, 12, 256]) 0.0",
        "qsa_packed_decode_grouped: max_seqlen_k is 2056; allowed: 1 to 2055.",
    ], done.stderr[-2000:]


def test_the_forced_kernel_runs_on_a_cpu() -> None:
    """Unforced, a CPU call is refused; forced, the kernel runs interpreted and agrees with the pinned output."""
    if torch.cuda.is_available():
        pytest.skip("the interpreter is off on a machine with a GPU")
    interpreter.ensure_faithful()
    capture = CaptureSet.open(CAPTURES / "qsa.packed_decode").load("tp2r0-q1")
    tensors = [capture.call.inputs[name] for name in load_op(capture.call.op).spec.tensors]
    with pytest.raises(ContractError, match=r"unsupported QSA call: q\.device is 'cpu'"):
        qsa.packed_decode(*tensors, **capture.call.scalars)
    out = qsa.packed_decode(*tensors, **capture.call.scalars, kernel="qsa_packed_decode_grouped")
    assert rel_l2(out, capture.pinned["out"]) < PINNED_LIMIT


@pytest.mark.gpu
def test_the_facade_dispatches_on_the_gpu() -> None:
    """Each capture goes to the exported kernel through the public door and agrees with its pinned output."""
    captures = CaptureSet.open(CAPTURES / "qsa.packed_decode")
    qsa.reset_statistics()
    for name in captures.names():
        capture = captures.load(name, "cuda")
        tensors = [capture.call.inputs[n] for n in load_op(capture.call.op).spec.tensors]
        out = qsa.packed_decode(*tensors, **capture.call.scalars)
        assert rel_l2(out, capture.pinned["out"]) < PINNED_LIMIT, name
    hits = DISPATCHER.statistics().hits
    assert sum(count for name, count in hits.items() if name.startswith("qsa.packed_decode: ")) == len(captures.names())


@pytest.mark.gpu
def test_one_graph_serves_other_lengths() -> None:
    """A graph of the public door, captured on short rows, is right on long ones, and the reverse."""
    op = load_op("qsa.packed_decode")
    rows = {kind: op.cases.rows(("tp1",), (4,), (kind,))[0] for kind in ("short", "saturated")}
    calls = {kind: op.cases.with_capacity(op.cases.synthesise(row, 7, "cuda"), 8204) for kind, row in rows.items()}
    for first, second in (("short", "saturated"), ("saturated", "short")):
        live = calls[first].to("cuda")
        tensors = [live.inputs[name] for name in op.spec.tensors]
        qsa.packed_decode(*tensors, **live.scalars, **live.outputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            qsa.packed_decode(*tensors, **live.scalars, **live.outputs)
        for name, tensor in calls[second].inputs.items():
            live.inputs[name].copy_(tensor)
        live.outputs["out"].fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert rel_l2(live.outputs["out"], op.oracle.oracle_fp32(calls[second])["out"]) < PINNED_LIMIT
