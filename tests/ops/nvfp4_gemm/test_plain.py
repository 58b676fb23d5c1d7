"""The plain Triton kernels in the interpreter: every tail, and compilation for the GPUs in question."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from kda_lab import interpreter
from kda_lab.ops.nvfp4 import layouts, quantise
from kda_lab.ops.nvfp4_gemm import cases, oracle, plain
from kda_lab.ops.protocol import Call
from kda_lab.verify.metrics import row_max

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kda_lab.ops.nvfp4_gemm import plain

def compile_for(capability, function, pointers, constants):
    names = function.arg_names
    signature = {n: pointers.get(n, "constexpr" if n in constants else "i32") for n in names}
    constexprs = {(names.index(n),): value for n, value in constants.items()}
    source = ASTSource(fn=function, signature=signature, constexprs=constexprs)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})

bytes_ = dict.fromkeys(("p_x", "p_w", "p_x_sf", "p_w_sf"), "*u8")
for capability in (80, 90, 120):
    for rows in (plain.SMALL_M, plain.LARGE_M):
        pointers = {**bytes_, "p_alpha": "*fp32", "p_out": "*bf16"}
        constants = {"BLOCK_M": rows, "BLOCK_N": plain.BLOCK_N, "BLOCK_BYTES": plain.BLOCK_BYTES}
        done = compile_for(capability, plain._plain_kernel, pointers, constants)
        print("tensor cores" if "mma" in done.asm["ptx"] else "none", done.metadata.shared <= 99 * 1024)
    pointers = {"p_w": "*u8", "p_w_sf": "*u8", "p_out": "*bf16"}
    compile_for(capability, plain._dequantise_kernel, pointers, {"BLOCK_N": 64, "BLOCK_BYTES": 64})
"""


def one(label: str, seed: int = 0) -> Call:
    shape, batch, kind = label.split("-")
    return cases.with_guard_rows(cases.synthesise(cases.rows([shape], [int(batch[1:])], [kind])[0], seed))


@pytest.fixture(autouse=True)
def mended() -> None:
    """The interpreter computes as a GPU does."""
    interpreter.ensure_faithful()


@pytest.mark.parametrize("label", ["tiny_d-M1-fp32", "tiny_e-M17-fp32", "tiny_f-M65-fp32", "tiny_c-M9-exact"])
@pytest.mark.parametrize("tile", [(16, 8), (512, 1024)])
def test_every_tail_is_masked(monkeypatch: pytest.MonkeyPatch, label: str, tile: tuple[int, int]) -> None:
    """Tiles that are smaller than N and K, or larger, that divide them or not: the same result, padding unread."""
    monkeypatch.setattr(plain, "INTERPRETED_N", tile[0])
    monkeypatch.setattr(plain, "INTERPRETED_BYTES", tile[1])
    call = one(label)
    call.outputs["out"].fill_(float("nan"))
    plain.gemm(**call.inputs, **call.outputs)
    assert row_max(call.outputs["out"], oracle.oracle_fp64(call)["out"]) <= (0.0 if label.endswith("exact") else 1e-6)


@pytest.mark.parametrize("label", ["tiny_e-M130-any_scale", "tiny_f-M1-random"])
def test_dequantised_operands_are_exact(label: str) -> None:
    """Both operands, to the last bit, scales of any byte included."""
    call = one(label)
    M, N, K = (call.facts[axis] for axis in "MNK")
    for packed, container, rows in (
        (call.inputs["x_fp4"], call.inputs["x_sf"], M),
        (call.inputs["weight"].t(), call.inputs["weight_sf"].t(), N),
    ):
        out = torch.full((rows, K), float("nan"), dtype=torch.bfloat16)
        plain.dequantise(packed, container, out)
        scales = layouts.unswizzle_128x4(container, rows, K // 16)
        assert torch.equal(out.float(), quantise.dequantise(packed, scales))


def test_both_kernels_compile_for_the_gpus_in_question() -> None:
    """SM80, SM90 and SM120, without any GPU: tensor-core products, shared memory within SM120's limit."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["tensor cores True"] * 6
