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
# # Sweep QSA packed decode over batches and lengths
# **Question:** where in the shape space does the kernel win, and does it lose anywhere?
#
# Synthetic calls, seeded and labelled so: both topologies, each batch, each length class. First every row is judged
# like a capture, then it is timed on a GPU. Lengths: short 17 to 227, medium 512 to 1280, saturated 2051 rows; mixed
# cycles through lengths from 0 to 2051. `topologies = ["published"]` with empty batches and kinds takes the 106 rows of
# the source thread's two sweeps.

# %% tags=["parameters"]
op = "qsa.packed_decode"  # operator
topologies = ["tp1", "tp2"]  # tp1: 24 query and 2 KV heads; tp2: half on one of two ranks; or ["published"] alone
batches = [1, 2, 4]  # rows a call, 1 to 128; of published rows, those to take, all where empty
kinds = ["short", "medium"]  # length classes: short, medium, saturated, mixed; of published rows as batches
kernels = ["grouped"]  # candidate file stems, exported kernel names, or "dispatched": the public door
baselines = ["per_head", "flashinfer_ragged_fa2", "flashinfer_ragged_fa3", "flashinfer_paged_tc"]  # first: the one to beat
seed = 2026  # of the synthetic tensors
trials = 5  # timed trials an arm, at least 5 for a verdict
device = "auto"  # auto, cpu, cuda or cuda:N
run_dir = ""  # folder of this run's records; empty: reports/local/21_sweep_qsa

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook import Session

session = Session.open("21_sweep_qsa", run_dir, device)
session.provenance()

# %% [markdown]
# The rows of the sweep, as synthetic captures.

# %%
rows = session.rows(op, topologies, batches, kinds)
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
# Speedup over the first baseline, for each batch and length class.

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
