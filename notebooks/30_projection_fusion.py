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
# # Five projections, or three, or three beside each other
# **Question:** what does fusing the projections in front of Kimi Delta Attention bring, and where?
#
# A layer multiplies x by five weights: qkv, b, the two of the decay gate, and the output gate. Fused they are three: one
# large weight, one small one padded to 8 rows, and the second of the decay gate. The two small ones can run on a side
# stream inside a CUDA graph (sglang PR 36206). Both arms read the very same bytes. On a CPU the sizes are small and nothing is timed.
#
# Weights are always drawn. So is x, unless `x_source` names captures of a real model: then x is what its attention projections are given,
# in that model's width, and the arms are compared on drawn x of this width too.

# %% tags=["parameters"]
tokens = [1, 2, 4, 8, 16, 32, 64, 128, 256]  # tokens of a call
attn_tp = [1, 2, 4, 8, 16]  # ranks of the attention's tensor-parallel group
modes = ["eager", "graph"]  # `eager`: launched from the host; `graph`: one CUDA graph
rounds = 8  # samples of every arm, in mirrored order
window_ms = 3.0  # device time of one sample, in ms
seconds = 100.0  # most time of the sweep, in s; cells beyond it are recorded as not reached
trace_at = [8, 4]  # attn_tp and tokens of the calls that are traced and cut
seed = 0  # of weights and tokens
x_source = ""  # folder of a real model's hidden states, such as data/captures/projection.inputs.smollm; empty: x is drawn
device = "auto"  # auto, cpu, cuda or cuda:N
run_dir = ""  # folder of this run's records; empty: reports/local/30_projection_fusion

# %%
from kda_lab.notebook import Session
from kda_lab.notebook.projection_session import ProjectionSession
from kda_lab.projection.plan import Plan

session = Session.open("30_projection_fusion", run_dir, device)
plan = Plan(tokens, attn_tp, modes, rounds=rounds, window_ms=window_ms, seconds=seconds, seed=seed)
study = ProjectionSession.open(session, plan, x_source, trace_at)
session.provenance()

# %% [markdown]
# When is it done? Three published versions of the rule. The thread changed two rows, and what landed decides as the thread.

# %%
study.truth_table()

# %% [markdown]
# Rows of the weights on one rank. They follow from the attention's group alone, not from the whole model's.

# %%
study.sizes()

# %% [markdown]
# Do the arms compute the same? Every arm against FP64. Equal bits are found, not demanded: a wider GEMM may choose another tile.

# %%
study.check(seed)

# %% [markdown]
# Real x has a few channels far above the rest. Are the arms as exact on it?

# %%
study.errors()

# %% [markdown]
# Times: all arms in one process on the same weights, in rounds whose order is mirrored, with the unfused arm once more as
# A/A control. Weights rotate over several times the L2.

# %%
print(study.measure())
study.table()

# %%
study.figure()

# %% [markdown]
# Work on a side stream runs longer than alone, so the sum of kernel durations may rise while the wall falls. Only the wall is time.

# %%
study.sums()

# %%
study.bits()

# %% [markdown]
# One call under the profiler, cut at a marker kernel by the slice tool: wall, union, overlap, idle.

# %%
study.trace(trace_at)

# %% tags=["verdict"]
verdict = study.verdict()
print(verdict.sentence)
verdict.raise_if_failed()
