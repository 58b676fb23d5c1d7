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
# # A GEMM where it will live: cache policies in a chain of layers
# **Question:** does a cache policy that wins a loop of its own still win between the layers of a model?
#
# A kernel may ask the L2 to keep its weights or its block scales. In a loop over one product that can only help. In a
# model the same L2 also holds attention state, and what one keeps the other loses. So each policy is timed twice: apart,
# and in one CUDA graph of many layers that read their state before every product.

# %% tags=["parameters"]
model = "tiny"  # tiny (for a CPU), 4b, 9b or 27b: the gate_up and down products of one model size
batch = 2  # tokens a step (M), 1 to 16
layers = 3  # layers of the chain, each with weights and state of its own, at least 2
state_mb = 0.25  # state of one layer in MB (1e6 bytes), read whole before each product; 0: none
kernel = "streamed"  # candidate that offers gemm_with_policy
policies = ["stream/stream", "stream/persist", "persist/stream", "persist/persist"]  # weights/scales; first: reference
baseline = "cublas_bf16"  # the op's own arm that is shown beside the policies
peers = ["portable"]  # other candidates
seed = 2026  # of the checked tensors
trials = 5  # timed trials an arm, at least 5 for a verdict
device = "auto"  # auto, cpu, cuda or cuda:N
run_dir = ""  # folder of this run's records; empty: reports/local/24_pipeline_context

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook import Session
from kda_lab.notebook.pipeline_session import PipelineSession

session = Session.open("24_pipeline_context", run_dir, device)
session.provenance()

# %% [markdown]
# The chain: products of one layer, state between them, and the L2 that both want. Activations of a layer are fixed
# tensors: no output is quantised and fed forward, so that only this op and the state are timed.

# %%
size = {"model": model, "batch": batch, "layers": layers, "state_mb": state_mb}
chain = PipelineSession.open(session, "nvfp4.gemm", **size, seed=seed)
chain.geometry()

# %% [markdown]
# One kernel under every policy. On a CPU its torch twin runs, which ignores the hints.

# %%
chain.choose_arms(kernel, policies, baseline, peers)

# %% [markdown]
# Right first: every product of the first and the last layer against the oracle, every state, and one hash for the
# outputs of all policies, since a hint must not change a bit.

# %%
chain.check()

# %% [markdown]
# Each product apart, on a GPU only: cold by protocol v1, and over eight input sets as the source thread did.

# %%
chain.time_isolated(trials)

# %% [markdown]
# Then all layers in one graph, the policies in alternating order with an A/A control, and once without the products.

# %%
chain.time_chain(trials)

# %% [markdown]
# Each policy against the reference policy, in every place. A mark right of the grey band is a win beyond noise; a win
# that stands in the isolated rows alone is one that a model would not see.

# %%
chain.figure()

# %%
chain.findings()

# %% [markdown]
# All arms in microseconds of one layer. *Saved* compares across places: what a policy saves apart and what is left of it.

# %%
chain.table()

# %% [markdown]
# The same against the BF16 baseline.

# %%
chain.table(against=baseline)

# %% tags=["verdict"]
verdict = chain.verdict()
print(verdict.sentence)
verdict.raise_if_failed()
