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
# # Replay NVFP4 GEMMs on real tensors
# **Question:** is each kernel right on every captured product, and how much faster is it than what it must beat?
#
# Each capture is one linear layer of a real model: packed E2M1 codes, E4M3 block scales in the 128x4 swizzle, and one
# global scale. It goes through the kernels and each baseline, against an exact integer reference. Deliberate mistakes
# (a nibble swapped, scales read in another order, one element off) go through the same gates, so that a pass means
# something. On a GPU the same products are then timed.

# %% tags=["parameters"]
capture_set = "data/captures/nvfp4.gemm"  # folder of a capture set
captures = ["smollm2_gate_up-M1", "smollm2_gate_up-M9", "smollm2_down-M9", "gemma3_gate_up-M9", "gemma3_down-M1", "gemma3_down-M9"]  # names to replay; empty: all of the set
kernels = ["streamed", "portable"]  # candidate file stems or exported kernel names
baselines = ["cublas_bf16", "dequantise_matmul", "dequantise_cublas", "plain_triton", "flashinfer_mm_fp4"]  # first: the one to beat
stress_launches = 1000  # more launches a capture on a GPU, compared bit by bit; 0: none
trials = 5  # timed trials an arm, at least 5 for a verdict
modes = ["cold", "eight"]  # cold: over 5 L2, with verdicts; eight: eight input sets, as the source thread timed
device = "auto"  # auto, cpu, cuda or cuda:N
run_dir = ""  # folder of this run's records; empty: reports/local/22_replay_nvfp4

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook import Session

session = Session.open("22_replay_nvfp4", run_dir, device)
session.provenance()

# %% [markdown]
# The captures. M is the number of tokens; M = 9 is a step of speculative decoding that verifies nine tokens at once.

# %%
chosen = session.captures(capture_set, captures)
session.capture_table(chosen)

# %% [markdown]
# The arms. On a CPU the CUDA C++ kernel is stood in for by its torch twin, which decodes the same bytes in the same
# way: that checks layouts and plan, not device code. One that cannot run here stays in the report with its reason.

# %%
arms = session.arms(chosen.op, kernels, baselines, trials, modes)
session.arm_table(arms)

# %% [markdown]
# Replay: poisoned outputs, guard bands, NaN in the padding of the scale containers, repeated launches, then other
# activations and another alpha in the same buffers. A killed run goes on where it stopped.

# %%
replays = session.replay(chosen, arms, stress_launches)
session.replay_table()

# %% [markdown]
# Error against tolerance, one line a capture. The hollow mark is the floor: rounding the exact result to BF16 once.
# A kernel that accumulates in FP32 lies on it; the pinned output is a matrix product of dequantised operands.

# %%
session.error_figure()

# %% [markdown]
# What the gates reject at these inputs. A mutant that changes nothing on a capture is listed with the reason.

# %%
session.power_table()

# %% [markdown]
# Time, on a GPU only: rotated input sets larger than five L2 caches, one graph, arms interleaved, an A/A control.
# Beside it the source thread's protocol, eight input sets, which for layers this small all stay in the L2.

# %%
timed = session.time_captures(chosen, arms, trials, modes)
timed.reason or f"{len(timed.records)} records"

# %% [markdown]
# Speedup over cuBLAS on weights that were dequantised beforehand, which the serving system could not hold in memory.
# The grey band is the A/A noise floor.

# %%
session.speedup_figure()

# %% [markdown]
# How far from memory: share of the roofline that each arm reaches. Layers of a megabyte are bound by latency.

# %%
session.roof_figure()

# %% [markdown]
# What the protocol does to the answer: where the hollow mark lies apart, eight sets measured the cache.

# %%
session.eight_figure()

# %% tags=["verdict"]
verdict = session.verdict()
verdict.raise_if_failed()
