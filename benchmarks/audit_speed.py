"""Time the audit of two generated trees of Python files, and print the seconds.

    python benchmarks/audit_speed.py [FILES]

Each file has four Triton kernels with their wrappers and calls three other files; in the export one file in twenty has
lost a parameter that its callers pass. The trees lie in a temporary folder; nothing else is written.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from kda_lab.audit.trees import audit_trees

KERNEL = '''

@triton.jit
def _kernel_{i}(source, target, count, page_mult: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    for step in range(0, {i} + 4):
        value = tl.load(source + offsets + step * BLOCK, mask=inside, other=0.0)
        value = value * page_mult + step
        tl.store(target + offsets + step * BLOCK, value, mask=inside)


def run_{n}_{i}(source: torch.Tensor, target: torch.Tensor, page_mult: int = 64) -> torch.Tensor:
    """Launch kernel {i} of module {n}."""
    if source.stride(-1) != 1:
        raise ValueError(f"source strides are {{source.stride()}}; allowed: the last axis contiguous")
    count = source.numel()
    num_warps = 8 if count > 4096 else 4
    grid = (triton.cdiv(count, 256),)
    _kernel_{i}[grid](source, target, count, page_mult=page_mult, BLOCK=256, num_warps=num_warps)
    if page_mult == 64 and count > 1024:
        from package.module_{other} import run_{other}_{i} as following

        following(source, target, page_mult=page_mult)
    return target
'''
KERNELS = 4


def module(n: int, files: int) -> str:
    """Text of module `n` of `files`."""
    others = [(n * 7 + k) % files for k in (1, 2, 3)]
    lines = [f'"""Module {n}."""', "", "import torch", "import triton", "import triton.language as tl", ""]
    lines += [f"from package.module_{o} import run_{o}_0" for o in others]
    text = "\n".join(lines) + "\n"
    text += "".join(KERNEL.format(n=n, i=i, other=(n * 11 + i + 1) % files) for i in range(KERNELS))
    calls = "\n".join(f"    run_{o}_0(source, target, page_mult=16)" for o in others)
    return f'{text}\n\ndef chain_{n}(source: torch.Tensor, target: torch.Tensor) -> None:\n    """Call others."""\n{calls}\n'


def write_tree(root: Path, files: int, lossy: bool) -> int:
    """Write a tree; every twentieth file loses a parameter where `lossy`. Returns the lines written."""
    package = root / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""Generated."""\n')
    lines = 0
    for n in range(files):
        text = module(n, files)
        if lossy and n % 20 == 0:
            text = text.replace(", page_mult: int = 64", "").replace(
                "page_mult=page_mult, BLOCK", "page_mult=64, BLOCK"
            )
        (package / f"module_{n}.py").write_text(text)
        lines += text.count("\n")
    return lines


def main() -> None:
    """Generate, audit, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="?", type=int, default=2000, help="Python files a tree, at least 20")
    files = max(20, parser.parse_args().files)
    with tempfile.TemporaryDirectory() as folder:
        source, export = Path(folder) / "source", Path(folder) / "export"
        lines = write_tree(source, files, lossy=False)
        write_tree(export, files, lossy=True)
        start, start_cpu = time.perf_counter(), time.process_time()
        found = audit_trees(source, export)
        seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    sys.stdout.write(
        f"{files} files, {lines} lines a tree: {seconds:.1f} s ({cpu:.1f} s of one core); {found.sentence}\n"
    )


if __name__ == "__main__":
    main()
