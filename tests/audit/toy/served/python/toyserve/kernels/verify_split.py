"""One split of the verify attention."""

import triton
import triton.language as tl


@triton.jit
def verify_split_kernel(q, k, scores, length, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr):
    columns = tl.arange(0, BLOCK_D)
    in_head = columns < HEAD_DIM
    query = tl.load(q + columns, mask=in_head, other=0.0)
    for start in range(0, length, BLOCK_N):
        rows = start + tl.arange(0, BLOCK_N)
        inside = (rows[:, None] < length) & in_head[None, :]
        keys = tl.load(k + rows[:, None] * HEAD_DIM + columns[None, :], mask=inside, other=0.0)
        total = tl.sum(keys * query[None, :], axis=1)
        tl.store(scores + rows, total, mask=rows < length)
