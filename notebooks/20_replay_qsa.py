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
# # Replay QSA packed decode on real tensors
# **Question:** is the kernel right on every captured call, and how much faster is it than what it must beat?
#
# Every capture goes through the kernel and each baseline, against an FP32 oracle and the pinned output. Deliberate
# mistakes (mutants) go through the same gates, so that a pass means something. On a GPU the same calls are then
# timed, cold, with an A/A control; on a CPU the kernels run in Triton's interpreter and nothing is timed.

# %% tags=["parameters"]
capture_set = "data/captures/qsa.packed_decode"  # folder of a capture set
captures = []  # names to replay; empty: all of the set
kernels = ["grouped"]  # candidate file stems or exported kernel names
baselines = ["per_head", "torch_sdpa", "flashinfer_ragged_fa2", "flashinfer_ragged_fa3", "flashinfer_paged_tc"]  # first: the one to beat
stress_launches = 1000  # more launches a capture on a GPU, compared bit by bit; 0: none
trials = 5  # timed trials an arm, at least 5 for a verdict
device = "auto"  # auto, cpu, cuda or cuda:N
run_dir = ""  # folder of this run's records; empty: reports/local/20_replay_qsa

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook import Session

session = Session.open("20_replay_qsa", run_dir, device)
session.provenance()

# %% [markdown]
# The captures: real tensors, what was folded to fit the op's shape, and their hashes.

# %%
chosen = session.captures(capture_set, captures)
session.capture_table(chosen)

# %% [markdown]
# The arms. One that cannot run here stays in the report with its reason.

# %%
arms = session.arms(chosen.op, kernels, baselines, trials)
session.arm_table(arms)

# %% [markdown]
# Replay: poisoned outputs, guard bands, NaN rows behind the live end, repeated launches, changed lengths, and every
# mutant at the very same inputs. A killed run goes on where it stopped.

# %%
replays = session.replay(chosen, arms, stress_launches)
session.replay_table()

# %% [markdown]
# Error against tolerance, one line a capture. The hollow mark is the floor: what BF16 rounding of P and of the
# output costs even a perfect kernel.

# %%
session.error_figure()

# %% [markdown]
# What the gates reject at these inputs. A mutant that changes nothing on a capture is listed with the reason.

# %%
session.power_table()

# %% [markdown]
# Time, on a GPU only: rotated input sets larger than five L2 caches, one graph, arms interleaved, an A/A control.

# %%
timed = session.time_captures(chosen, arms, trials)
timed.reason or f"{len(timed.records)} records"

# %% [markdown]
# Speedup over the first baseline with its interval; the grey band is the A/A noise floor.

# %%
session.speedup_figure()

# %% [markdown]
# The same against the strongest peer: the library path that a serving system would take.

# %%
session.peer_figure()

# %% [markdown]
# Latency of every arm against the roofline. Every row stands in the run's page and in rows.csv.

# %%
session.latency_figure()


# %% tags=["verdict"]
verdict = session.verdict()
verdict.raise_if_failed()
