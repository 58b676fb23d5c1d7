"""Evil arm: launches on a stream of its own, so that a captured graph does not hold its work."""

from __future__ import annotations

import pytest
import torch
from toy_op import BoundArm, make_capture, make_op

from kda_lab.verify import replay


def escaping() -> BoundArm:
    side = torch.cuda.Stream()

    def bind(call):
        scale = torch.tensor(call.scalars["scale"], device="cuda")

        def launch() -> None:
            with torch.cuda.stream(side):
                x, cu = call.inputs["x"], call.inputs["cu"].long()
                rows = torch.arange(x.shape[0], device="cuda")[:, None]
                mine = ((rows >= cu[:-1]) & (rows < cu[1:])).float()  # [N, B]
                total = torch.einsum("nb,nhd->bhd", mine, torch.nan_to_num(x.float()))
                mean = total / cu.diff().clamp(min=1)[:, None, None] * scale
                call.outputs["out"].copy_(mean)
                call.outputs["count"].copy_(cu.diff())

        return launch

    return BoundArm("escaping", bind)


@pytest.mark.gpu
def test_caught_by_graph_replay() -> None:
    """Work outside of the captured stream breaks the capture or is missing from the replay."""
    done = replay(make_op(), escaping(), make_capture(), "cuda")
    assert {"changed_lengths_shorter", "changed_lengths_longer"} <= set(done.failed)
    assert "error_fp32" not in done.failed
