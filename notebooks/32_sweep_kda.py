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
# # Sweep an op of Kimi Delta Attention over heads and batches
# **Question:** where in the shape space does the op's kernel win, and does it lose anywhere?
#
# Synthetic calls, seeded and labelled so, of the heads that a rank of Kimi K3 holds (12 of 96 with eight ranks). First
# every row is judged like a capture, then it is timed on a GPU. A call of 32 requests and 12 heads moves 50 MB, which
# would stay in the L2 of an H200: timing rotates over several pools, each with slots of its own.

# %% tags=["parameters"]
op = "kda.fused_decode"  # operator: one of the family `kda.`
axes = {"HV": [12], "B": [1]}  # axis of the op's rows to the values to take; an axis left out: all of its values
kernels = []  # candidate file stems, exported kernel names or dispatched; empty: every candidate of the op
baselines = []  # first: the one to beat; empty: all of the op's own arms
seed = 2026  # of the synthetic tensors
trials = 5  # timed trials an arm, at least 5 for a verdict
device = "auto"  # auto, cpu, cuda or cuda:N
run_dir = ""  # folder of this run's records; empty: reports/local/32_sweep_kda

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook import Session

session = Session.open("32_sweep_kda", run_dir, device)
session.provenance()

# %% [markdown]
# The rows of the sweep, as synthetic captures.

# %%
rows = session.rows_where(op, axes)
chosen = session.synthetic(op, rows, seed)
session.capture_table(chosen)

# %%
arms = session.arms(op, kernels, baselines, trials)
session.arm_table(arms)

# %% [markdown]
# Right first: every row through the same gates as a capture, mutants included.

# %%
replays = session.replay(chosen, arms)
session.replay_table()

# %%
session.power_table()

# %% [markdown]
# Then the time, on a GPU only.

# %%
timed = session.time_rows(op, rows, arms, trials)
timed.reason or f"{len(timed.records)} records"

# %% [markdown]
# Speedup over the first baseline, for each batch.

# %%
session.batch_figure()

# %% [markdown]
# Against the strongest peer, one line a row.

# %%
session.peer_figure()

# %% [markdown]
# Latency against the roofline: where the curve leaves the roof, latency and not bandwidth decides.

# %%
session.latency_figure()

# %% [markdown]
# Geomean and minimum of each batch. Every row stands in the run's page and in rows.csv.

# %%
session.batch_table()

# %% tags=["verdict"]
verdict = session.verdict()
verdict.raise_if_failed()
