"""Triton functions that the compile gate's tests compile: one good, one too big for shared memory, one broken."""

import triton
import triton.language as tl


@triton.jit
def copy_kernel(p_x, p_out, count, BLOCK: tl.constexpr):
    o_x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_out + o_x, tl.load(p_x + o_x, mask=o_x < count), mask=o_x < count)


@triton.jit
def square_dot_kernel(p_a, p_out, M: tl.constexpr, K: tl.constexpr):
    o_m = tl.arange(0, M)
    o_k = tl.arange(0, K)
    b_a = tl.load(p_a + o_m[:, None] * K + o_k[None, :])  # [M, K]
    b_sum = tl.dot(b_a, tl.trans(b_a))
    tl.store(p_out + o_m[:, None] * M + o_m[None, :], b_sum)


@triton.jit
def broken_kernel(p_x):
    tl.store(p_x, tl.no_such_function(p_x))


not_a_kernel = 3
