"""Token slots from page tables."""

import triton
import triton.language as tl


@triton.jit
def page_indices_kernel(
    pages, lengths, slots, v2p_ptr, stride: tl.constexpr, PAGE_MULT: tl.constexpr, BLOCK: tl.constexpr = 128
):
    row = tl.program_id(0)
    length = tl.load(lengths + row)
    for start in range(0, length, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        valid = offsets < length
        page = tl.load(pages + row * stride + offsets, mask=valid)
        physical = tl.load(v2p_ptr + page, mask=valid)
        tl.store(slots + row * stride + offsets, physical * PAGE_MULT, mask=valid)
