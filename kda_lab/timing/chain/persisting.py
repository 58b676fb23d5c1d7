"""Give back what a policy asked the L2 to keep, so that one arm's lines are not in another arm's way."""

from __future__ import annotations

import torch

from kda_lab import runtime

DRIVER = "cuda.bindings.driver"


def reset_persisting_lines(device: torch.device) -> str:
    """Make every line that the L2 was asked to keep an ordinary one; the device must be idle.

    Lines loaded with evict-last priority outlive the launch that loaded them: without a reset, the arm after a
    policy that persists would have less L2 than the arm before it.

    Returns:
        Empty when it was done, else why not: `unavailable, because …`.
    """
    if device.type != "cuda":
        return f"unavailable, because a {device.type} has no L2 that a launch could ask to keep lines"
    found = runtime.import_optional(DRIVER)
    if found.module is None:
        return found.reason
    with torch.cuda.device(device):
        torch.cuda.synchronize(device)
        (status,) = found.module.cuCtxResetPersistingL2Cache()
    good = found.module.CUresult.CUDA_SUCCESS
    return "" if status == good else f"unavailable, because cuCtxResetPersistingL2Cache returned {status}"
