"""What `kda.verify_snapshots` must compute: T draft tokens of each request from its state, which is not written.

The functions are those of both verify ops, `kda_lab/ops/kda/verify_oracle.py`: they give the outputs that a call holds.
"""

from __future__ import annotations

from kda_lab.ops.kda.verify_oracle import allowance, emulate, oracle_fp32, oracle_fp64

__all__ = ("allowance", "emulate", "oracle_fp32", "oracle_fp64")
