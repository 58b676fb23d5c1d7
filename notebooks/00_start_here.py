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
# # Start here
# **Question:** what does this workbench do, and does it work on this machine?
#
# It takes a GPU kernel from a captured call to production: **record** real tensors, **replay** them against oracles and
# baselines, **time** them cold with an A/A control, **look**, and **export** the kernel with a contract that says when
# it may run. This notebook does each step once, on one small capture. The others do it in full:
#
# | notebook | does |
# |---|---|
# | `10_capture_qsa` | records the captures again from a small real model |
# | `20_replay_qsa` | judges and times the kernel on all fifteen captures |
# | `21_sweep_qsa` | the same over batches and lengths |
# | `50_export` | exports the kernel with its contract and calls it |

# %% tags=["parameters"]
capture_set = "data/captures/qsa.packed_decode"  # folder of a capture set
capture = "tp2r0-q3"  # one capture of the set
recorded_run = "reports/h200-replay-qsa-both"  # a committed run on an H200, whose times are shown
device = "auto"  # auto, cpu, cuda or cuda:N
run_dir = ""  # folder of this run's records; empty: reports/local/00_start_here

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook import Session

session = Session.open("00_start_here", run_dir, device)
session.provenance()

# %% [markdown]
# One captured call: queries, packed keys and values of a real model on a real text, with the output that was pinned.

# %%
chosen = session.captures(capture_set, [capture])
session.capture_table(chosen)

# %% [markdown]
# The kernel and what it must beat.

# %%
arms = session.arms(chosen.op, ["grouped"], ["per_head", "torch_sdpa"])
session.arm_table(arms)

# %% [markdown]
# Replay it. Deliberate mistakes go through the same gates: all of them must be caught.

# %%
replays = session.replay(chosen, arms)
session.replay_table()

# %%
session.power_table()

# %% [markdown]
# What a GPU run looks like: these times of the CUDA kernel for few rows, `clustered`, were recorded on an H200, cold, with an
# A/A control.

# %%
Session.open("recorded", recorded_run, "cpu").speedup_figure()

# %% tags=["verdict"]
verdict = session.verdict()
verdict.raise_if_failed()
