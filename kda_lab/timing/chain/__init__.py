"""A chain of layers in one CUDA graph: kernels timed where they will live, beside memory that others want cached.

Why and how is in `docs/pipeline.md`. Start at `measure.time_chain` for times, `judgement.check_chain` for
correctness alone and `comparison.compare` for verdicts.
"""
