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
# # The packed decodes of ten forwards, in one graph
# **Question:** what does the kernel save in the order in which a decoding model calls it?
#
# A forward of the source thread's model makes fifteen calls: twelve attention layers of the target, with four query rows a
# request, and three draft steps with one. Ten forwards are 150 calls. At 8K tokens of context every row is saturated: 2051
# keys in the target and 2055 in the draft. Every call has tensors of its own, so nothing is read twice in a pass.

# %% tags=["parameters"]
op = "qsa.packed_decode"  # operator
topology = "tp2"  # tp1: 24 query and 2 KV heads; tp2: half of it on one of two ranks
requests = 1  # decoded together: 4 query rows each in the target, 1 in the draft
forwards = 2  # at least 2; 10 for the trace of the source thread
kinds = ["short", "short"]  # length classes of target and draft; ["saturated", "draft"] for 8K tokens of context
layers = [2, 1]  # calls a forward of target and draft; [12, 3] for the model of the source thread
kernels = ["grouped"]  # candidate file stems or exported kernel names
baselines = ["per_head", "flashinfer_ragged_fa2", "upstream_schedule"]  # first: the one to beat
trials = 5  # timed trials an arm, at least 5 for a verdict
seed = 2026  # of the checked tensors
device = "auto"  # auto, cpu, cuda or cuda:N
run_dir = ""  # folder of this run's records; empty: reports/local/27_trace_qsa

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook import Session
from kda_lab.notebook.trace_session import TraceSession

session = Session.open("27_trace_qsa", run_dir, device)
session.provenance()

# %%
size = (requests, forwards)
chosen = TraceSession.open(session, op, topology, size=size, kinds=kinds, layers=layers, seed=seed)
chosen.geometry()

# %%
chosen.choose_arms(kernels, baselines)

# %% [markdown]
# Right first: every call written, those of the first and the last forward against the oracle, on contents that were put
# there after the arm was bound.

# %%
chosen.check()

# %% [markdown]
# Then the time, on a GPU only: a CUDA graph of whole passes, arms in alternating order, the baseline again as a control.

# %%
chosen.time(trials)

# %% [markdown]
# Mean of a call, total of the trace, and the ratio to the baseline.

# %%
chosen.table()

# %% [markdown]
# The same against the last of the baselines.

# %%
chosen.table(against=baselines[-1])

# %%
chosen.figure()

# %% tags=["verdict"]
verdict = chosen.verdict()
print(verdict.sentence)
verdict.raise_if_failed()
