# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Sweep NVFP4 GEMMs over shapes and tokens
# **Question:** at which shapes and token counts does the kernel win over each baseline, and how near is the roofline?
#
# Synthetic products, seeded and labelled so. First every row is judged like a capture, then it is timed on a GPU.
# `random` rows give BF16, `fp32` rows show the accumulator itself, and in `exact` rows every sum is representable, so
# that a kernel in any order of summation must give equal values. `any_scale` rows hold every scale byte from 0x01 to
# 0x7E, with rows of subnormal scales alone. Block scales always vary: with scales of one, a kernel that reads them in
# the wrong order looks right.

# %% tags=["parameters"]
op = "nvfp4.gemm"  # operator
shapes = ["tiny_a", "tiny_b", "tiny_c"]  # names of (K, N); or "published" alone: the calls of the source thread
batches = [1, 9]  # tokens M a call; with "published": those to take, empty for all
kinds = ["random", "fp32", "exact", "any_scale"]  # random, fp32, exact, any_scale
kernels = ["streamed", "portable"]  # candidate file stems or exported kernel names
baselines = ["cublas_bf16", "dequantise_matmul", "plain_triton", "dequantise_cublas", "flashinfer_mm_fp4"]  # first: the one to beat
seed = 2026  # of the synthetic tensors
trials = 5  # timed trials an arm, at least 5 for a verdict
modes = ["cold", "eight"]  # cold: over 5 L2, with verdicts; eight: eight input sets, as the source thread timed
device = "auto"  # auto, cpu, cuda or cuda:N
run_dir = ""  # folder of this run's records; empty: reports/local/23_sweep_nvfp4

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook import Session

session = Session.open("23_sweep_nvfp4", run_dir, device)
session.provenance()

# %% [markdown]
# The rows of the sweep, as synthetic captures, and the arms. On a CPU the CUDA C++ kernel is stood in for by its
# torch twin, which checks layouts and plan, not device code.

# %%
rows = session.rows(op, shapes, batches, kinds)
chosen = session.synthetic(op, rows, seed)
arms = session.arms(op, kernels, baselines, trials, modes)
session.arm_table(arms)

# %% [markdown]
# Right first: every row through the same gates as a capture. `exact` rows have a limit of 0.

# %%
replays = session.replay(chosen, arms)
session.replay_table()

# %%
session.power_table()

# %% [markdown]
# Error against tolerance, one line a row: two to three decades between a BF16 output and an FP32 one.

# %%
session.error_figure()

# %% [markdown]
# Then the time, on a GPU only: cold, and with eight input sets as the source thread did.

# %%
timed = session.time_rows(op, rows, arms, trials, modes)
timed.reason or f"{len(timed.records)} records"

# %% [markdown]
# Speedup over cuBLAS on weights dequantised to BF16 beforehand, four times the bytes: up to 3.5x if memory is all.

# %%
session.batch_figure()

# %% [markdown]
# Over each baseline. Against the plain Triton kernel: what the schedule is worth, beyond reading fewer bytes;
# against `dequantise_matmul`: what a system pays that decodes its weights on every call.

# %%
session.each_figure()

# %% [markdown]
# Share of the memory roofline, one mark an arm. Right of it would be a time that some cache made.

# %%
session.roof_figure()

# %% [markdown]
# The source thread's protocol beside the cold one: a ratio that moves where eight sets fit in the L2 is a ratio of
# caches. Every row stands in the run's page and in rows.csv.

# %%
session.eight_figure()

# %% tags=["verdict"]
verdict = session.verdict()
verdict.raise_if_failed()
