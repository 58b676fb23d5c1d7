"""Hash a tensor's words."""

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count", "seed"])
def _hash_kernel(words, out, count, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mixed = (tl.load(words + offsets, mask=offsets < count, other=0) ^ seed) * 0x9E3779B1
    tl.atomic_xor(out, tl.xor_sum(mixed, axis=0))


def tensor_hash(words: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """One word a tensor."""
    out = torch.zeros(1, dtype=torch.int32, device=words.device)
    _hash_kernel[(triton.cdiv(words.numel(), 1024),)](words, out, words.numel(), seed, BLOCK=1024)
    return out
