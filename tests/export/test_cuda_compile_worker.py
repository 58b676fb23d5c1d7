"""What the child process of the compile gate asks of NVRTC, and what it reads from its log."""

from __future__ import annotations

import pytest

from kda_lab.export.cuda_compile_worker import options_of, static_shared_bytes

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1gILi64EEvPf' for 'sm_90'
ptxas info    : Function properties for _Z1gILi64EEvPf
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 256 bytes smem
ptxas info    : Compiling entry function 'h' for 'sm_90'
ptxas info    : Function properties for h
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 14 registers, used 0 barriers
"""


def test_options_reach_the_compiler_as_written() -> None:
    """A unit's options come first, unchanged; without an architecture the plain one of the capability is added."""
    unit = {"function": "f", "options": ["-std=c++17", "-DA=1"]}
    assert options_of(unit, [12, 1]) == ["-std=c++17", "-DA=1", "-arch=sm_121", "--ptxas-options=-v"]


def test_named_architecture_is_kept() -> None:
    """sm_90a may be asked for on 9.0; nothing is added."""
    unit = {"function": "f", "options": ["--gpu-architecture=sm_90a"]}
    assert options_of(unit, [9, 0]) == ["--gpu-architecture=sm_90a", "--ptxas-options=-v"]


@pytest.mark.parametrize("name", ["sm_80", "compute_90", "sm_90b"])
def test_foreign_architecture_is_refused(name: str) -> None:
    """Another capability, or a virtual architecture without machine code, proves nothing for this one."""
    with pytest.raises(ValueError, match=rf"options of f name \['{name}'\]; allowed here: sm_90, sm_90a, sm_90f"):
        options_of({"function": "f", "options": [f"-arch={name}"]}, [9, 0])


def test_shared_memory_is_that_of_the_named_function() -> None:
    """Each entry has its own line; no mention of shared memory means none."""
    assert static_shared_bytes(LOG, "_Z1gILi64EEvPf") == (256, 10)
    assert static_shared_bytes(LOG, "h") == (0, 14)


def test_log_without_a_report_fails_closed() -> None:
    """A compiler that reports nothing, such as one that answered from a cache, leaves the limit unjudged."""
    with pytest.raises(ValueError, match="NVRTC's log has no report of g: nothing"):
        static_shared_bytes("nothing", "g")
