"""The marker kernel: launched, and named as the slice tool looks for it."""

from __future__ import annotations

import torch

from kda_lab import interpreter
from kda_lab.projection import marker
from kda_lab.projection.traces import MARKER, MARKER_NAME


def test_the_marker_sets_its_flag_under_its_name() -> None:
    """One int32 becomes 1; the kernel's name is that of the marker."""
    interpreter.ensure_faithful()
    flag = torch.zeros(1, dtype=torch.int32)
    marker.mark(flag)
    assert flag.item() == 1
    assert marker.projection_step_marker.fn.__name__ == MARKER_NAME == MARKER.name
