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
# # Sweep QSA paged decode over batches and lengths
# **Question:** what is saved when attention reads the paged pool itself, instead of compacting it first?
#
# Synthetic calls, seeded and labelled so: pages of 64 tokens scattered over a pool, blocks selected in no order. First
# every row is judged like a capture, then it is timed on a GPU. Valid tokens: short 17 to 227, medium 512 to 1280,
# saturated 2051; draft rows have holes before their newest tokens; verify rows share a request by four.

# %% tags=["parameters"]
op = "qsa.paged_decode"  # operator
topologies = ["tp2"]  # tp1: 24 query and 2 KV heads; tp2: half of it on one of two ranks
batches = [1, 2]  # rows a call, 1 to 128
kinds = ["short", "draft"]  # classes: short, medium, saturated, mixed, draft, verify
kernels = ["direct"]  # candidate file stems, exported kernel names, or "dispatched": the public door
baselines = ["compact_then_packed", "flashinfer_paged_page1"]  # first: the one to beat; torch_gather_sdpa is there too
seed = 2026  # of the synthetic tensors
trials = 5  # timed trials an arm, at least 5 for a verdict
device = "auto"  # auto, cpu, cuda or cuda:N
run_dir = ""  # folder of this run's records; empty: reports/local/26_sweep_paged_qsa

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook import Session

session = Session.open("26_sweep_paged_qsa", run_dir, device)
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
# Speedup over compaction and the packed kernel, for each batch and class.

# %%
session.batch_figure()

# %% [markdown]
# Against FlashInfer on pages of one token, one line a row. Its plan and the look-up of the slots are not in its time:
# both happen on the host before, and `prepare_us` of the records holds what binding all input sets cost. The arm
# `flashinfer_paged_page1_planned` does both in every launch; no graph can hold it, so it is timed in mode `eager`.

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
