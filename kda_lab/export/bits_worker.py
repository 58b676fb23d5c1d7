"""Child process of the export: run the staged kernel and the candidate on every capture, compare their bits.

Reads one JSON request from stdin: `folder` (the staged kernel), `candidate` (its source file), `captures`
(folders of capture sets), `device` (`auto`, `cpu` or `cuda`). Prints one JSON object: `replayed` (count),
`different` (names of captures on which an output differs in any bit), `device`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from kda_lab import runtime
from kda_lab.ops.protocol import Call


def fresh_output(call: Call, bind: Callable[[list[Call]], list[Callable[[], None]]]) -> dict[str, torch.Tensor]:
    """Outputs of one launch on private copies of the call's tensors, poisoned before; what is updated begins as given."""
    private = call.to(call.device)
    for tensor in private.outputs.values():
        tensor.view(torch.uint8).fill_(0xFF)
    private.restore()
    (launch,) = bind([private])
    launch()
    return private.outputs


def same_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Whether two sets of outputs agree in name, shape and every byte."""
    return first.keys() == second.keys() and all(
        a.shape == second[n].shape and torch.equal(a.view(torch.uint8), second[n].view(torch.uint8))
        for n, a in first.items()
    )


def main() -> None:
    """Compare on all captures of the request; a kernel that raises ends the process with its traceback."""
    request = json.load(sys.stdin)
    # Triton reads TRITON_INTERPRET when a kernel is defined, so the switch comes before anything imports one.
    runtime.use_interpreter_on_cpu()
    from kda_lab.captures.store import CaptureSet  # lazy: triton
    from kda_lab.ops.arms import candidate_arm, exported_arm  # lazy: triton

    device = runtime.resolve_device(request["device"])
    exported, candidate = exported_arm(Path(request["folder"])), candidate_arm(Path(request["candidate"]))
    replayed, different = 0, []
    for folder in request["captures"]:
        captures = CaptureSet.open(folder)
        for name in captures.names():
            call = captures.load(name, device).call
            replayed += 1
            if not same_bits(fresh_output(call, exported.bind), fresh_output(call, candidate.bind)):
                different.append(name)
    sys.stdout.write(json.dumps({"replayed": replayed, "different": different, "device": str(device)}) + "\n")


if __name__ == "__main__":
    main()
