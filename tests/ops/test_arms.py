"""Arms of kernel sources: found by name, refused with the allowed names, bound to the op's signature."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from kda_lab.errors import ParameterError, UnavailableError
from kda_lab.ops import arms
from kda_lab.ops.registry import load_op

ROOT = Path(__file__).parents[2]
CANDIDATES, EXPORTED = ROOT / "notebooks" / "candidates", ROOT / "kda_lab" / "kernels"
OP = "qsa.packed_decode"


def test_arms_come_with_their_roles() -> None:
    """Candidates first, then the baseline, then peers, in the order asked for."""
    found = arms.chosen_arms(OP, ["grouped"], ["per_head", "torch_sdpa"], CANDIDATES, EXPORTED)
    assert [(a.name, role) for a, role in found] == [
        ("grouped", "candidate"),
        ("per_head", "baseline"),
        ("torch_sdpa", "peer"),
    ]


def test_an_exported_kernel_is_an_arm_too() -> None:
    """By its own name, with the hash of its source."""
    found, _ = arms.chosen_arms(OP, ["qsa_packed_decode_grouped"], ["per_head"], CANDIDATES, EXPORTED)[0]
    assert found.source_sha256 == arms.candidate_arm(CANDIDATES / OP / "grouped.py").source_sha256


@pytest.mark.parametrize(
    ("kernels", "baselines", "words"),
    [
        (["grouped2"], ["per_head"], r"kernels is 'grouped2'; allowed: grouped, qsa_packed_decode_grouped"),
        (["grouped"], ["perhead"], r"is 'perhead'; allowed: per_head, torch_sdpa, flashinfer_ragged_fa2"),
    ],
    ids=["kernel", "baseline"],
)
def test_unknown_names_list_the_known(kernels: list[str], baselines: list[str], words: str) -> None:
    """A misspelt name says which there are."""
    with pytest.raises(ParameterError, match=words):
        arms.chosen_arms(OP, kernels, baselines, CANDIDATES, EXPORTED)


@pytest.mark.parametrize(
    ("source", "words"),
    [("x = 1\n", "has no valid CONTRACT"), ("CONTRACT = {'op': 'qsa.packed_decode'}\n", "kernel\n  Field required")],
    ids=["absent", "incomplete"],
)
def test_a_source_without_a_contract_is_no_candidate(source: str, words: str, tmp_path: Path) -> None:
    """The refusal says what is missing."""
    path = tmp_path / "candidate.py"
    path.write_text(source)
    with pytest.raises(UnavailableError, match=words):
        arms.candidate_arm(path)


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    """No file, no arm."""
    with pytest.raises(UnavailableError, match="there is no such file"):
        arms.candidate_arm(tmp_path / "nothing.py")


def test_the_door_is_no_arm_on_a_cpu() -> None:
    """Dispatch serves CUDA devices only."""
    door = arms.DispatchedArm("dispatched", load_op(OP).spec, print)
    assert door.unavailable(torch.device("cpu")).startswith("unavailable, because dispatch serves CUDA devices")
    assert door.unavailable(torch.device("cuda", 0)) == ""


def test_a_launcher_passes_the_op_s_signature() -> None:
    """Tensors in the op's order, scalars and outputs by name."""
    op = load_op(OP)
    call = op.cases.synthesise(op.cases.rows(("tp2",), (2,), ("short",))[0], 1)
    seen: dict = {}
    arms.launcher(lambda *t, **k: seen.update(tensors=t, **k), op.spec, call)()
    assert [t is call.inputs[n] for t, n in zip(seen["tensors"], op.spec.tensors, strict=True)] == [True] * 5
    assert seen["out"] is call.outputs["out"]
    assert seen["max_seqlen_k"] == call.scalars["max_seqlen_k"]


def test_a_copied_export_is_an_arm(tmp_path: Path) -> None:
    """The folder alone is enough."""
    copy = shutil.copytree(EXPORTED / "qsa_packed_decode_grouped", tmp_path / "qsa_packed_decode_grouped")
    assert arms.exported_arm(copy).state_tensors() is not None
