"""The least work of one `nvfp4.gemm` call: every byte of its buffers once, and the useful FLOPs."""

from __future__ import annotations

from kda_lab.ops.nvfp4.layouts import ATOM_ROWS, round_up
from kda_lab.ops.nvfp4_gemm.oracle import BLOCK, geometry
from kda_lab.ops.protocol import Call, Work

SECTOR_BYTES = 32
ATOM_SECTORS = 16
"""Sectors of one atom of 128 rows by 4 scale columns."""
ALPHA_BYTES = 4


def work(call: Call) -> Work:
    """Bytes and FLOPs of a call, from its shapes: what a roofline counts.

    Reads N·K/2 weight codes, N·K/16 weight scales, M·K/2 activation codes, ceil128(M)·K/16 activation scales and
    alpha; writes M·N outputs. The activation scales count with their padding rows, since the contract hands them
    over: see `traffic_bytes` for what a kernel must really fetch. FLOPs are two for each multiply-add.
    """
    M, N, K = geometry(call)
    out = call.outputs["out"]
    x_scales = round_up(M, ATOM_ROWS) * K // BLOCK
    return Work(
        bytes_read=N * K // 2 + N * K // BLOCK + M * K // 2 + x_scales + ALPHA_BYTES,
        bytes_written=M * N * out.element_size(),
        flops=2 * M * N * K,
    )


def traffic_bytes(call: Call) -> int:
    """Bytes that a kernel moves at the least, with scales fetched in sectors of 32 bytes.

    In an atom of 512 bytes, row m lies at bytes 16·(m % 32) to 16·(m % 32) + 15, beside the rows m ± 32: one token
    touches 1 of its 16 sectors, nine touch 5, and 31 or more touch all. For M = 1 that is K/2 bytes where the
    container has 8·K: less than `work` then. Where N or K/16 leaves padding between live scales it is a little more.
    """
    M, N, K = geometry(call)
    out = call.outputs["out"]
    codes = (M + N) * K // 2
    return codes + _scale_traffic(M, K) + _scale_traffic(N, K) + SECTOR_BYTES + M * N * out.element_size()


def _scale_traffic(rows: int, K: int) -> int:
    """Bytes of the sectors that hold the scales of `rows` rows."""
    atoms = -(-(K // BLOCK) // 4)
    whole, rest = divmod(rows, ATOM_ROWS)
    sectors = whole * ATOM_SECTORS + min(-(-rest // 2), ATOM_SECTORS)
    return sectors * atoms * SECTOR_BYTES
