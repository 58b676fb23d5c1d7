"""Where the scale of (row, column) lies: 128x4 swizzle, 8x4 swizzle, linear.

A scale tensor [R, C] has one row for each row of the operand and one column for each 16 values of K. Tensor cores
read it in atoms of 128 rows by 4 columns (512 bytes), whose rows m, m+32, m+64 and m+96 are neighbours; rows are
padded to 128 and columns to 4, and padding is zero. The 8x4 form does the same in atoms of 32 bytes for few rows.
The linear layout is the tensor itself. The shape of a swizzled tensor is only a container for its bytes.
"""

from __future__ import annotations

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.nvfp4 import e4m3

ATOM_ROWS, ATOM_COLUMNS = 128, 4
SMALL_ROWS = 8


def round_up(size: int, multiple: int) -> int:
    """Smallest multiple of `multiple` that is not below `size`."""
    return -(-size // multiple) * multiple


def offset_128x4(row: int, column: int, columns: int) -> int:
    """Byte offset of scale (row, column) in a 128x4-swizzled tensor with this many unpadded columns."""
    atom = row // 128 * -(-columns // 4) + column // 4
    return atom * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4


def offset_8x4(row: int, column: int, columns: int) -> int:
    """Byte offset of scale (row, column) in an 8x4-swizzled tensor with this many unpadded columns."""
    return (row // 8 * -(-columns // 4) + column // 4) * 32 + row % 8 * 4 + column % 4


def swizzle_128x4(scales: torch.Tensor) -> torch.Tensor:
    """Lay linear scales out for tensor cores.

    Args:
        scales: [R, C] uint8 or float8_e4m3fn, any strides.

    Returns:
        [ceil128(R), ceil4(C)] uint8, contiguous; padding is zero.

    Raises:
        ParameterError: scales are not two-dimensional, or have another dtype.
    """
    padded = _padded(scales, ATOM_ROWS)
    rows, columns = padded.shape
    return padded.view(rows // 128, 4, 32, columns // 4, 4).permute(0, 3, 2, 1, 4).reshape(rows, columns)


def unswizzle_128x4(swizzled: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Linear scales of a 128x4-swizzled tensor, without its padding.

    Args:
        swizzled: uint8 or float8_e4m3fn, contiguous, ceil128(rows) * ceil4(columns) bytes in any shape.
        rows: R, unpadded.
        columns: C, unpadded.

    Returns:
        [rows, columns] uint8, contiguous.

    Raises:
        ParameterError: another number of bytes, not contiguous, or another dtype.
    """
    padded_rows, padded_columns = round_up(rows, ATOM_ROWS), round_up(columns, ATOM_COLUMNS)
    atoms = _container(swizzled, padded_rows, padded_columns)
    linear = atoms.view(padded_rows // 128, padded_columns // 4, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return linear.reshape(padded_rows, padded_columns)[:rows, :columns].contiguous()


def swizzle_8x4(scales: torch.Tensor) -> torch.Tensor:
    """Lay linear scales out in atoms of 8 rows by 4 columns.

    Args:
        scales: [R, C] uint8 or float8_e4m3fn, any strides.

    Returns:
        [ceil8(R), ceil4(C)] uint8, contiguous; padding is zero.

    Raises:
        ParameterError: scales are not two-dimensional, or have another dtype.
    """
    padded = _padded(scales, SMALL_ROWS)
    rows, columns = padded.shape
    return padded.view(rows // 8, 8, columns // 4, 4).permute(0, 2, 1, 3).reshape(rows, columns)


def unswizzle_8x4(swizzled: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Linear scales of an 8x4-swizzled tensor, without its padding.

    Args:
        swizzled: uint8 or float8_e4m3fn, contiguous, ceil8(rows) * ceil4(columns) bytes in any shape.
        rows: R, unpadded.
        columns: C, unpadded.

    Returns:
        [rows, columns] uint8, contiguous.

    Raises:
        ParameterError: another number of bytes, not contiguous, or another dtype.
    """
    padded_rows, padded_columns = round_up(rows, SMALL_ROWS), round_up(columns, ATOM_COLUMNS)
    atoms = _container(swizzled, padded_rows, padded_columns)
    linear = atoms.view(padded_rows // 8, padded_columns // 4, 8, 4).permute(0, 2, 1, 3)
    return linear.reshape(padded_rows, padded_columns)[:rows, :columns].contiguous()


def padding_is_clean(swizzled: torch.Tensor, rows: int, columns: int) -> bool:
    """Whether every padding byte of a 128x4-swizzled tensor is zero; reads the device, so ask at load time.

    A padding byte of 0x7F is NaN, and NaN times a zero operand is NaN: a kernel that reads whole atoms then
    spoils live outputs.

    Args:
        swizzled: uint8 or float8_e4m3fn, contiguous, ceil128(rows) * ceil4(columns) bytes. Hand over the
            transposed view's transpose for weights: `padding_is_clean(weight_sf.T, N, K // 16)`.
        rows: R, unpadded.
        columns: C, unpadded.

    Raises:
        ParameterError: another number of bytes, not contiguous, or another dtype.
    """
    cleaned = swizzle_128x4(unswizzle_128x4(swizzled, rows, columns))
    return torch.equal(cleaned, e4m3.as_bytes("swizzled", swizzled).view(cleaned.shape))


def _padded(scales: torch.Tensor, row_multiple: int) -> torch.Tensor:
    if scales.dim() != 2:
        remedy = "Give linear scales: one row for each operand row, one column for each 16 values of K."
        raise ParameterError("nvfp4", [Reason("scales.shape", repr(tuple(scales.shape)), "[R, C]", remedy)])
    rows, columns = scales.shape
    shape = round_up(rows, row_multiple), round_up(columns, ATOM_COLUMNS)
    padded = torch.zeros(shape, dtype=torch.uint8, device=scales.device)
    padded[:rows, :columns] = e4m3.as_bytes("scales", scales)
    return padded


def _container(swizzled: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    data = e4m3.as_bytes("swizzled", swizzled)
    reasons = []
    if data.numel() != rows * columns:
        allowed = f"{rows * columns} bytes ([{rows}, {columns}])"
        remedy = "Rows and columns are the unpadded ones; the tensor is the padded one."
        reasons.append(Reason("swizzled.shape", repr(tuple(data.shape)), allowed, remedy))
    if not data.is_contiguous():
        remedy = "Transpose a weight's scales back first: weight_sf.T."
        reasons.append(Reason("swizzled.stride()", repr(data.stride()), "contiguous", remedy))
    if reasons:
        raise ParameterError("nvfp4", reasons)
    return data
