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
# # Replay an op of Kimi Delta Attention
# **Question:** is each kernel of the op right on every capture, and how much faster is it than what it must beat?
#
# `op` chooses the op: packed and fused decode, verification with snapshots or a ring, fold, replay, chunked prefill,
# attention residuals. The captures are synthetic, since a small real hybrid is not published as a package; only attention
# residuals also have some with the hidden states of a real model (`data/captures/kda.attn_residuals.smollm`). Every
# capture goes through the kernels and each baseline, against an FP32 oracle. What an op updates in place is put back
# before each launch and judged by a limit of its own; slots that no request names must keep their bits. Deliberate
# mistakes (mutants) go through the same gates. On a GPU the same calls are then timed; on a CPU nothing is.

# %% tags=["parameters"]
op = "kda.fused_decode"  # operator: one of the family `kda.`
capture_set = ""  # folder of a capture set; empty: data/captures/<op>
captures = []  # names to replay; empty: all of the set
kernels = []  # candidate file stems, exported kernel names or dispatched; empty: every candidate of the op
baselines = []  # first: the one to beat; empty: all of the op's own arms
stress_launches = 1000  # more launches a capture on a GPU, compared bit by bit; 0: none
modes = ["cold"]  # timing modes: cold, eight, warm, eager; none: only the replay
trials = 5  # timed trials an arm, at least 5 for a verdict
device = "auto"  # auto, cpu, cuda or cuda:N
run_dir = ""  # folder of this run's records; empty: reports/local/31_replay_kda

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook import Session

session = Session.open("31_replay_kda", run_dir, device)
session.provenance()

# %% [markdown]
# The captures: seeded, small, with K other than V, shared query heads, padding and keys so small that epsilon counts.

# %%
chosen = session.captures(capture_set or f"data/captures/{op}", captures, op)
session.capture_table(chosen)

# %% [markdown]
# The arms. One that cannot run here stays in the report with its reason.

# %%
arms = session.arms(chosen.op, kernels, baselines, trials, modes)
session.arm_table(arms)

# %% [markdown]
# Replay: poisoned outputs, guard bands, repeated launches from the same state, other tokens and other slots in the same
# buffers. A killed run goes on where it stopped.

# %%
replays = session.replay(chosen, arms, stress_launches)
session.replay_table()

# %% [markdown]
# Error against tolerance, one line a capture. The hollow mark is the floor: what rounding costs even a perfect kernel.

# %%
session.error_figure()

# %% [markdown]
# What the gates reject at these inputs. A mutant that changes nothing on a capture is listed with the reason.

# %%
session.power_table()

# %% [markdown]
# Time, on a GPU only: rotated input sets larger than five L2 caches, one graph, arms interleaved, an A/A control.

# %%
timed = session.time_captures(chosen, arms, trials, modes)
timed.reason or f"{len(timed.records)} records"

# %% [markdown]
# Speedup over the first baseline with its interval, then the latency of every arm against the roofline.

# %%
session.speedup_figure()

# %%
session.latency_figure()

# %% tags=["verdict"]
verdict = session.verdict()
verdict.raise_if_failed()
