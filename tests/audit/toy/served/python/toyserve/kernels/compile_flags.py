"""Flags of the run-time compiler."""

import os

BASE_FLAGS = ["-O3", "-std=c++17", "--use_fast_math"]


def flags_for(platform: str, debug: bool = False) -> list[str]:
    """The compiler's flags on one platform."""
    flags = list(BASE_FLAGS)
    if platform == "rocm":
        # hipcc does not know the flag.
        flags = [flag for flag in flags if flag != "--use_fast_math"]
    if debug or os.environ.get("TOYSERVE_DEBUG_BUILD"):
        flags.append("-lineinfo")
    return flags
