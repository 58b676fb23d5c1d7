"""Timing: cold input sets in CUDA graphs, arms in alternating order, telemetry, and a verdict with its noise.

The protocol and its reasons are in `docs/timing.md`. Start at `rows.time_rows` for a run,
`measure.time_row` for one row and `statistics.summarise` for verdicts.
"""
