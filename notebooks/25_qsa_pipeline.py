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
# # Qwen Sparse Attention from hidden states to output
# **Question:** does every stage of the pipeline do what its oracle says, and where does the time go?
#
# A query of a long context attends to at most 2051 of its tokens: 512 blocks of four, chosen by a small scorer, and the
# incomplete last block. This notebook walks the whole way once, each stage on what the stage before it wrote, and checks
# each one by itself and the end against dense attention. `docs/qsa.md` has the formulas.

# %% tags=["parameters"]
context = 4096  # tokens of the text, a multiple of 4; the longest row sees all of it
batch = 4  # rows: requests that are prefixes of the text, from all of it down to a batch-th
topology = "tp2"  # tp1 (24 query and 2 KV heads) or tp2 (12 and 1)
paged_kernels = ["direct"]  # candidates of qsa.paged_decode: the first one attends here, all are timed
seed = 2026  # of text, weights and page order
trials = 5  # timed trials an arm, at least 5 for a verdict
device = "auto"  # auto, cpu, cuda or cuda:N
run_dir = ""  # folder of this run's records; empty: reports/local/25_qsa_pipeline

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook import Session
from kda_lab.notebook.qsa_session import QsaSession

session = Session.open("25_qsa_pipeline", run_dir, device)
session.provenance()

# %% [markdown]
# The hidden states are drawn, not recorded: passages on a dozen topics that come back, so that a query has something to
# look for. The weights are drawn too. Every request has its own pages in a shuffled pool.

# %%
pipeline = QsaSession.open(session, context=context, batch=batch, topology=topology, seed=seed)
pipeline.inputs()

# %% [markdown]
# **Index and compression.** One projection gives four small query heads and one raw key a token. Four raw keys become one
# compressed key: their mean, normalised, rotated to the position of the first of them, stored where that token lies.

# %%
pipeline.compress()

# %% [markdown]
# **Scores and selection.** Each complete block gets the sum of its rectified products with the query heads; the 512 best
# are taken, as ids in ascending order. A row with at most 512 blocks takes them all. The dark strips of a long row lie
# under the passages on its own topic.

# %%
pipeline.select()

# %% [markdown]
# **Expansion.** Blocks become tokens, four each, and the tokens of the incomplete block are always added: so a full
# row has 2048 to 2051 tokens, in the rhythm of its length.

# %%
pipeline.counts()

# %% [markdown]
# **Attention**, twice: the chosen KV rows are compacted and attended through `kda_lab.qsa.packed_decode`; or a kernel reads
# them where they lie. The end to end rows compare with dense attention in FP64 under a mask, which knows no pages.

# %%
pipeline.attend(paged_kernels[0])

# %% [markdown]
# What the selection itself leaves out of dense attention is no error of a kernel, and depends on the data.

# %%
pipeline.left_out()

# %% [markdown]
# **Draft rows.** A draft step reuses a frozen selection and writes newer tokens into the last columns, so a short row has
# a gap. Copying the columns below the count reads rows that nothing wrote and drops the newest tokens, the query's own among them.

# %%
pipeline.draft_figure()

# %% [markdown]
# Every check of this run beside its limit. What rounds nothing must be equal.

# %%
pipeline.error_figure()

# %% [markdown]
# Time, on a GPU only: each stage on copies of the very calls above, and the ways to attend, whole. The small stages
# move too little to be cold, and their rows say so.

# %%
pipeline.time(trials, paged_kernels)
pipeline.time_figure()

# %% tags=["verdict"]
verdict = pipeline.verdict()
print(verdict.sentence)
verdict.raise_if_failed()
