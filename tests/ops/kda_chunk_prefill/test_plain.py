"""The plain pipeline's table of chunks, and what it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton

from kda_lab import interpreter
from kda_lab.errors import ParameterError
from kda_lab.ops.kda.reference_arms import memory_of
from kda_lab.ops.kda_chunk_prefill import cases, gates, oracle
from kda_lab.verify.metrics import rel_l2

interpreter.ensure_faithful()
from kda_lab.ops.kda_chunk_prefill import plain  # noqa: E402

ROOT = Path(__file__).parents[3]
DISASSEMBLER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
COMPILED = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kda_lab.ops.kda_chunk_prefill import plain

pointers = dict.fromkeys(("p_qg", "p_scores", "p_before", "p_new", "p_out"), "*bf16")
signature = {**pointers, "p_table": "*i32", "p_index": "*i32", "HV": "i32"}
names = plain._outputs.arg_names
constants = {"K": 64, "V": 32, "C": 64, "BLOCK_V": 32}
attributes = {(names.index(n),): [["tt.divisibility", 16]] for n in signature if n != "HV"}
signature = {n: signature.get(n, "constexpr") for n in names}
source = ASTSource(plain._outputs, signature, {(names.index(n),): v for n, v in constants.items()}, attributes)
compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
open(sys.argv[1], "wb").write(compiled.asm["cubin"])
"""
"""Compiles the last launch for an H200, in a process whose Triton does not interpret."""


def test_chunks_never_cross_a_sequence() -> None:
    """Sequence, first token and end of each chunk; first chunk and number of chunks of each sequence."""
    table, spans = plain.tables(torch.tensor([0, 70, 70, 134], dtype=torch.int32))
    assert table.tolist() == [[0, 0, 70], [0, 64, 70], [2, 70, 134]]
    assert spans.tolist() == [[0, 2], [2, 0], [2, 1]]


def test_no_tokens_no_launch() -> None:
    """A call of empty sequences changes nothing."""
    call = cases.synthesise(cases.row("none", {"HV": 1, "K": 16, "V": 16, "lengths": (0, 0)}), 0)
    call.restore()
    plain.prefill(memory_of(call), -5.0, call.outputs["out"], plain.tables(call.inputs["cu_seqlens"]))
    assert torch.equal(call.outputs["state"], call.inputs["state"])


def test_other_widths_are_refused() -> None:
    """K = 60 is no power of two."""
    call = cases.synthesise(cases.row("odd", {"HV": 1, "K": 60, "V": 16, "lengths": (3,)}), 0)
    with pytest.raises(ParameterError, match=r"K, V is \(60, 16\); allowed: powers of two of at least 16"):
        plain.prefill(memory_of(call), -5.0, call.outputs["out"], plain.tables(call.inputs["cu_seqlens"]))


@pytest.mark.skipif(not DISASSEMBLER.exists(), reason="this Triton comes without nvdisasm")
def test_no_product_takes_the_base_of_shared_memory_for_its_descriptor(tmp_path: Path) -> None:
    """ptxas 12.8 does so in some orders of two products of one size: the GPU then reads outside of shared memory."""
    binary, environment = tmp_path / "outputs.cubin", {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", COMPILED, str(binary)], env=environment, check=True)
    text = subprocess.run([str(DISASSEMBLER), "-c", str(binary)], capture_output=True, text=True, check=True).stdout
    # The window of the program's shared memory lies in the highest byte.
    bases = set(re.findall(r"ULEA (UR\d+), UR\d+, UR\d+, 0x18 ;", text))
    # The upper word of a descriptor, which holds a stride and the swizzle, is added to a register that was masked.
    added = re.findall(r"UIADD3\.X UR\d+, (UR\w+), -?0x[0-9a-f]{8}, ", text)
    assert "HGMMA" in text and len(bases) == 1 and added
    assert not bases & set(added)


@pytest.mark.gpu
@pytest.mark.parametrize(("K", "V"), [(64, 32), (64, 64), (32, 64), (128, 128)])
def test_it_is_right_on_the_gpu(K: int, V: int) -> None:
    """Every width at which its two last products are, or are not, of one size."""
    call = cases.synthesise(cases.row("gpu", {"HV": 2, "H": 1, "K": K, "V": V, "lengths": (130, 0, 65)}), 1, "cuda")
    call.restore()
    plain.prefill(memory_of(call), -5.0, call.outputs["out"], plain.tables(call.inputs["cu_seqlens"]))
    exact = oracle.oracle_fp64(call)
    assert rel_l2(call.outputs["out"], exact["out"]) < gates.ERROR
    assert rel_l2(call.outputs["state"], exact["state"]) < gates.STATE_ERROR
